"""Tickets: how a group refuses offsets of former readers, without entries in its row.

A process that will commit offsets in transactions registers in the group's row, and gets a ticket,
a growing number. PREPARE_COMMIT carries the ticket with the offsets; the row of the
transactional.id has a floor for each group, below which its tickets are refused. A successor
registers, raises the floor of every holder it met, finishes what they have decided, and only then
reads the offsets.

The decisions are searched by tests/model/test_tickets.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.errors import OffsetConflictError, UnstableOffsetCommitError
from txnlog.protocol.cooperation import current_generation
from txnlog.protocol.group_metadata import CommittedOffset, Group, Positions, TicketHolder
from txnlog.protocol.groups import GroupOffsets, OffsetsCommit, check_member, without
from txnlog.protocol.metadata import GroupTicket, Holder, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Done, Transition, prepare_abort_ongoing

Partitions = Mapping[str, Collection[int]]


@dataclass(frozen=True, slots=True)
class Registered:
    """The row to write, and the ticket it gives."""

    group: Group
    ticket: int

    @property
    def commit(self) -> OffsetsCommit:
        return OffsetsCommit(operation="REGISTER TICKET", groups=(self.group,))


@dataclass(frozen=True, slots=True)
class MustFence:
    """Nothing to write yet: these holders read the same partitions. Fence and finish them first."""

    holders: tuple[TicketHolder, ...]


def own_holders(group: Group, holder: Holder) -> list[TicketHolder]:
    """The registrations of this run under this producer id."""
    return [one for one in group.tickets.holders if one.is_of(holder)]


def find_ticket(
    group: Group | None,
    holder: Holder,
    *,
    floor: int,
    generation: int,
    member_id: str,
    partitions: Partitions,
) -> int | None:
    """The holder's ticket for offsets of these partitions; None: it must register.

    The group's row may be an old read, and so may the floor: a ticket that was fenced since is
    refused by PREPARE_COMMIT.
    """
    generation = current_generation(group, member_id=member_id, generation=generation)
    if group is None or group.generation != generation:
        return None
    own = [
        one.ticket
        for one in own_holders(group, holder)
        if one.ticket >= floor
        and (one.generation, one.member_id) == (generation, member_id)
        and _covers(one.partitions, partitions)
    ]
    return max(own, default=None)


def with_known(own: Sequence[TicketHolder], request: GroupOffsets) -> Partitions:
    """The partitions of the request, and those of its run's registrations for the same member.

    A producer that commits another partition with each transaction registers a few times only.
    """
    known = {topic: set(ends) for topic, ends in request.end.items()}
    for one in own:
        if (one.generation, one.member_id) == (request.generation, request.member_id):
            for topic, numbers in one.partitions.items():
                known.setdefault(topic, set()).update(numbers)
    return known


def holders_met(group: Group | None, partitions: Partitions | None) -> tuple[TicketHolder, ...]:
    """Who may commit offsets of these partitions (None: of any)."""
    holders = () if group is None else group.tickets.holders
    return tuple(
        one for one in holders if partitions is None or overlap(one.partitions, partitions)
    )


def held_by_others(
    group: Group | None,
    holders: Sequence[TicketHolder],
    *,
    generation: int | None,
    member_id: str,
) -> list[TicketHolder]:
    """Those that registered under another generation, or as another member; none without one.

    A static member that was replaced has the generation of its successor.
    """
    if generation is None:
        return []
    mine = current_generation(group, member_id=member_id, generation=generation), member_id
    return [one for one in holders if (one.generation, one.member_id) != mine]


def prepare_registration(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    holder: Holder,
    partitions: Partitions,
    start: Positions,
    done: Collection[int],
    floor: int = 0,
    now_ms: int,
) -> Registered | MustFence:
    """Register under the generation that another process began, or that a checkpoint names.

    `start` is where the input begins; `floor` that of the holder's own row, for the group: the
    ticket is not below it; `done` are tickets that this write removes, of holders that
    this process has fenced and finished, or its own, if idle. An own one that may have a
    transaction under way stays: others must meet it. Raises IllegalGenerationError,
    UnknownMemberIdError, and OffsetConflictError if the group is past the start.
    """
    row = check_member(
        group,
        group_id=group_id,
        generation=generation,
        member_id=member_id,
        partitions=partitions,
    )
    # First: a run with a stale start must not fence the current reader.
    check_start(row, start)
    others = tuple(
        one
        for one in holders_met(row, partitions)
        if one.ticket not in done and not one.is_of(holder)
    )
    if others:
        return MustFence(others)
    moved = replace(row, tickets=without(row.tickets, done), updated_ms=now_ms)
    return _registered(moved, member_id, holder, partitions, floor=floor)


def prepare_floor(
    row: TransactionMetadata | None,
    *,
    group_id: str,
    holder: TicketHolder,
    partitions: Partitions | None = None,
    by: str,
    now_ms: int,
) -> Transition | Done:
    """Refuse the holder's ticket, and all before it, from now on; then finish what the row says.

    It is written in whatever state the row is, since what is decided next depends on it. An Ongoing
    transaction with offsets of these partitions (None: of any) is aborted by the same write, unless
    a table decides it. Raises UnstableOffsetCommitError if its client has prepared it: only the
    client may end that one.
    """
    if row is None or row.producer_id != holder.producer_id:
        # Read after the group's row: a PREPARE of that producer id is refused for good.
        return Done(row)
    floor = max(row.owner.floors.get(group_id, 0), holder.ticket + 1)
    carried = [
        one for one in row.pending.tickets if one.group_id == group_id and one.ticket < floor
    ]
    is_met = any(partitions is None or overlap(one.offsets, partitions) for one in carried)
    is_held = row.pending.prepared_by_client and carried
    is_open = row.state is TransactionState.ONGOING and row.decider is None
    if is_open and (is_met or is_held):
        if row.pending.prepared_by_client:
            raise UnstableOffsetCommitError(
                f"Group {group_id!r} has offsets in a transaction that the client of "
                f"{row.transactional_id!r} has prepared. Complete it, then start again.",
                group_id=group_id,
            )
        reason = f"group {group_id!r} has another reader"
        return prepare_abort_ongoing(
            row, floors={group_id: floor}, by=by, reason=reason, now_ms=now_ms
        )
    if row.owner.floors.get(group_id, 0) == floor:
        return Done(row)
    owner = replace(row.owner, floors={**row.owner.floors, group_id: floor})
    # That of a prepared row is the time of its decision.
    updated_ms = row.updated_ms if row.is_ending else now_ms
    raised = replace(row, owner=owner, updated_ms=updated_ms)
    return Transition(operation="RAISE FLOOR", previous=row, next=raised)


def is_over(row: TransactionMetadata | None, group_id: str, holder: TicketHolder) -> bool:
    """Whether the holder's ticket is refused for good, and has nothing decided that is not moved.

    Then the group may forget the holder, if the row was read after the group's.
    """
    if row is None or row.producer_id != holder.producer_id:
        return True
    carries = not row.state.is_idle and any(one.group_id == group_id for one in row.pending.tickets)
    is_refused = (
        row.owner.floors.get(group_id, 0) > holder.ticket
        or row.owner.run_id != holder.run_id
        or holder.run_id in row.owner.former_runs
    )
    return is_refused and not carries


def prepare_forget(
    group: Group | None, holder: TicketHolder, *, now_ms: int
) -> OffsetsCommit | None:
    """Drop a holder that `is_over`; None if the row does not have it."""
    if group is None or holder not in group.tickets.holders:
        return None
    kept = without(group.tickets, {holder.ticket})
    put = replace(group, tickets=kept, updated_ms=now_ms)
    return OffsetsCommit(operation="FORGET TICKET", groups=(put,))


def prepare_carried_offsets(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    carried: Sequence[GroupTicket],
    *,
    transaction: ProducerIdAndEpoch,
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """The marker of a decided commit in a shard, with the offsets of all its groups there.

    None if the shard has the marker. No check of the generation: its begin fences all holders.
    """
    producer_id, txn_epoch = transaction
    if markers.get(producer_id, -1) >= txn_epoch:
        return None
    rows = []
    for one in carried:
        row = groups.get(one.group_id) or Group(group_id=one.group_id)
        offsets = {topic: dict(known) for topic, known in row.offsets.items()}
        for topic, partitions in one.offsets.items():
            for partition, offset in partitions.items():
                known = CommittedOffset(offset, one.generation, version)
                offsets.setdefault(topic, {})[partition] = known
        rows.append(replace(row, offsets=offsets, updated_ms=now_ms))
    txns = {producer_id: txn_epoch}
    return OffsetsCommit(operation="WRITE TXN MARKERS", groups=tuple(rows), txns=txns)


def with_unmoved(
    group: Group, rows: Iterable[TransactionMetadata], markers: Mapping[int, int]
) -> Group:
    """The group with the offsets that these rows have decided and not moved.

    The group and the markers of its shard are read after the rows.
    """
    for row in rows:
        moved = prepare_carried_offsets(
            {group.group_id: group},
            markers,
            [one for one in row.moves if one.group_id == group.group_id],
            transaction=row.transaction,
            version=-1,
            now_ms=group.updated_ms,
        )
        if moved is not None and moved.groups:
            [group] = moved.groups
    return group


def _registered(
    group: Group,
    member_id: str,
    holder: Holder,
    partitions: Partitions,
    *,
    floor: int,
) -> Registered:
    tickets = group.tickets
    # A group whose row was lost, or is an old one, gives tickets again.
    ticket = max(tickets.newest + 1, floor)
    mine = TicketHolder(
        transactional_id=holder.transactional_id,
        producer_id=holder.producer_id,
        run_id=holder.run_id,
        ticket=ticket,
        generation=group.generation,
        member_id=member_id,
        partitions={topic: tuple(sorted(numbers)) for topic, numbers in partitions.items()},
    )
    given = replace(tickets, newest=ticket, holders=(*tickets.holders, mine))
    return Registered(replace(group, tickets=given), ticket)


def check_start(group: Group | None, start: Positions) -> None:
    """Raises OffsetConflictError if the group is past it under its generation."""
    if group is None:
        return
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            known = group.offsets.get(topic, {}).get(partition)
            if known is None or known.generation != group.generation:
                continue
            if offset < known.offset:
                raise OffsetConflictError(
                    f"Group {group.group_id!r} is at offset {known.offset} of {topic!r} partition "
                    f"{partition}, past the start {offset} of this run: another one has committed "
                    "this input. Stop one of them, or start a new query with "
                    "startingOffsets=committed and a new checkpointLocation.",
                    group_id=group.group_id,
                    topic=topic,
                    partition=partition,
                )


def _covers(known: Partitions, wanted: Partitions) -> bool:
    return all(set(numbers) <= set(known.get(topic, ())) for topic, numbers in wanted.items())


def overlap(left: Partitions, right: Partitions) -> bool:
    """Whether both name a partition."""
    return any(set(numbers) & set(right.get(topic, ())) for topic, numbers in left.items())
