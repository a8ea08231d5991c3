"""Upgrade of a root of format 1, with one log of consumer offsets, to format 2, with shards of it.

Each step is one write; which is next follows from what the root shows, so an interrupted upgrade
resumes, and concurrent ones take the same steps. Clients should be stopped, but no safety rests on
it:

    step    write                                 dies just before        dies just after
    seal    a protocol in the old log that no     nothing has happened    offsets cannot be written;
            version of txnlog reads or writes                             the next upgrade resumes
    copy    version 0 of a new shard: rows and    row files that nothing  as above
            markers as of the seal                refers to, for vacuum
    switch  the format in `__cluster`             as above                done

An old process that has opened the root before is stopped by the seal: its next commit of offsets
meets it in its slot, and its next read refuses it. Until the switch a new process refuses the root.
So at no time can both logs be written, and what is copied can no longer change. A lost reply is
settled by the log, as for any commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.errors import UnsupportedProtocolError
from txnlog.protocol.group_metadata import CommittedOffset, Group
from txnlog.protocol.shards import shard_number

OLD_FORMAT = "1"
NEW_FORMAT = "2"
OLD_OFFSETS_TABLE = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class RootState:
    """What a root shows: its format, the number of shards in the seal (0: none), shards copied."""

    format: str
    sealed_for: int
    copied: Collection[int]


@dataclass(frozen=True, slots=True)
class SealLog:
    """Seal the old log; the number of shards is fixed with it."""

    shards: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Write version 0 of these shards."""

    numbers: tuple[int, ...]
    shards: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Write the new format."""

    shards: int


def next_step(root: RootState, *, shards: int) -> SealLog | Copy | Switch | None:
    """The next step; None if the root has the new format. `shards` counts unless it is sealed.

    Raises UnsupportedProtocolError for a format that is neither.
    """
    if root.format == NEW_FORMAT:
        return None
    if root.format != OLD_FORMAT:
        raise UnsupportedProtocolError(
            f"The cluster has format {root.format!r}; this txnlog upgrades {OLD_FORMAT} to "
            f"{NEW_FORMAT}. Upgrade with the version of txnlog that reads it."
        )
    if not root.sealed_for:
        return SealLog(shards)
    left = tuple(n for n in range(root.sealed_for) if n not in root.copied)
    return Copy(left, root.sealed_for) if left else Switch(root.sealed_for)


def busy_tables(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Tables to which other processes wrote between two readings of the newest versions."""
    return sorted(name for name, version in after.items() if before.get(name) != version)


def rows_of_shard(
    groups: Iterable[Group], number: int, *, shards: int, sealed_at: int
) -> list[Group]:
    """The groups of one new shard, with versions that are older than any of its own.

    Versions say which of two writes to a partition was later (R47); those of the old log become
    negative, in the same order. `sealed_at` is the version of the seal.
    """
    return [
        _moved(group, sealed_at)
        for group in groups
        if shard_number(group.group_id, shards) == number
    ]


def _moved(group: Group, sealed_at: int) -> Group:
    offsets = {
        topic: {partition: _before(known, sealed_at) for partition, known in partitions.items()}
        for topic, partitions in group.offsets.items()
    }
    pending = tuple(
        replace(entry, version=_shifted(entry.version, sealed_at)) for entry in group.pending
    )
    return replace(group, offsets=offsets, pending=pending, path="")


def _before(known: CommittedOffset, sealed_at: int) -> CommittedOffset:
    return replace(known, version=_shifted(known.version, sealed_at))


def _shifted(version: int, sealed_at: int) -> int:
    return version - sealed_at - 1
