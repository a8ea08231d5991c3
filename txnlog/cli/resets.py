"""Which offsets a reset of a group means, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import typer

from txnlog.admin import AdminClient, IsolationLevel, OffsetSpec
from txnlog.admin.topics import all_partitions
from txnlog.cli.session import parse_numbers
from txnlog.errors import ConfigError
from txnlog.messages import TopicPartition

Rule = Callable[[TopicPartition], int]
Committed = Mapping[TopicPartition, int]


def scope(
    admin: AdminClient, topics: Sequence[str], all_topics: bool, committed: Committed
) -> list[TopicPartition]:
    """The partitions meant: `topic` or `topic:0,1`, or those of every topic the group has read."""
    if all_topics == bool(topics):
        raise typer.BadParameter("Give either --topic or --all-topics.")
    if all_topics:
        return all_partitions(admin.cluster, sorted({known.topic for known in committed}))
    found: list[TopicPartition] = []
    for given in topics:
        name, _, numbers = given.partition(":")
        if numbers:
            found += [TopicPartition(name, n) for n in parse_numbers("--topic", numbers)]
        else:
            found += all_partitions(admin.cluster, [name])
    return found


def to_spec(admin: AdminClient, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> Rule:
    """Earliest, latest, or a time; the end where there is no record so late."""
    found = _offsets(admin, partitions, spec)
    ends = _offsets(admin, partitions, OffsetSpec.latest())
    return lambda partition: found[partition] if found[partition] >= 0 else ends[partition]


def to_offset(admin: AdminClient, partitions: Sequence[TopicPartition], offset: int) -> Rule:
    """That offset, or the nearest one there is."""
    return _within(admin, partitions, lambda partition: offset)


def shift_by(
    admin: AdminClient, partitions: Sequence[TopicPartition], shift: int, committed: Committed
) -> Rule:
    """So many records from where the group stands."""

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
        found = min(max(wanted, starts[partition]), ends[partition])
        if found != wanted:
            typer.echo(
                f"txnlog: offset {wanted} of {partition.topic}-{partition.partition} is not "
                f"there; {found} is the nearest.",
                err=True,
            )
        return found

    return bounded


def _offsets(
    admin: AdminClient, partitions: Sequence[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    found = admin.list_offsets(
        dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED
    )
    return {partition: future.result().offset for partition, future in found.items()}
