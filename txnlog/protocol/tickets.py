"""Tickets: how a group refuses offsets of who no longer reads for it, without entries in its row.

Who will commit offsets in transactions registers in the group's row, and gets a ticket, a growing
number. PREPARE_COMMIT carries the ticket with the offsets; the row of the transactional.id has a
floor for each group, below which its tickets are refused. A successor registers, raises the floor
of every holder it met, finishes what they have decided, and only then reads the offsets.

The decisions are searched by tests/model/test_tickets.py; the coordinator does not use them yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.errors import OffsetConflictError, UnstableOffsetCommitError
from txnlog.protocol.decoding import Int64, PartitionNumber
from txnlog.protocol.extensible import Extensible
from txnlog.protocol.group_metadata import CommittedOffset, Group, Positions
from txnlog.protocol.groups import OffsetsCommit, check_member
from txnlog.protocol.metadata import GroupTicket, Holder, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import Done, Transition, prepare_abort_ongoing

Partitions = Mapping[str, Collection[int]]


class TicketHolder(Extensible, frozen=True, kw_only=True):
    """One run of a transactional.id that may commit offsets of these partitions."""

    transactional_id: str
    producer_id: Int64
    run_id: str
    ticket: Int64
    generation: Int64
    partitions: dict[str, tuple[PartitionNumber, ...]]

    def is_of(self, holder: Holder) -> bool:
        """Whether it stands for this run under this producer id."""
        mine = holder.transactional_id, holder.producer_id, holder.run_id
        return (self.transactional_id, self.producer_id, self.run_id) == mine


class GroupTickets(Extensible, frozen=True, kw_only=True):
    """What a group's row has of them."""

    newest: Int64 = 0
    holders: tuple[TicketHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """The row to write, and the ticket it gives; `to_fence` are the holders met by this write.

    Nothing is read or decided before all of them are fenced and finished.
    """

    group: Group
    tickets: GroupTickets
    ticket: int
    to_fence: tuple[TicketHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class MustFence:
    """Nothing to write yet: these holders read the same partitions. Fence and finish them first."""

    holders: tuple[TicketHolder, ...]


def prepare_start(
    group: Group | None,
    tickets: GroupTickets,
    *,
    group_id: str,
    holder: Holder,
    partitions: Partitions,
    now_ms: int,
) -> Registered:
    """Begin a generation and register in one write, which removes nobody.

    Former registrations of the same id, and of this run, are among those to fence.
    """
    row = group if group is not None else Group(group_id=group_id)
    bumped = replace(row, generation=row.generation + 1, assignment={}, updated_ms=now_ms)
    return _registered(bumped, tickets, holder, partitions, to_fence=tickets.holders)


def prepare_registration(
    group: Group | None,
    tickets: GroupTickets,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    holder: Holder,
    partitions: Partitions,
    start: Positions,
    done: Collection[int],
    now_ms: int,
) -> Registered | MustFence:
    """Register under the generation that another process began, or that a checkpoint names.

    `start` is where the input begins; `done` are tickets that this write removes, of holders that
    this process has fenced and finished, or its own that are at rest. An own one that may have a
    transaction under way stays: others must meet it. Raises IllegalGenerationError,
    UnknownMemberIdError, and OffsetConflictError if the group is past the start.
    """
    row = check_member(group, group_id=group_id, generation=generation, member_id=member_id)
    # First: who cannot read from there must not fence who does.
    _check_start(row, start)
    others = tuple(
        one
        for one in tickets.holders
        if one.ticket not in done and not one.is_of(holder) and _overlap(one.partitions, partitions)
    )
    if others:
        return MustFence(others)
    moved = replace(row, updated_ms=now_ms)
    return _registered(moved, prepare_removal(tickets, done), holder, partitions)


def prepare_removal(tickets: GroupTickets, done: Collection[int]) -> GroupTickets:
    """Without these tickets: fenced and finished by this process, or its own that is at rest."""
    kept = tuple(one for one in tickets.holders if one.ticket not in done)
    return replace(tickets, holders=kept)


def prepare_floor(
    row: TransactionMetadata | None,
    *,
    group_id: str,
    holder: TicketHolder,
    by: str,
    now_ms: int,
) -> Transition | Done:
    """Refuse the holder's ticket, and all before it, from now on; then finish what the row says.

    It is written in whatever state the row is, since what is decided next depends on it. An Ongoing
    transaction with offsets of the group is aborted by the same write. Raises
    UnstableOffsetCommitError if its client has prepared it: only the client may end that one.
    """
    if row is None or row.producer_id != holder.producer_id:
        # Read after the group's row: a PREPARE of that producer id is refused for good.
        return Done(row)
    floor = max(row.owner.floors.get(group_id, 0), holder.ticket + 1)
    has_offsets = any(
        one.group_id == group_id and one.ticket < floor for one in row.pending.tickets
    )
    if row.state is TransactionState.ONGOING and has_offsets:
        if row.pending.prepared_by_client:
            raise UnstableOffsetCommitError(
                f"Group {group_id!r} has offsets in a transaction that the client of "
                f"{row.transactional_id!r} has prepared. Complete it, then start again.",
                group_id=group_id,
            )
        return prepare_abort_ongoing(
            row, floors={group_id: floor}, by=by, reason="another run reads", now_ms=now_ms
        )
    if row.owner.floors.get(group_id, 0) == floor:
        return Done(row)
    owner = replace(row.owner, floors={**row.owner.floors, group_id: floor})
    raised = replace(row, owner=owner, updated_ms=now_ms)
    return Transition(operation="RAISE FLOOR", previous=row, next=raised)


def prepare_carried_offsets(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    carried: Sequence[GroupTicket],
    *,
    transaction: ProducerIdAndEpoch,
    result: TransactionResult,
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """The marker of a decided transaction in a shard, with the offsets of all its groups there.

    None if the shard has the marker. It asks no generation: who began a newer one has fenced.
    """
    producer_id, txn_epoch = transaction
    if markers.get(producer_id, -1) >= txn_epoch:
        return None
    rows = []
    for one in carried if result is TransactionResult.COMMIT else ():
        row = groups.get(one.group_id) or Group(group_id=one.group_id)
        offsets = {topic: dict(known) for topic, known in row.offsets.items()}
        for topic, partitions in one.offsets.items():
            for partition, offset in partitions.items():
                known = CommittedOffset(offset, one.generation, version)
                offsets.setdefault(topic, {})[partition] = known
        rows.append(replace(row, offsets=offsets, updated_ms=now_ms))
    txns = {producer_id: txn_epoch}
    return OffsetsCommit(operation="WRITE TXN MARKERS", groups=tuple(rows), txns=txns)


def _registered(
    group: Group,
    tickets: GroupTickets,
    holder: Holder,
    partitions: Partitions,
    *,
    to_fence: tuple[TicketHolder, ...] = (),
) -> Registered:
    # `newest` survives whatever happens to the group: ids keep floors for its tickets.
    ticket = tickets.newest + 1
    mine = TicketHolder(
        transactional_id=holder.transactional_id,
        producer_id=holder.producer_id,
        run_id=holder.run_id,
        ticket=ticket,
        generation=group.generation,
        partitions={topic: tuple(sorted(numbers)) for topic, numbers in partitions.items()},
    )
    holders = (*tickets.holders, mine)
    return Registered(group, replace(tickets, newest=ticket, holders=holders), ticket, to_fence)


def _check_start(group: Group, start: Positions) -> None:
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            known = group.offsets.get(topic, {}).get(partition)
            if known is not None and offset < known.offset:
                raise OffsetConflictError(
                    f"Group {group.group_id!r} is at offset {known.offset} of {topic!r} partition "
                    f"{partition}, past the start {offset} of this run: another one has committed "
                    "this input. Stop one of them, or start a new query with "
                    "startingOffsets=committed and a new checkpointLocation.",
                    group_id=group.group_id,
                    topic=topic,
                    partition=partition,
                )


def _overlap(left: Partitions, right: Partitions) -> bool:
    return any(set(numbers) & set(right.get(topic, ())) for topic, numbers in left.items())
