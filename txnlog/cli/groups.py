"""`txnlog groups`: show consumer groups, reset and delete their offsets."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import (
    AdminClient,
    ConsumerGroupDescription,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    OffsetSpec,
)
from txnlog.cli.flags import KafkaFlags
from txnlog.cli.resets import Committed, Rule, scope, shift_by, to_offset, to_spec
from txnlog.cli.session import UNREADABLE, Session, parse_time_ms, session_of
from txnlog.errors import GroupIdNotFoundError, UnknownTopicOrPartitionError
from txnlog.messages import TopicPartition

app = typer.Typer(
    cls=KafkaFlags,
    no_args_is_help=True,
    help="Show consumer groups and change their offsets; commands may also be given as flags.",
)

DESCRIBE = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST",
    "CLIENT-ID",
)  # fmt: skip

Group = Annotated[str, typer.Option("--group", "-g", help="Name of the group.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="topic, or topic:0,1; may be repeated."),
]


@app.command("list")
def list_all(context: typer.Context) -> None:
    """Groups and their states. For unreadable groups it prints the error and exits with 1."""
    session = session_of(context)
    found = session.admin().list_consumer_groups().result()
    errors = {str(error.key): error for error in found.errors}  # type: ignore[attr-defined]
    rows = [(g.group_id, g.state.value) for g in found.valid]
    session.show(("GROUP", "STATE"), sorted([*rows, *((name, UNREADABLE) for name in errors)]))
    session.finish(errors)


@app.command()
def describe(
    context: typer.Context,
    group: Group,
    members: Annotated[bool, typer.Option("--members", help="Show members instead.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the state instead.")] = False,
) -> None:
    """Committed offsets, log ends and lag of a group."""
    session = session_of(context)
    admin = session.admin()
    found = admin.describe_consumer_groups([group])[group].result()
    if members:
        rows = [
            (group, m.member_id, m.host, m.client_id, len(m.assignment.topic_partitions))
            for m in found.members
        ]
        session.show(("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"), rows)
    elif state:
        pending = [entry.transactional_id for entry in found.pending]
        columns = ("GROUP", "STATE", "GENERATION", "#MEMBERS", "PENDING-TRANSACTIONS")
        counts = (found.state.value, found.generation, len(found.members), pending or None)
        session.show(columns, [(group, *counts)])
    else:
        _describe_offsets(session, admin, found)


def _describe_offsets(
    session: Session, admin: AdminClient, found: ConsumerGroupDescription
) -> None:
    group = found.group_id
    committed = _committed(admin, group)
    owners = {
        partition: member
        for member in found.members
        for partition in member.assignment.topic_partitions
    }
    rows = []
    for partition in sorted({*committed, *owners}):
        member = owners.get(partition)
        current, end = committed.get(partition), _end(admin, partition)
        lag = None if current is None or end is None else max(0, end - current)
        owner = (None,) * 3 if member is None else (member.member_id, member.host, member.client_id)
        where = (group, partition.topic, partition.partition)
        rows.append((*where, current, end, lag, *owner))
    session.show(DESCRIBE, rows)


def _end(admin: AdminClient, partition: TopicPartition) -> int | None:
    """The high watermark; None for a partition of a deleted topic."""
    latest = {partition: OffsetSpec.latest()}
    level = IsolationLevel.READ_UNCOMMITTED
    try:
        return admin.list_offsets(latest, isolation_level=level)[partition].result().offset
    except UnknownTopicOrPartitionError:
        return None


@app.command("reset-offsets")
def reset_offsets(
    context: typer.Context,
    group: Group,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics with offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    to_offset_: Annotated[int | None, typer.Option("--to-offset")] = None,
    shift_by_: Annotated[
        int | None, typer.Option("--shift-by", help="Number of records, may be negative.")
    ] = None,
    to_datetime: Annotated[str | None, typer.Option(help="As in 2026-01-31T12:00:00.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the offsets (default).")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Set the offsets.")] = False,
) -> None:
    """Set a group's offsets. Its consumers rejoin and continue there; restart its Spark query.

    Exactly one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime.
    """
    session = session_of(context)
    given = (
        to_earliest,
        to_latest,
        to_offset_ is not None,
        shift_by_ is not None,
        bool(to_datetime),
    )
    if sum(given) != 1:
        raise typer.BadParameter(
            "Give one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime."
        )
    if dry_run and execute:
        raise typer.BadParameter("--dry-run and --execute exclude each other.")
    admin = session.admin()
    committed = _committed(admin, group, required=False)
    partitions = scope(admin, topic or (), all_topics, committed)
    rule: Rule
    if to_offset_ is not None:
        rule = to_offset(admin, partitions, to_offset_)
    elif shift_by_ is not None:
        rule = shift_by(admin, partitions, shift_by_, committed)
    else:
        spec = OffsetSpec.earliest() if to_earliest else OffsetSpec.latest()
        if to_datetime:
            spec = OffsetSpec.for_timestamp(parse_time_ms("--to-datetime", to_datetime))
        rule = to_spec(admin, partitions, spec)
    wanted = [TopicPartition(p.topic, p.partition, rule(p)) for p in partitions]
    if execute:
        request = ConsumerGroupTopicPartitions(group, wanted)
        admin.alter_consumer_group_offsets([request])[group].result()
    rows = [(group, p.topic, p.partition, p.offset) for p in wanted]
    session.show(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    if not execute:
        typer.echo("txnlog: nothing was changed; use --execute to set the offsets.", err=True)


@app.command("delete-offsets")
def delete_offsets(context: typer.Context, group: Group, topic: Topics = None) -> None:
    """Delete a group's committed offsets of topics."""
    session = session_of(context)
    if not topic:
        raise typer.BadParameter("Give --topic.")
    admin = session.admin()
    partitions = scope(admin, topic, False, {})
    request = ConsumerGroupTopicPartitions(group, partitions)
    admin.delete_consumer_group_offsets([request])[group].result()
    session.say(f"Deleted the offsets of group {group} in {', '.join(topic)}.")


@app.command()
def delete(context: typer.Context, group: Group) -> None:
    """Delete a group without members, or one whose row is unreadable."""
    session = session_of(context)
    session.admin().delete_consumer_groups([group])[group].result()
    session.say(f"Deleted group {group}.")


def _committed(admin: AdminClient, group: str, *, required: bool = True) -> Committed:
    request = ConsumerGroupTopicPartitions(group)
    try:
        found = admin.list_consumer_group_offsets([request])[group].result()
    except GroupIdNotFoundError:
        if required:
            raise
        return {}
    return {partition: partition.offset for partition in found.topic_partitions or ()}
