"""`txnlog spark-conf`: Hadoop's settings for Spark's own reader, derived from storage.*."""

from __future__ import annotations

import typer

from txnlog.cli.session import session_of
from txnlog.settings.config import parse_config
from txnlog.settings.hadoop import hadoop_settings, hadoop_url, is_secret_setting
from txnlog.settings.redaction import RECOMMENDED, SETTING
from txnlog.settings.storage_options import parse_storage_options

app = typer.Typer(add_completion=False)


@app.command()
def spark_conf(context: typer.Context) -> None:
    """Settings for Spark's own readers of the root (Delta, checkpoints), as spark-defaults.conf.

    Values of secrets are never printed: a comment says which settings they belong in.
    """
    session = session_of(context)
    config = parse_config(session.config(), "admin")
    options = parse_storage_options(config.root, config.storage)
    settings = hadoop_settings(config.root, options)
    plain = {
        f"spark.hadoop.{name}": value
        for name, value in settings.items()
        if not is_secret_setting(name)
    }
    plain[SETTING] = RECOMMENDED
    hidden = sorted(f"spark.hadoop.{name}" for name in settings if is_secret_setting(name))
    root = hadoop_url(config.root, config.storage)
    if session.is_json:
        session.show_json({"root": root, "settings": plain, "secrets": hidden})
        return
    session.say(f"# {root}")
    for name, value in plain.items():
        session.say(f"{name}  {value}")
    for name in hidden:
        session.say(f"# {name}  (a secret, which is not printed)")
    if options.file:
        session.say(f"# Spark does not read {options.file}: give it a role or credentials")
