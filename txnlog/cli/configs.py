"""`txnlog configs`: show and change configurations of topics, and of the root."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from txnlog.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from txnlog.cli import completion
from txnlog.cli.flags import KafkaFlags
from txnlog.cli.session import parse_configs, session_of, warn
from txnlog.settings.topic_configs import find_config

app = typer.Typer(
    cls=KafkaFlags,
    no_args_is_help=True,
    add_completion=False,
    help="Show and change configurations of topics, and of the root.",
)


class EntityType(str, Enum):
    """Kafka's names of what has configurations."""

    TOPICS = "topics"
    BROKERS = "brokers"


Entity = Annotated[
    EntityType, typer.Option("--entity-type", help="brokers: the root, which needs no --topic.")
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Name of the topic.", autocompletion=completion.topics),
]


@app.command()
def describe(
    context: typer.Context,
    topic: Topic = None,
    entity_type: Entity = EntityType.TOPICS,
    explain: Annotated[bool, typer.Option(help="Add the meaning of each one.")] = False,
) -> None:
    """Every configuration of a topic, or of the root: its value, set or the default."""
    session = session_of(context)
    resource = _resource(entity_type, topic)
    entries = session.admin().describe_configs([resource])[resource].result()
    source = resource.restype.name
    rows = [
        (e.name, e.value, "DEFAULT" if e.is_default else source, *([e.doc] if explain else []))
        for e in entries.values()
    ]
    session.show(("Name", "Value", "Source", *(["Meaning"] if explain else [])), rows)


@app.command()
def alter(
    context: typer.Context,
    topic: Topic = None,
    entity_type: Entity = EntityType.TOPICS,
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
    """Change configurations of a topic: all given ones, or none on an error.

    With --entity-type brokers that of the root: storage.fsync=true also syncs what is there.
    """
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
    resource = _resource(entity_type, topic, entries)

    def on_step(text: str, done: int, count: int) -> None:
        if not session.is_json:
            warn(f"{text} ({done}/{count})")

    session.admin().incremental_alter_configs([resource], on_step=on_step)[resource].result()
    if resource.restype is ResourceType.BROKER:
        session.say("Changed the configuration of the root.")
    elif any(find_config(entry.name) for entry in entries):
        session.say(f"Changed the configuration of topic {topic}.")
    else:
        session.say(f"The configuration of topic {topic} is as before.")


def _resource(
    entity_type: EntityType, topic: str | None, entries: Sequence[ConfigEntry] = ()
) -> ConfigResource:
    """Raises BadParameter unless a topic is named, or else the root is meant."""
    is_root = entity_type is EntityType.BROKERS
    if is_root == (topic is not None):
        raise typer.BadParameter("Give --topic NAME, or --entity-type brokers for the root.")
    restype = ResourceType.BROKER if is_root else ResourceType.TOPIC
    return ConfigResource(restype, topic or "", incremental_configs=entries)
