"""`txnlog topics`: create, delete, list, describe and alter topics, and delete records."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import AdminClient, NewPartitions, NewTopic, TopicDescription
from txnlog.cli import completion
from txnlog.cli.flags import KafkaFlags
from txnlog.cli.session import Session, Watch, confirm, parse_configs, session_of
from txnlog.cli.times import format_time
from txnlog.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from txnlog.messages import TopicPartition
from txnlog.settings.names import NUM_PARTITIONS_DEFAULT

app = typer.Typer(
    cls=KafkaFlags,
    no_args_is_help=True,
    add_completion=False,
    help="Create, list, change and delete topics.",
)

Topic = Annotated[
    str,
    typer.Option("--topic", "-t", help="Name of the topic.", autocompletion=completion.topics),
]
DESCRIBE = (
    "Topic", "Partition", "LogStartOffset", "LastStableOffset", "HighWatermark", "Records", "Files",
    "Size", "LastTimestamp", "TopicId", "Configs",
)  # fmt: skip


@app.command()
def create(
    context: typer.Context,
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            help=f"Number of partitions. Default: {NUM_PARTITIONS_DEFAULT}, or more if a deleted "
            "topic of this name had more: fewer than it had are refused."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            help="Configurations, name=value,...; may be repeated.",
            autocompletion=completion.config_pairs,
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists")] = False,
) -> None:
    """Create a topic, and the cluster if there is none."""
    session = session_of(context)
    count = -1 if partitions is None else partitions
    new = NewTopic(topic, count, config=parse_configs("--config", config or ()))
    admin = session.admin()
    try:
        admin.create_topics([new])[topic].result()
    except TopicAlreadyExistsError:
        if not if_not_exists:
            raise
        return
    # Where the root is a mistake, this says so.
    session.say(f"Created topic {topic}{' in a new cluster' if admin.cluster.is_new else ''}.")


@app.command()
def delete(
    context: typer.Context,
    topic: Topic,
    if_exists: Annotated[bool, typer.Option("--if-exists")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also delete a topic with a damaged log; its readable data is lost."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask when members of a group read the topic.")
    ] = False,
) -> None:
    """Delete a topic. A new topic of this name continues at the old end offsets."""
    session = session_of(context)
    readers = [] if yes else _readers(session.admin(), topic)
    if readers:
        named = ", ".join(f"group {name} (members: {count})" for name, count in readers)
        confirm(f"Topic {topic} is read by {named}")
    try:
        session.admin().delete_topics([topic], force=force)[topic].result()
    except UnknownTopicOrPartitionError:
        if not if_exists:
            raise
        return
    session.say(f"Deleted topic {topic}.")


def _readers(admin: AdminClient, topic: str) -> list[tuple[str, int]]:
    """The groups with members that have partitions of a topic, and the number of these members."""
    listed = admin.list_consumer_groups().result().valid
    names = [group.group_id for group in listed if not group.is_simple_consumer_group]
    found = []
    for name, future in admin.describe_consumer_groups(names).items():
        if future.exception() is not None:
            # It has left, or became unreadable, since the listing.
            continue
        assigned = [member.assignment.topic_partitions for member in future.result().members]
        count = sum(any(p.topic == topic for p in partitions) for partitions in assigned)
        if count:
            found.append((name, count))
    return found


@app.command("list")
def list_all(context: typer.Context, watch: Watch = None) -> None:
    """Names of the topics. For unreadable topics it prints the error and exits with 1."""
    session = session_of(context)

    def show() -> None:
        topics = session.admin().list_topics().topics
        if session.is_json:
            session.show_json(sorted(topics))
        for name in sorted(topics):
            session.say(name)
        session.finish({name: topic.error for name, topic in topics.items()})

    session.watch(watch, show)


@app.command()
def describe(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Default: all.", autocompletion=completion.topics),
    ] = None,
    watch: Watch = None,
) -> None:
    """Partitions of topics: offsets, committed records, size, and the newest record's timestamp."""
    session = session_of(context)

    def show() -> None:
        admin = session.admin()
        names = [topic] if topic is not None else sorted(admin.list_topics().topics)
        rows = []
        errors: dict[str, BaseException | None] = {}
        for name, future in admin.describe_topics(names).items():
            errors[name] = future.exception()
            if errors[name] is not None and topic is None:
                continue
            rows += _rows(session, future.result())
        session.show(DESCRIBE, rows)
        session.finish(errors)

    session.watch(watch, show)


def _rows(session: Session, found: TopicDescription) -> list[tuple[object, ...]]:
    return [
        (
            found.name,
            p.id,
            p.log_start_offset,
            p.last_stable_offset,
            p.high_watermark,
            p.num_records,
            p.num_files,
            p.size_bytes if session.is_json else _size(p.size_bytes),
            p.last_timestamp_ms if session.is_json else format_time(p.last_timestamp_ms),
            found.topic_id,
            dict(found.config),
        )
        for p in found.partitions
    ]


def _size(size_bytes: int) -> str:
    """A size for people, as in 1.5 MiB."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


@app.command()
def alter(
    context: typer.Context,
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="The new number; must be higher.")],
) -> None:
    """Add partitions. No records move, so the partition of a key may change."""
    session = session_of(context)
    session.admin().create_partitions([NewPartitions(topic, partitions)])[topic].result()
    session.say(f"Topic {topic} has {partitions} partitions.")


@app.command("delete-records")
def delete_records(
    context: typer.Context,
    topic: Topic,
    partition: Annotated[int, typer.Option("--partition", "-p")],
    offset: Annotated[int, typer.Option(help="New log start; -1: delete all records.")],
) -> None:
    """Delete records before an offset. Readers below it get OffsetOutOfRange."""
    session = session_of(context)
    asked = TopicPartition(topic, partition, offset)
    found = session.admin().delete_records([asked])[asked].result()
    session.show(("TOPIC", "PARTITION", "LOW-WATERMARK"), [(topic, partition, found.low_watermark)])
