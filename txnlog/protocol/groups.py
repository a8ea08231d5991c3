"""Decisions about a group's row: its generation, committed offsets, and pending ones.

Pure decisions, as in org.apache.kafka.coordinator.group.OffsetMetadataManager. The offsets table's
transactional markers (`txn` per producer id) are arguments, too, because an entry must never be
added for a transaction that has its marker. Joining and leaving are in txnlog.protocol.membership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from txnlog.errors import (
    IllegalGenerationError,
    OffsetConflictError,
    ProducerFencedError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.group_metadata import (
    GROUP_COLUMNS,
    CommittedOffset,
    Group,
    PendingOffsets,
    Positions,
)
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch
from txnlog.protocol.states import TransactionResult

__all__ = [
    "GROUP_COLUMNS",
    "CommittedOffset",
    "Group",
    "GroupOffsets",
    "OffsetsCommit",
    "PendingOffsets",
    "Positions",
    "UnstableOffsets",
    "prepare_clear",
    "prepare_fetch",
    "prepare_generation",
    "prepare_offset_commit",
    "prepare_offsets_marker",
    "prepare_pending",
    "prepare_reset",
    "unstable",
]

Partitions = Mapping[str, Collection[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommit:
    """One commit to `__consumer_offsets-<n>`: rows to write, transactional markers to set."""

    operation: str
    groups: tuple[Group, ...] = ()
    txns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """The offsets of one group that a transaction commits.

    `start` is where the transaction's input begins (Spark batches: refused if the group is past it
    under the same generation), `end` the next offsets to read. `member_id` is that of a consumer
    with a subscription, otherwise "".
    """

    group_id: str
    generation: int
    start: Positions
    end: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class UnstableOffsets:
    """Other transactions have pending offsets on these partitions."""

    entries: tuple[PendingOffsets, ...]


def prepare_generation(group: Group | None, *, group_id: str, now_ms: int) -> OffsetsCommit:
    """Bump the generation, which fences all users of the old one, members included."""
    row = group if group is not None else Group(group_id=group_id)
    bumped = replace(row, generation=row.generation + 1, assignment={}, updated_ms=now_ms)
    return OffsetsCommit(operation="JOIN GROUP", groups=(bumped,))


def prepare_fetch(
    group: Group | None,
    *,
    group_id: str,
    generation: int | None,
    partitions: Partitions | None = None,
) -> dict[str, dict[int, int]] | UnstableOffsets:
    """Committed positions, valid only under this generation and with no pending entry (R46).

    `partitions`: those assigned to a member; entries on other partitions are ignored.
    """
    if group is None:
        if generation:
            raise _illegal_generation(group_id, generation, 0)
        return {}
    if generation is not None and group.generation != generation:
        raise _illegal_generation(group_id, generation, group.generation)
    entries = tuple(
        entry
        for entry in group.pending
        if partitions is None or _overlaps(entry.offsets, partitions)
    )
    return UnstableOffsets(entries) if entries else group.positions()


def prepare_offset_commit(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    offsets: Positions,
    metadata: Mapping[str, Mapping[int, str]],
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """OffsetCommit of a consumer, outside of transactions; None if the row has it already.

    Overrides entries that were pending before it, even if they commit later (R47). It counts as a
    heartbeat. Raises IllegalGenerationError, UnknownMemberIdError (R48).
    """
    row = check_member(group, group_id=group_id, generation=generation, member_id=member_id)
    merged = {topic: dict(known) for topic, known in row.offsets.items()}
    pending = [entry.version for entry in row.pending if _overlaps(entry.offsets, offsets)]
    newest = max(pending, default=-1)
    changed = False
    for topic, partitions in offsets.items():
        known = merged.setdefault(topic, {})
        for partition, offset in partitions.items():
            note = metadata.get(topic, {}).get(partition, "")
            there = known.get(partition, CommittedOffset(-1, -1, -1))
            same = (there.offset, there.generation, there.metadata) == (offset, generation, note)
            if same and there.version >= newest:
                continue
            known[partition] = CommittedOffset(offset, generation, version, note)
            changed = True
    if not changed:
        return None
    members = row.members
    if member_id:
        alive = members[member_id]
        members = {**members, member_id: replace(alive, heartbeat=alive.heartbeat + 1)}
    put = replace(row, offsets=merged, members=members, updated_ms=now_ms)
    return OffsetsCommit(operation="OFFSET COMMIT", groups=(put,))


def check_member(group: Group | None, *, group_id: str, generation: int, member_id: str) -> Group:
    """The group, if it still has this generation and member (R48).

    Raises IllegalGenerationError, UnknownMemberIdError.
    """
    current = 0 if group is None else group.generation
    if group is None or current != generation:
        raise _illegal_generation(group_id, generation, current)
    if member_id and member_id not in group.members:
        raise UnknownMemberIdError(
            f"Group {group_id!r} has no member {member_id!r}: it left, or was removed after "
            "session.timeout.ms without a heartbeat or max.poll.interval.ms without a poll. "
            "Records read since its last commit will be read again; it rejoins at its next poll.",
            group_id=group_id,
            member_id=member_id,
        )
    return group


def prepare_pending(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    requests: Sequence[GroupOffsets],
    *,
    holder: Holder,
    version: int,
    now_ms: int,
    merge: bool = False,
) -> OffsetsCommit | UnstableOffsets | None:
    """Step 0: put an entry into each group's row; None if the rows have them already.

    `version` is the log version this commit would have. The request replaces entries of a former
    attempt of the same epoch; with `merge` it adds to them, for an Ongoing transaction that gets
    its offsets in several calls. Raises ProducerFencedError, IllegalGenerationError,
    UnknownMemberIdError, OffsetConflictError.
    """
    producer_id, txn_epoch = holder.producer_id, holder.producer_epoch
    if markers.get(producer_id, -1) >= txn_epoch:
        raise ProducerFencedError(
            f"The transaction of {holder.transactional_id!r} at epoch {txn_epoch} has ended in "
            "the log of its offsets already: another process finished or fenced it. Start again.",
            transactional_id=holder.transactional_id,
        )
    rows = []
    conflicts: list[PendingOffsets] = []
    for request in requests:
        group = check_member(
            groups.get(request.group_id),
            group_id=request.group_id,
            generation=request.generation,
            member_id=request.member_id,
        )
        _check_epochs(group, holder)
        wanted = {topic: dict(partitions) for topic, partitions in request.end.items()}
        own = [e for e in group.pending if e.producer_id == producer_id]
        others = [e for e in group.pending if e.producer_id != producer_id]
        same = [e for e in own if e.txn_epoch == txn_epoch]
        if merge:
            wanted = _not_pending(wanted, [e for e in same if e.generation == request.generation])
            if not wanted:
                continue
            kept = [left for e in same if (left := _minus(e, wanted)) is not None]
        else:
            if any((e.generation, e.offsets) == (request.generation, wanted) for e in same):
                continue
            kept = []
        conflicts += [e for e in others if _overlaps(e.offsets, wanted)]
        _check_start(group, request)
        entry = PendingOffsets(
            transactional_id=holder.transactional_id,
            producer_id=producer_id,
            txn_epoch=txn_epoch,
            version=version,
            generation=request.generation,
            offsets=wanted,
        )
        rows.append(replace(group, pending=(*others, *kept, entry), updated_ms=now_ms))
    if conflicts:
        return UnstableOffsets(tuple(conflicts))
    if not rows:
        return None
    return OffsetsCommit(operation="TXN OFFSET COMMIT", groups=tuple(rows))


def prepare_offsets_marker(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    *,
    group_ids: Sequence[str],
    transaction: ProducerIdAndEpoch,
    result: TransactionResult,
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """Step 3: turn this transaction's entries into offsets, or drop them on abort (R45, R47).

    An offset written at a higher log version than the entry stays. None if the marker exists.
    """
    producer_id, txn_epoch = transaction
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
    """Drop an entry whose producer is fenced; None if the row does not have it."""
    if group is None or entry not in group.pending:
        return None
    rest = tuple(other for other in group.pending if other != entry)
    row = replace(group, pending=rest, updated_ms=now_ms)
    return OffsetsCommit(operation="CLEAR TXN OFFSETS", groups=(row,))


def prepare_reset(
    group: Group | None, *, group_id: str, positions: Positions, version: int, now_ms: int
) -> OffsetsCommit | UnstableOffsets:
    """An operator sets positions, under a new generation, which fences batches under way."""
    row = group if group is not None else Group(group_id=group_id)
    if row.pending:
        return UnstableOffsets(row.pending)
    generation = row.generation + 1
    offsets = {topic: dict(known) for topic, known in row.offsets.items()}
    for topic, partitions in positions.items():
        for partition, offset in partitions.items():
            known = CommittedOffset(offset, generation, version)
            offsets.setdefault(topic, {})[partition] = known
    moved = replace(row, generation=generation, offsets=offsets, assignment={}, updated_ms=now_ms)
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


def _check_epochs(group: Group, holder: Holder) -> None:
    for entry in group.pending:
        if entry.producer_id == holder.producer_id and entry.txn_epoch > holder.producer_epoch:
            raise ProducerFencedError(
                f"{holder.transactional_id!r} has an entry of epoch {entry.txn_epoch} in group "
                f"{group.group_id!r}, newer than this producer's epoch {holder.producer_epoch}: a "
                "newer instance took over. Stop this one.",
                transactional_id=holder.transactional_id,
            )


def _not_pending(
    wanted: dict[str, dict[int, int]], entries: Sequence[PendingOffsets]
) -> dict[str, dict[int, int]]:
    """The wanted offsets that are not pending yet: an entry keeps its version (R28, R47)."""
    there = {
        (topic, partition, offset)
        for entry in entries
        for topic, partitions in entry.offsets.items()
        for partition, offset in partitions.items()
    }
    left = {
        topic: {p: offset for p, offset in partitions.items() if (topic, p, offset) not in there}
        for topic, partitions in wanted.items()
    }
    return {topic: partitions for topic, partitions in left.items() if partitions}


def _minus(entry: PendingOffsets, wanted: Positions) -> PendingOffsets | None:
    """The entry without partitions that are sent again; None if none is left."""
    left = {
        topic: {p: offset for p, offset in partitions.items() if p not in wanted.get(topic, {})}
        for topic, partitions in entry.offsets.items()
    }
    left = {topic: partitions for topic, partitions in left.items() if partitions}
    return replace(entry, offsets=left) if left else None


def _check_start(group: Group, request: GroupOffsets) -> None:
    """Refuse input that another batch of the same generation has already committed."""
    for topic, partitions in request.start.items():
        for partition, start in partitions.items():
            known = group.offsets.get(topic, {}).get(partition)
            if known is None or known.generation != request.generation:
                continue
            if start < known.offset:
                raise OffsetConflictError(
                    f"Group {request.group_id!r} is at offset {known.offset} of {topic!r} "
                    f"partition {partition}, past this batch's start {start}: another run has "
                    "committed this input. Stop the other run, or start a new query with "
                    "startingOffsets=committed and a new checkpointLocation.",
                    group_id=request.group_id,
                    topic=topic,
                    partition=partition,
                )


def _overlaps(left: Partitions, right: Partitions) -> bool:
    return any(
        set(partitions) & set(right[topic]) for topic, partitions in left.items() if topic in right
    )


def _illegal_generation(group_id: str, generation: int, current: int) -> IllegalGenerationError:
    return IllegalGenerationError(
        f"Group {group_id!r} is at generation {current}, not {generation}: another consumer or "
        "query started in it, or an operator reset it. A consumer with a subscription gets its "
        "partitions again at its next poll; stop anything else, or restart it (a Spark query "
        "with startingOffsets=committed and a new checkpointLocation).",
        group_id=group_id,
        expected_generation=current,
        actual_generation=generation,
    )


def unstable(group_id: str, entries: Sequence[PendingOffsets]) -> UnstableOffsetCommitError:
    """The error for entries of open transactions."""
    holders = ", ".join(sorted({entry.transactional_id for entry in entries}))
    return UnstableOffsetCommitError(
        f"Group {group_id!r} has offsets pending in open transactions of {holders}; they will be "
        "settled when those end. Try again, or end them with an admin client.",
        group_id=group_id,
    )
