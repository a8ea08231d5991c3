"""`txnlog unpack-pyspark`: Spark's Python workers of this environment start from files."""

from __future__ import annotations

import typer

from txnlog.cli.session import session_of
from txnlog.errors import ConfigError
from txnlog.process.worker_files import installed_pyspark, unpack_pyspark

app = typer.Typer(add_completion=False)


@app.command()
def unpack_pyspark_(context: typer.Context) -> None:
    """Let Spark's Python workers of this environment import pyspark from files: faster starts.

    pip leaves pyspark/python/lib/pyspark.zip, from which each worker compiles pyspark again. A
    folder with a link to the package takes its place. `pip install --force-reinstall pyspark`
    brings the archive back. Not for a Spark that ships it to executors, as on YARN.
    """
    session = session_of(context)
    package = installed_pyspark()
    if package is None:
        raise ConfigError("pyspark is not installed in the Python that runs this command.")
    try:
        is_done = unpack_pyspark(package)
    except OSError as error:
        raise ConfigError(f"{package} cannot be changed: {error}") from error
    if session.is_json:
        session.show_json({"package": str(package), "changed": is_done})
    elif is_done:
        session.say(f"Spark's Python workers import pyspark from {package}.")
    else:
        session.say(f"Nothing to do: {package} has no archive.")
