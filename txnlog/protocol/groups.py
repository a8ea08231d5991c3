"""The group row: committed offsets, generation and pending offsets of open transactions.

Pure decisions, as in org.apache.kafka.coordinator.group.OffsetMetadataManager. A row lives in
`__consumer_offsets`; the table's transactional markers (`txn` per producer id) are passed along,
because an entry of a transaction that has its marker must never come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from txnlog.errors import (
    CorruptLogError,
    IllegalGenerationError,
    OffsetConflictError,
    ProducerFencedError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.states import TransactionResult

Positions = Mapping[str, Mapping[int, int]]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """Next offset to read, under which generation and at which log version it was written."""

    offset: int
    generation: int
    version: int
    metadata: str = ""


class PendingOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets an open transaction will commit; `version` is that of the commit that wrote it."""

    transactional_id: str
    producer_id: int
    txn_epoch: int
    version: int
    generation: int
    offsets: dict[str, dict[int, int]]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `__consumer_offsets`."""

    group_id: str
    generation: int = 0
    offsets: dict[str, dict[int, CommittedOffset]] = {}
    pending: tuple[PendingOffsets, ...] = ()
    members: dict[str, msgspec.Raw] = {}
    assignment: dict[str, msgspec.Raw] = {}
    updated_ms: int = -1
    path: str = ""
    extra: dict[str, str] = {}

    def positions(self) -> dict[str, dict[int, int]]:
        """topic -> partition -> next offset to read."""
        return {
            topic: {partition: known.offset for partition, known in partitions.items()}
            for topic, partitions in self.offsets.items()
        }

    def to_values(self) -> dict[str, str]:
        """The row as Delta partition values."""
        values = dict(self.extra)
        values.update(
            group_id=self.group_id,
            generation=str(self.generation),
            offsets=_encode(self.offsets),
            pending=_encode(self.pending),
            members=_encode(self.members),
            assignment=_encode(self.assignment),
            updated_ms=str(self.updated_ms),
        )
        return values

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, path: str, source: str) -> Group:
        """Read a row back. Raises CorruptLogError naming `source`."""
        try:
            return cls(
                group_id=values["group_id"],
                generation=int(values["generation"]),
                offsets=_OFFSETS.decode(values["offsets"]),
                pending=_PENDING.decode(values["pending"]),
                members=_RAW.decode(values["members"]),
                assignment=_RAW.decode(values["assignment"]),
                updated_ms=int(values["updated_ms"]),
                path=path,
                extra={k: v for k, v in values.items() if k not in GROUP_COLUMNS},
            )
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise CorruptLogError(
                f"{source}: the row of group {values.get('group_id')!r} cannot be read "
                f"({type(error).__name__}: {error}). It was written by a newer txnlog or is "
                "damaged; upgrade, or restore the table.",
                file=source,
            ) from error


GROUP_COLUMNS: Mapping[str, str] = {
    "group_id": "string",
    "generation": "long",
    "offsets": "string",
    "pending": "string",
    "members": "string",
    "assignment": "string",
    "updated_ms": "long",
}

_ENCODER = msgspec.json.Encoder()
_OFFSETS = msgspec.json.Decoder(dict[str, dict[int, CommittedOffset]])
_PENDING = msgspec.json.Decoder(tuple[PendingOffsets, ...])
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _encode(value: object) -> str:
    return _ENCODER.encode(value).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommit:
    """One commit to `__consumer_offsets`: rows to write, transactional markers to set."""

    operation: str
    groups: tuple[Group, ...] = ()
    txns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """The offsets of one group that a transaction commits.

    `start` is where the transaction's input began (Spark batches: refused when the group has
    moved past it under the same generation), `end` the next offsets to read.
    """

    group_id: str
    generation: int
    start: Positions
    end: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entangled:
    """Entries of other transactions stand on the partitions and must be settled first."""

    entries: tuple[PendingOffsets, ...]


def prepare_generation(group: Group | None, *, group_id: str, now_ms: int) -> OffsetsCommit:
    """Bump the generation: whoever held the old one commits nothing any more."""
    row = group if group is not None else Group(group_id=group_id)
    bumped = replace(row, generation=row.generation + 1, updated_ms=now_ms)
    return OffsetsCommit(operation="JOIN GROUP", groups=(bumped,))


def prepare_fetch(
    group: Group | None, *, group_id: str, generation: int | None
) -> dict[str, dict[int, int]] | Entangled:
    """Committed positions, believed only under the generation and with nothing pending (R46)."""
    if group is None:
        if generation:
            raise _stale(group_id, generation, 0)
        return {}
    if generation is not None and group.generation != generation:
        raise _stale(group_id, generation, group.generation)
    if group.pending:
        return Entangled(group.pending)
    return group.positions()


def prepare_pending(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    requests: Sequence[GroupOffsets],
    *,
    transactional_id: str,
    producer_id: int,
    txn_epoch: int,
    version: int,
    now_ms: int,
) -> OffsetsCommit | Entangled | None:
    """Step 0: put an entry into each group's row; None when they are there already.

    `version` is the log version this commit would get. Raises ProducerFencedError,
    IllegalGenerationError, OffsetConflictError.
    """
    if markers.get(producer_id, -1) >= txn_epoch:
        raise ProducerFencedError(
            f"The transaction of {transactional_id!r} at epoch {txn_epoch} has ended in "
            "__consumer_offsets already: another process finished or fenced it. Start again.",
            transactional_id=transactional_id,
        )
    rows = []
    strangers: list[PendingOffsets] = []
    for request in requests:
        group = groups.get(request.group_id)
        current = 0 if group is None else group.generation
        if group is None or current != request.generation:
            raise _stale(request.group_id, request.generation, current)
        for entry in group.pending:
            if entry.producer_id == producer_id and entry.txn_epoch > txn_epoch:
                raise ProducerFencedError(
                    f"{transactional_id!r} has an entry of epoch {entry.txn_epoch} in group "
                    f"{request.group_id!r}, newer than this producer's epoch {txn_epoch}: a newer "
                    "instance took over. Stop this one.",
                    transactional_id=transactional_id,
                )
        wanted = {topic: dict(partitions) for topic, partitions in request.end.items()}
        own = [e for e in group.pending if e.producer_id == producer_id]
        if any(
            (e.txn_epoch, e.generation, e.offsets) == (txn_epoch, request.generation, wanted)
            for e in own
        ):
            continue
        others = [e for e in group.pending if e.producer_id != producer_id]
        strangers += [e for e in others if _overlaps(e.offsets, wanted)]
        _check_start(group, request)
        entry = PendingOffsets(
            transactional_id=transactional_id,
            producer_id=producer_id,
            txn_epoch=txn_epoch,
            version=version,
            generation=request.generation,
            offsets=wanted,
        )
        rows.append(replace(group, pending=(*others, entry), updated_ms=now_ms))
    if strangers:
        return Entangled(tuple(strangers))
    if not rows:
        return None
    return OffsetsCommit(operation="TXN OFFSET COMMIT", groups=tuple(rows))


def prepare_offsets_marker(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    *,
    group_ids: Sequence[str],
    producer_id: int,
    txn_epoch: int,
    result: TransactionResult,
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """Step 3: turn this transaction's entries into offsets, or on abort drop them (R45, R47).

    An offset written at a higher log version than the entry stays. None when the marker is there.
    """
    if markers.get(producer_id, -1) >= txn_epoch:
        return None
    rows = []
    for group_id in group_ids:
        group = groups.get(group_id)
        if group is None:
            continue
        mine = [
            e for e in group.pending if e.producer_id == producer_id and e.txn_epoch <= txn_epoch
        ]
        if not mine:
            continue
        offsets = {topic: dict(known) for topic, known in group.offsets.items()}
        for entry in mine:
            if result is TransactionResult.COMMIT and entry.txn_epoch == txn_epoch:
                _settle(offsets, entry, version)
        rest = tuple(e for e in group.pending if e not in mine)
        rows.append(replace(group, offsets=offsets, pending=rest, updated_ms=now_ms))
    return OffsetsCommit(
        operation="WRITE TXN MARKERS", groups=tuple(rows), txns={producer_id: txn_epoch}
    )


def prepare_clear(
    group: Group | None, entry: PendingOffsets, *, now_ms: int
) -> OffsetsCommit | None:
    """Drop an entry whose holder's epoch has been raised above it; None when it is gone."""
    if group is None or entry not in group.pending:
        return None
    rest = tuple(other for other in group.pending if other != entry)
    row = replace(group, pending=rest, updated_ms=now_ms)
    return OffsetsCommit(operation="CLEAR TXN OFFSETS", groups=(row,))


def prepare_reset(
    group: Group | None, *, group_id: str, positions: Positions, version: int, now_ms: int
) -> OffsetsCommit | Entangled:
    """An operator sets positions, under a new generation: no running batch goes on from before."""
    row = group if group is not None else Group(group_id=group_id)
    if row.pending:
        return Entangled(row.pending)
    generation = row.generation + 1
    offsets = {topic: dict(known) for topic, known in row.offsets.items()}
    for topic, partitions in positions.items():
        for partition, offset in partitions.items():
            known = CommittedOffset(offset, generation, version)
            offsets.setdefault(topic, {})[partition] = known
    moved = replace(row, generation=generation, offsets=offsets, updated_ms=now_ms)
    return OffsetsCommit(operation="ALTER CONSUMER GROUP OFFSETS", groups=(moved,))


def _settle(
    offsets: dict[str, dict[int, CommittedOffset]], entry: PendingOffsets, version: int
) -> None:
    for topic, partitions in entry.offsets.items():
        known = offsets.setdefault(topic, {})
        for partition, offset in partitions.items():
            there = known.get(partition)
            if there is None or there.version < entry.version:
                known[partition] = CommittedOffset(offset, entry.generation, version)


def _check_start(group: Group, request: GroupOffsets) -> None:
    """Refuse input that another batch under the same generation has committed already."""
    for topic, partitions in request.start.items():
        for partition, start in partitions.items():
            known = group.offsets.get(topic, {}).get(partition)
            if known is None or known.generation != request.generation:
                continue
            if start < known.offset:
                raise OffsetConflictError(
                    f"Group {request.group_id!r} stands at offset {known.offset} of {topic!r} "
                    f"partition {partition}, past this batch's start {start}: another run has "
                    "committed this input. Stop the other run, or start a new query with "
                    "startingOffsets=committed and a new checkpointLocation.",
                    group_id=request.group_id,
                    topic=topic,
                    partition=partition,
                )


def _overlaps(left: Positions, right: Positions) -> bool:
    return any(
        set(partitions) & set(right[topic]) for topic, partitions in left.items() if topic in right
    )


def _stale(group_id: str, generation: int, current: int) -> IllegalGenerationError:
    return IllegalGenerationError(
        f"Group {group_id!r} is at generation {current}, not {generation}: another consumer or "
        "query started in it, or an operator reset it. Stop this one, or start it anew with "
        "startingOffsets=committed and a new checkpointLocation.",
        group_id=group_id,
        expected_generation=current,
        actual_generation=generation,
    )


def unstable(group_id: str, entries: Sequence[PendingOffsets]) -> UnstableOffsetCommitError:
    """The error for entries that must be waited for."""
    holders = ", ".join(sorted({entry.transactional_id for entry in entries}))
    return UnstableOffsetCommitError(
        f"Group {group_id!r} has offsets pending in open transactions of {holders}; they will be "
        "settled when those end. Try again, or end them with an admin client.",
        group_id=group_id,
    )
