"""`txnlog configs`: show and change topic configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from txnlog.cli import completion
from txnlog.cli.flags import KafkaFlags
from txnlog.cli.session import parse_configs, session_of
from txnlog.cli.topics import Topic
from txnlog.settings.topic_configs import find_config

app = typer.Typer(
    cls=KafkaFlags,
    no_args_is_help=True,
    add_completion=False,
    help="Show and change topic configurations.",
)


@app.command()
def describe(
    context: typer.Context,
    topic: Topic,
    explain: Annotated[bool, typer.Option(help="Add the meaning of each one.")] = False,
) -> None:
    """Every configuration of a topic: its value, and whether it is set or the default."""
    session = session_of(context)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = session.admin().describe_configs([resource])[resource].result()
    rows = [
        (e.name, e.value, "DEFAULT" if e.is_default else "TOPIC", *([e.doc] if explain else []))
        for e in entries.values()
    ]
    session.show(("Name", "Value", "Source", *(["Meaning"] if explain else [])), rows)


@app.command()
def alter(
    context: typer.Context,
    topic: Topic,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            help="name=value,...; may be repeated.", autocompletion=completion.config_pairs
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            help="Names to reset to their defaults; may be repeated.",
            autocompletion=completion.configs,
        ),
    ] = None,
) -> None:
    """Change configurations of a topic: all given ones, or none on an error."""
    session = session_of(context)
    entries = [
        ConfigEntry(name, value)
        for name, value in parse_configs("--add-config", add_config or ()).items()
    ]
    entries += [
        ConfigEntry(name, None, AlterConfigOpType.DELETE)
        for given in delete_config or ()
        for name in given.split(",")
    ]
    if not entries:
        raise typer.BadParameter("Give --add-config or --delete-config.")
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    session.admin().incremental_alter_configs([resource])[resource].result()
    if any(find_config(entry.name) for entry in entries):
        session.say(f"Changed the configuration of topic {topic}.")
    else:
        session.say(f"The configuration of topic {topic} is as before.")
