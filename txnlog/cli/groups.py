"""`txnlog groups`: show consumer groups, reset and delete their offsets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from txnlog.admin import (
    AdminClient,
    ConsumerGroupDescription,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    OffsetSpec,
)
from txnlog.admin.ages import shown_now_ms
from txnlog.cli import completion, resets
from txnlog.cli.flags import KafkaFlags
from txnlog.cli.resets import Committed
from txnlog.cli.session import UNREADABLE, Watch, echo, session_of, warn
from txnlog.cli.times import format_time, parse_duration_ms, parse_time_ms
from txnlog.errors import (
    GroupIdNotFoundError,
    StorePermissionError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import TopicPartition

app = typer.Typer(
    cls=KafkaFlags,
    no_args_is_help=True,
    add_completion=False,
    help="Show consumer groups and change their offsets; commands may also be given as flags.",
)

Table = tuple[Sequence[str], list[tuple[object, ...]]]

DESCRIBE = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "BLOCKED-BY",
    "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
MEMBERS = (
    "GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "HEARTBEAT-AGE-MS",
)  # fmt: skip

Group = Annotated[
    str,
    typer.Option("--group", "-g", help="Name of the group.", autocompletion=completion.groups),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="topic, or topic:0,1; may be repeated.",
        autocompletion=completion.topics,
    ),
]


@app.command("list")
def list_all(context: typer.Context, watch: Watch = None) -> None:
    """Groups and their states. For unreadable groups it prints the error and exits with 1."""
    session = session_of(context)

    def show() -> None:
        found = session.admin().list_consumer_groups().result()
        errors = {str(error.key): error for error in found.errors}  # type: ignore[attr-defined]
        rows = [(g.group_id, g.state.value) for g in found.valid]
        session.show(("GROUP", "STATE"), sorted([*rows, *((name, UNREADABLE) for name in errors)]))
        session.finish(errors)

    session.watch(watch, show)


@app.command()
def describe(
    context: typer.Context,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="May be repeated.", autocompletion=completion.groups),
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Every group.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Show members instead.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the state instead.")] = False,
    watch: Watch = None,
) -> None:
    """Committed offsets, log ends, lag of groups, and which transactions they wait for."""
    session = session_of(context)
    if all_groups == bool(group):
        raise typer.BadParameter("Give either --group or --all-groups.")
    view = _members if members else _states if state else _offsets

    def show() -> None:
        admin = session.admin()
        names, errors = group or [], {}
        if all_groups:
            listed = admin.list_consumer_groups().result()
            names = [found.group_id for found in listed.valid]
            errors = {str(error.key): error for error in listed.errors}  # type: ignore[attr-defined]
        described = admin.describe_consumer_groups(names)
        columns, rows = view(admin, [described[name].result() for name in described])
        session.show(columns, rows)
        session.finish(errors)

    session.watch(watch, show)


def _members(admin: AdminClient, groups: list[ConsumerGroupDescription]) -> Table:
    rows: list[tuple[object, ...]] = []
    members = [(found.group_id, member) for found in groups for member in found.members]
    now_ms = shown_now_ms(admin.cluster.store) if members else 0
    for group_id, m in members:
        who = (group_id, m.member_id, m.host, m.client_id, len(m.assignment.topic_partitions))
        rows.append((*who, max(0, now_ms - m.heartbeat_ms)))
    return MEMBERS, rows


def _states(_: AdminClient, groups: list[ConsumerGroupDescription]) -> Table:
    columns = ("GROUP", "STATE", "GENERATION", "#MEMBERS", "PENDING-TRANSACTIONS")
    rows: list[tuple[object, ...]] = []
    for found in groups:
        pending = [entry.transactional_id for entry in found.pending]
        counts = (found.state.value, found.generation, len(found.members), pending or None)
        rows.append((found.group_id, *counts))
    return columns, rows


def _offsets(admin: AdminClient, groups: list[ConsumerGroupDescription]) -> Table:
    requests = [ConsumerGroupTopicPartitions(found.group_id) for found in groups]
    listed = admin.list_consumer_group_offsets(requests)
    committed = {name: _by_partition(future.result()) for name, future in listed.items()}
    owners = {
        found.group_id: {
            partition: (member.member_id, member.host, member.client_id)
            for member in found.members
            for partition in member.assignment.topic_partitions
        }
        for found in groups
    }
    used = {group: sorted({*committed[group], *owners[group]}) for group in committed}
    every = [partition for partitions in used.values() for partition in partitions]
    ends = _ends(admin, every, IsolationLevel.READ_UNCOMMITTED)
    stable = _ends(admin, every, IsolationLevel.READ_COMMITTED)
    held = [one for one in set(every) if (stable[one] or 0) < (ends[one] or 0)]
    blocking = _blocking(admin, held)
    rows: list[tuple[object, ...]] = []
    for group, partitions in used.items():
        for partition in partitions:
            current, end = committed[group].get(partition), ends[partition]
            lag = None if current is None or end is None else max(0, end - current)
            # It waits once it has read all before the last stable offset.
            waits = lag and current is not None and current >= (stable[partition] or 0)
            blocked_by = blocking.get(partition) if waits else None
            owner = owners[group].get(partition, (None,) * 3)
            where = (group, partition.topic, partition.partition)
            rows.append((*where, current, end, lag, blocked_by, *owner))
    return DESCRIBE, rows


def _blocking(
    admin: AdminClient, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[str]]:
    """The transactions that hold the last stable offset of partitions, and until when."""
    if not partitions:
        return {}
    try:
        found = admin.find_hanging(partitions).result()
    except StorePermissionError:
        # Who may read groups and topics need not be allowed to read the transactions.
        return {partition: ["?"] for partition in partitions}
    blocking: dict[TopicPartition, list[str]] = {}
    for one in found:
        if one.start_offset is not None:
            name = one.transactional_id or f"producer-{one.producer_id}-{one.producer_epoch}"
            until = "" if one.until_ms is None else f"(until={format_time(one.until_ms)})"
            where = TopicPartition(one.topic, one.partition)
            blocking.setdefault(where, []).append(name + until)
    return blocking


def _ends(
    admin: AdminClient, partitions: list[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, int | None]:
    """The ends under an isolation level; None for a partition of a deleted topic."""
    latest = dict.fromkeys(partitions, OffsetSpec.latest())
    ends: dict[TopicPartition, int | None] = {}
    found = admin.list_offsets(latest, isolation_level=isolation)
    for partition, future in found.items():
        try:
            ends[partition] = future.result().offset
        except UnknownTopicOrPartitionError:
            ends[partition] = None
    return ends


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
    to_current: Annotated[
        bool, typer.Option("--to-current", help="The committed offsets; without one, the end.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Number of records, may be negative.")
    ] = None,
    to_datetime: Annotated[str | None, typer.Option(help="As in 2026-01-31T12:00:00.")] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="This long before now, as in PT1H30M or 1h30m.")
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(help="CSV lines topic,partition,offset, as --export prints; -: stdin."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the offsets (default).")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Set the offsets.")] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the offsets as lines for --from-file.")
    ] = False,
) -> None:
    """Set a group's offsets. Its consumers rejoin and continue there; restart its Spark query.

    Exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime,
    --by-duration and --from-file.
    """
    session = session_of(context)
    rules = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-current": to_current,
        "--to-offset": to_offset is not None,
        "--shift-by": shift_by is not None,
        "--to-datetime": to_datetime is not None,
        "--by-duration": by_duration is not None,
        "--from-file": from_file is not None,
    }
    if sum(rules.values()) != 1:
        raise typer.BadParameter(f"Give exactly one of {', '.join(rules)}.")
    if dry_run and execute:
        raise typer.BadParameter("--dry-run and --execute exclude each other.")
    admin = session.admin()
    if from_file is not None:
        if topic or all_topics:
            raise typer.BadParameter("--from-file names the partitions: leave out --topic.")
        wanted = resets.from_file(admin, from_file, group)
    else:
        committed = _committed(admin, group)
        partitions = resets.scope(admin, group, topic or (), all_topics, committed)
        if to_offset is not None:
            rule = resets.to_offset(admin, partitions, to_offset)
        elif shift_by is not None:
            rule = resets.shift_by(admin, partitions, shift_by, committed)
        elif to_current:
            rule = resets.to_current(admin, partitions, committed)
        else:
            spec = OffsetSpec.earliest() if to_earliest else OffsetSpec.latest()
            if to_datetime is not None:
                spec = OffsetSpec.for_timestamp(parse_time_ms("--to-datetime", to_datetime))
            elif by_duration is not None:
                ago_ms = parse_duration_ms("--by-duration", by_duration)
                spec = OffsetSpec.for_timestamp(max(0, time.time_ns() // 1_000_000 - ago_ms))
            rule = resets.to_spec(admin, partitions, spec)
        wanted = [TopicPartition(p.topic, p.partition, rule(p)) for p in partitions]
    if execute:
        request = ConsumerGroupTopicPartitions(group, wanted)
        admin.alter_consumer_group_offsets([request])[group].result()
    if export:
        for p in wanted:
            echo(f"{p.topic},{p.partition},{p.offset}")
    else:
        rows = [(group, p.topic, p.partition, p.offset) for p in wanted]
        session.show(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    if not execute:
        warn("nothing was changed; use --execute to set the offsets.")


@app.command("delete-offsets")
def delete_offsets(context: typer.Context, group: Group, topic: Topics = None) -> None:
    """Delete a group's committed offsets of topics."""
    session = session_of(context)
    if not topic:
        raise typer.BadParameter("Give --topic.")
    admin = session.admin()
    committed = _committed(admin, group)
    partitions: list[TopicPartition] = []
    for given in topic:
        # Those of a deleted topic are known only to the group.
        known = [partition for partition in committed if partition.topic == given]
        partitions += known or resets.scope(admin, group, [given], False, {})
    request = ConsumerGroupTopicPartitions(group, partitions)
    admin.delete_consumer_group_offsets([request])[group].result()
    session.say(f"Deleted the offsets of group {group} in {', '.join(topic)}.")


@app.command()
def delete(context: typer.Context, group: Group) -> None:
    """Delete a group without members, or one whose row is unreadable."""
    session = session_of(context)
    session.admin().delete_consumer_groups([group])[group].result()
    session.say(f"Deleted group {group}.")


def _committed(admin: AdminClient, group: str) -> Committed:
    """The committed offsets; none of a group that does not exist yet."""
    request = ConsumerGroupTopicPartitions(group)
    try:
        found = admin.list_consumer_group_offsets([request])[group].result()
    except GroupIdNotFoundError:
        return {}
    return _by_partition(found)


def _by_partition(found: ConsumerGroupTopicPartitions) -> dict[TopicPartition, int]:
    return {partition: partition.offset for partition in found.topic_partitions or ()}
