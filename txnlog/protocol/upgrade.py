"""Upgrade of a root of format 1 or 2, with pending entries in the rows of groups, to format 3.

First every table that coordinates is closed to the versions of these formats; then what can no
longer change is converted. Each step is made of single writes; which is next follows from what the
root shows, so an interrupted upgrade resumes, and concurrent ones take the same steps. Clients
should be stopped, but no safety rests on it:

    step     write                                  dies just before      dies just after
    lock     a higher protocol in `__cluster`       nothing has happened  no version opens the root
                                                                          or creates a table
    close    the same in each shard of both kinds   as above              nothing can be decided,
                                                                          no offsets be written
    seal     format 1: what closes its one log of   as above              as above
             offsets, and the number of shards
    carry    rows of decided or prepared            as above              as above
             transactions get the offsets of their
             entries, with tickets
    convert  each shard of the offsets: `tickets`   as above              as above
             for `pending`; format 1: version 0 of
             a new shard
    switch   the format in `__cluster`              as above              done

A process of an old version is stopped by the protocol: its next commit meets it in its slot, and
its next read refuses it. So what is undecided when its shard is closed stays so, and its entries
are dropped; a transaction that its client has prepared keeps them, and may be ended later. Nothing
is finished here: what is decided is finished by any process of the new version, as always. A lost
reply is settled by the log, as for any commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from txnlog.errors import RESTORE_ALL, CorruptLogError, UnsupportedProtocolError
from txnlog.protocol.decoding import Int64, PartitionNumber
from txnlog.protocol.extensible import Codec, Extensible
from txnlog.protocol.group_metadata import (
    CommittedOffset,
    Group,
    GroupTickets,
    TicketHolder,
)
from txnlog.protocol.metadata import GroupTicket, Manifest, TransactionMetadata
from txnlog.protocol.shards import shard_number
from txnlog.protocol.states import TransactionState

OLD_FORMATS = ("1", "2")
NEW_FORMAT = "3"
OLD_OFFSETS_TABLE = "__consumer_offsets"
_GROUPS = "groups"


# -- rows of the old formats -----------------------------------------------------------------------


class PendingOffsets(Extensible, frozen=True, kw_only=True):
    """Offsets an open transaction will commit; `version` is that of the commit that wrote it."""

    transactional_id: str
    producer_id: Int64
    txn_epoch: Int64
    version: Int64
    generation: Int64
    offsets: dict[str, dict[PartitionNumber, Int64]]


_PENDING: Codec[tuple[PendingOffsets, ...]] = Codec(tuple[PendingOffsets, ...])


class OldGroup(Group, frozen=True, kw_only=True):
    """The row of a group with pending entries; also one that has been converted."""

    pending: tuple[PendingOffsets, ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, path: str, source: str) -> OldGroup:
        """Parse a row of either form. Raises CorruptLogError naming `source`."""
        if "tickets" in values:
            group = super().from_values(values, path=path, source=source)
            assert isinstance(group, OldGroup)
            return group
        try:
            pending = _PENDING.decode(values["pending"])
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise CorruptLogError(
                f"{source}: the pending entries of group {values.get('group_id')!r} cannot be "
                f"read ({type(error).__name__}: {error}). {RESTORE_ALL}",
                file=source,
            ) from error
        others = {name: value for name, value in values.items() if name != "pending"}
        group = super().from_values({**others, "tickets": "{}"}, path=path, source=source)
        return replace(group, pending=pending)  # type: ignore[return-value]


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """What a root shows.

    `to_close` are tables without the new protocol, or announced and not created; `shards` is the
    number of shards of the offsets (format 1: 0 until the seal fixes it); `to_carry` are tables
    with rows that name groups; `to_convert` are shards of the offsets without tickets.
    """

    format: str
    is_locked: bool = False
    to_close: tuple[str, ...] = ()
    shards: int = 0
    to_carry: tuple[str, ...] = ()
    to_convert: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lock:
    """Close `__cluster`."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close these tables, and create those that were announced."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SealLog:
    """Close the one log of format 1; the number of shards is fixed with it."""

    shards: int


@dataclass(frozen=True, slots=True)
class Carry:
    """Give the rows in these tables the offsets of their entries."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Convert:
    """Convert these shards of the offsets."""

    numbers: tuple[int, ...]
    shards: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Write the new format."""

    shards: int


Step = Lock | Close | SealLog | Carry | Convert | Switch


def next_step(root: RootState, *, shards: int) -> Step | None:
    """The next step; None if the root has the new format. `shards` counts for format 1 only.

    Raises UnsupportedProtocolError for a format that this version does not know.
    """
    if root.format == NEW_FORMAT:
        return None
    if root.format not in OLD_FORMATS:
        raise UnsupportedProtocolError(
            f"The cluster has format {root.format!r}; this txnlog upgrades "
            f"{' and '.join(OLD_FORMATS)} to {NEW_FORMAT}. Upgrade with the version of txnlog "
            "that reads it."
        )
    if not root.is_locked:
        return Lock()
    if root.to_close:
        return Close(root.to_close)
    if not root.shards:
        return SealLog(shards)
    if root.to_carry:
        return Carry(root.to_carry)
    if root.to_convert:
        return Convert(root.to_convert, root.shards)
    return Switch(root.shards)


def after_step(root: RootState, step: Step) -> RootState:
    """What a root shows after a step that only this upgrade took."""
    match step:
        case Lock():
            return dataclasses.replace(root, is_locked=True)
        case Close():
            return dataclasses.replace(root, to_close=())
        case SealLog():
            numbers = tuple(range(step.shards))
            return dataclasses.replace(root, shards=step.shards, to_convert=numbers)
        case Carry():
            return dataclasses.replace(root, to_carry=())
        case Convert():
            return dataclasses.replace(root, to_convert=())
        case Switch():
            return dataclasses.replace(root, format=NEW_FORMAT)


def busy_tables(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Tables to which other processes wrote between two readings of the newest versions."""
    return sorted(name for name, version in after.items() if before.get(name) != version)


# -- rows ------------------------------------------------------------------------------------------


def groups_named(row: TransactionMetadata) -> tuple[str, ...] | None:
    """The groups in which a row of an old format has entries; None if it names none."""
    named = msgspec.json.decode(row.pending.unknown or "{}").get(_GROUPS)
    return None if named is None else tuple(named)


def prepare_carry(
    row: TransactionMetadata, find_group: Callable[[str], Group | None]
) -> TransactionMetadata | None:
    """The row with the offsets that its transaction moves if it is committed; None: it has them.

    `find_group` reads the shards, which are closed. Entries of what can no longer be decided are
    left behind. Raises CorruptLogError for a group that cannot be read.
    """
    named = groups_named(row)
    if named is None:
        return None
    is_prepared = row.state is TransactionState.ONGOING and row.pending.prepared_by_client
    tickets: tuple[GroupTicket, ...] = ()
    if is_prepared or row.state is TransactionState.PREPARE_COMMIT:
        found = (_ticket(row, group_id, find_group(group_id)) for group_id in sorted(named))
        tickets = tuple(ticket for ticket in found if ticket is not None)
    return replace(row, pending=_without_groups(row.pending, tickets))


def _without_groups(manifest: Manifest, tickets: tuple[GroupTicket, ...]) -> Manifest:
    others: dict[str, Any] = msgspec.json.decode(manifest.unknown)
    others.pop(_GROUPS)
    unknown = msgspec.json.encode(others).decode() if others else ""
    return replace(manifest, tickets=tickets, unknown=unknown)


def _ticket(row: TransactionMetadata, group_id: str, group: Group | None) -> GroupTicket | None:
    """The offsets of the row's transaction in a group; None if it moves none.

    The ticket is the place of its first entry, so every upgrade gives the same.
    """
    if not isinstance(group, OldGroup):
        return None
    mine = [
        (place, entry)
        for place, entry in enumerate(group.pending, 1)
        if (entry.producer_id, entry.txn_epoch) == row.transaction
    ]
    offsets: dict[str, dict[int, int]] = {}
    for _, entry in mine:
        for topic, partitions in entry.offsets.items():
            for partition, offset in partitions.items():
                known = group.offsets.get(topic, {}).get(partition)
                # An offset that was committed after the entry stays (R47).
                if known is None or known.version < entry.version:
                    offsets.setdefault(topic, {})[partition] = offset
    if not offsets:
        return None
    return GroupTicket(
        group_id=group_id,
        producer_id=row.producer_id,
        ticket=mine[0][0],
        generation=max(entry.generation for _, entry in mine),
        offsets=offsets,
    )


def converted(group: OldGroup, carriers: Iterable[TransactionMetadata]) -> Group:
    """The row with tickets for its pending entries; `carriers` are rows after `prepare_carry`."""
    holders = [
        TicketHolder(
            transactional_id=row.transactional_id,
            producer_id=one.producer_id,
            run_id=row.owner.run_id,
            ticket=one.ticket,
            generation=one.generation,
            partitions={topic: tuple(sorted(numbers)) for topic, numbers in one.offsets.items()},
        )
        for row in carriers
        for one in row.pending.tickets
        if one.group_id == group.group_id
    ]
    holders.sort(key=lambda holder: holder.ticket)
    return Group(
        group_id=group.group_id,
        generation=group.generation,
        offsets=group.offsets,
        tickets=GroupTickets(newest=len(group.pending), holders=tuple(holders)),
        members=group.members,
        assignment=group.assignment,
        updated_ms=group.updated_ms,
        path=group.path,
        extra=group.extra,
    )


def converted_unreadable(values: Mapping[str, str]) -> dict[str, str]:
    """The values of a row that cannot be read; it stays so, for `txnlog groups delete`."""
    others = {name: value for name, value in values.items() if name != "pending"}
    # A string is no tickets, whatever else was wrong.
    damage = msgspec.json.encode(values.get("pending", "")).decode()
    return {**others, "tickets": values.get("tickets", damage)}


def entries_of(groups: Iterable[Group]) -> Iterator[PendingOffsets]:
    """All pending entries."""
    for group in groups:
        if isinstance(group, OldGroup):
            yield from group.pending


def in_shard(groups: Iterable[Group], number: int, shards: int) -> list[OldGroup]:
    """The groups of one shard."""
    return [
        group
        for group in groups
        if isinstance(group, OldGroup) and shard_number(group.group_id, shards) == number
    ]


def moved(group: Group, sealed_at: int) -> Group:
    """The row for version 0 of a shard, with versions that are older than any of its own.

    Versions say which of two writes to a partition was later; those of the old log become negative,
    in the same order. `sealed_at` is the version of the seal.
    """
    offsets = {
        topic: {partition: _before(known, sealed_at) for partition, known in partitions.items()}
        for topic, partitions in group.offsets.items()
    }
    return replace(group, offsets=offsets, path="")


def _before(known: CommittedOffset, sealed_at: int) -> CommittedOffset:
    return replace(known, version=known.version - sealed_at - 1)
