"""Compute the new offsets of `groups reset-offsets`; writes nothing."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from txnlog.admin import AdminClient, IsolationLevel, OffsetSpec
from txnlog.admin.topics import all_partitions
from txnlog.cli.session import parse_numbers, warn
from txnlog.errors import ConfigError
from txnlog.messages import TopicPartition
from txnlog.text import shell_option

Rule = Callable[[TopicPartition], int]
Committed = Mapping[TopicPartition, int]


def scope(
    admin: AdminClient, group: str, topics: Sequence[str], all_topics: bool, committed: Committed
) -> list[TopicPartition]:
    """The selected partitions: of `topic` or `topic:0,1`, or of all topics with offsets.

    Deleted topics of `all_topics` are left out, with a line on stderr for each.
    """
    if all_topics == bool(topics):
        raise typer.BadParameter("Give either --topic or --all-topics.")
    if all_topics:
        named = {partition.topic for partition in committed}
        found = admin.cluster.survey_topics(named.__contains__)
        for name in sorted(named - found.keys()):
            words = f"{shell_option('--group', group)} {shell_option('--topic', name)}"
            warn(
                f"topic {name} is left out: it is deleted. `txnlog groups delete-offsets {words}` "
                "deletes the group's offsets in it."
            )
        return all_partitions(admin.cluster, sorted(found))
    partitions: list[TopicPartition] = []
    for given in topics:
        name, _, numbers = given.partition(":")
        if numbers:
            partitions += [TopicPartition(name, n) for n in parse_numbers("--topic", numbers)]
        else:
            partitions += all_partitions(admin.cluster, [name])
    return partitions


def to_spec(admin: AdminClient, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> Rule:
    """Earliest, latest, or by time; the end if there is no record at or after the time."""
    offsets = _offsets(admin, partitions, spec)
    ends = _offsets(admin, partitions, OffsetSpec.latest())
    return lambda partition: offsets[partition] if offsets[partition] >= 0 else ends[partition]


def to_offset(admin: AdminClient, partitions: Sequence[TopicPartition], offset: int) -> Rule:
    """This offset, clamped to the log's range."""
    return _within(admin, partitions, lambda partition: offset)


def to_current(
    admin: AdminClient, partitions: Sequence[TopicPartition], committed: Committed
) -> Rule:
    """The committed offset; the end for a partition without one, as in Kafka."""
    ends = _offsets(admin, partitions, OffsetSpec.latest())
    return lambda partition: committed.get(partition, ends[partition])


def from_file(admin: AdminClient, path: str, group: str) -> list[TopicPartition]:
    """The offsets in a CSV file of Kafka's tool, within the logs' ranges.

    Lines are topic,partition,offset, or group,topic,partition,offset. Raises BadParameter.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--from-file {path}: {error}.") from None
    wanted: dict[TopicPartition, int] = {}
    for number, line in enumerate(csv.reader(text.splitlines()), start=1):
        if not line:
            continue
        *names, partition, offset = line if len(line) > 2 else ["", "", ""]
        if not (partition.strip().isdecimal() and offset.strip().isdecimal() and len(names) <= 2):
            raise typer.BadParameter(
                f"--from-file {path}, line {number}: {','.join(line)!r} is not "
                "topic,partition,offset."
            )
        if len(names) == 2 and names[0] != group:
            raise typer.BadParameter(
                f"--from-file {path}, line {number} is of group {names[0]!r}, not {group!r}."
            )
        wanted[TopicPartition(names[-1], int(partition))] = int(offset)
    if not wanted:
        raise typer.BadParameter(f"--from-file {path} has no offsets.")
    rule = _within(admin, list(wanted), wanted.__getitem__)
    return [TopicPartition(p.topic, p.partition, rule(p)) for p in wanted]


def shift_by(
    admin: AdminClient, partitions: Sequence[TopicPartition], shift: int, committed: Committed
) -> Rule:
    """The committed offset plus `shift`, clamped to the log's range."""

    def shifted(partition: TopicPartition) -> int:
        if partition not in committed:
            raise ConfigError(
                f"The group has no offset of {partition.topic!r} partition {partition.partition} "
                "to shift. Use --to-earliest, --to-latest or --to-offset for it."
            )
        return committed[partition] + shift

    return _within(admin, partitions, shifted)


def _within(admin: AdminClient, partitions: Sequence[TopicPartition], rule: Rule) -> Rule:
    starts = _offsets(admin, partitions, OffsetSpec.earliest())
    ends = _offsets(admin, partitions, OffsetSpec.latest())

    def bounded(partition: TopicPartition) -> int:
        wanted = rule(partition)
        nearest = min(max(wanted, starts[partition]), ends[partition])
        if nearest != wanted:
            warn(
                f"offset {wanted} of {partition.topic}-{partition.partition} is out of range; "
                f"{nearest} is the nearest."
            )
        return nearest

    return bounded


def _offsets(
    admin: AdminClient, partitions: Sequence[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    found = admin.list_offsets(
        dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED
    )
    return {partition: future.result().offset for partition, future in found.items()}
