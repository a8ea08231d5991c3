"""Tickets of several groups, and calls that the model of tickets does not make."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.staged_files import named_file
from txnlog.errors import (
    IllegalGenerationError,
    InvalidTxnStateError,
    OffsetConflictError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.group_metadata import CommittedOffset, Group
from txnlog.protocol.metadata import (
    GroupTicket,
    Holder,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import (
    GroupTickets,
    MustFence,
    TicketHolder,
    prepare_carried_offsets,
    prepare_floor,
    prepare_registration,
    prepare_start,
)
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_one_off_commit,
)

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
ROW = TransactionMetadata(
    transactional_id="id", producer_id=7, producer_epoch=1, timeout_ms=1, owner=Owner(run_id="run")
)


def ticket(group: str = "g", number: int = 3, offset: int = 5, **more: Any) -> GroupTicket:
    given = {"producer_id": 7, "generation": 1, "offsets": {"in": {0: offset}}, **more}
    return GroupTicket(group_id=group, ticket=number, **given)


def next_of(decision: Transition | Done) -> TransactionMetadata:
    assert isinstance(decision, Transition)
    return decision.next


def add(row: TransactionMetadata, *tickets: GroupTicket, **more: Any) -> TransactionMetadata:
    return next_of(
        prepare_add_partitions(row, holder=row.holder, tickets=tickets, now_ms=0, **more)
    )


def end(
    row: TransactionMetadata, result: TransactionResult = COMMIT, **more: Any
) -> Transition | Done:
    return prepare_end(row, holder=row.holder, result=result, now_ms=0, **more)


def held(*, partitions: tuple[int, ...] = (0,), number: int = 3, run: str = "run") -> TicketHolder:
    return TicketHolder(
        transactional_id="id",
        producer_id=7,
        run_id=run,
        ticket=number,
        generation=1,
        partitions={"in": partitions},
    )


def holder(run: str = "run", name: str = "id") -> Holder:
    return Holder(transactional_id=name, producer_id=7, producer_epoch=1, run_id=run)


def test_offsets_sent_in_several_calls_add_up() -> None:
    """Of several groups, too, and those of the end: else they never move (R45)."""
    row = add(ROW, ticket(), ticket("h", offsets={"in": {1: 1}}))
    row = add(row, ticket(offset=6), ticket("h", offsets={"in": {2: 2}}))
    decided = next_of(end(row, manifest=Manifest(tickets=(ticket("i"),))))
    assert {one.group_id: one.offsets["in"] for one in decided.pending.tickets} == {
        "g": {0: 6},
        "h": {1: 1, 2: 2},
        "i": {0: 5},
    }


def test_transaction_of_two_tickets_of_one_group_is_refused() -> None:
    row = add(ROW, ticket())
    for other in (ticket(number=4), ticket(generation=2)):
        with pytest.raises(IllegalGenerationError, match="and now with ticket"):
            add(row, other)
        with pytest.raises(IllegalGenerationError, match="and now with ticket"):
            end(row, manifest=Manifest(tickets=(other,)))


def test_client_prepares_the_offsets_that_were_sent_before() -> None:
    """A fence then waits for the client, whose offsets they are."""
    row = add(add(ROW, ticket()), manifest=Manifest(batches=(named_file(),)))
    assert row.pending.tickets == (ticket(),)
    with pytest.raises(UnstableOffsetCommitError):
        prepare_floor(row, group_id="g", holder=held(), by="", now_ms=0)


def test_end_repeated_with_other_offsets_is_refused() -> None:
    """It is another transaction: "done" would lose its offsets (R31)."""
    row = next_of(end(ROW, manifest=Manifest(tickets=(ticket(),))))
    again = prepare_end(
        row, holder=ROW.holder, result=COMMIT, manifest=Manifest(tickets=(ticket(),)), now_ms=0
    )
    assert again == Done(row)
    for other in (ticket(offset=99), ticket(number=9), ticket("h")):
        with pytest.raises(InvalidTxnStateError, match="other offsets"):
            prepare_end(
                row, holder=ROW.holder, result=COMMIT, manifest=Manifest(tickets=(other,)), now_ms=0
            )


def test_ticket_is_worth_nothing_under_another_producer_id() -> None:
    """The id expired, and the same run took it again: its floors are gone with the row (R44)."""
    row = replace(ROW, producer_id=8)
    with pytest.raises(IllegalGenerationError, match="another producer id"):
        end(row, manifest=Manifest(tickets=(ticket(),)))
    with pytest.raises(IllegalGenerationError, match="another producer id"):
        add(row, ticket())


def test_batch_write_carries_no_offsets() -> None:
    with pytest.raises(InvalidTxnStateError, match="no offsets"):
        prepare_one_off_commit(
            None,
            transactional_id="_batch-1",
            producer_id=7,
            manifest=Manifest(tickets=(ticket(),)),
            owner=Owner(),
            now_ms=0,
        )


def test_fence_spares_a_ticket_that_is_not_below_its_floor() -> None:
    """Members with other partitions have one id after another: the newer one is healthy."""
    row = add(ROW, ticket(number=5))
    fenced = next_of(prepare_floor(row, group_id="g", holder=held(number=3), by="", now_ms=0))
    assert (fenced.state, fenced.owner.floors) == (TransactionState.ONGOING, {"g": 4})
    assert next_of(end(fenced, manifest=Manifest())).state is TransactionState.PREPARE_COMMIT


def test_fence_aborts_an_open_transaction_with_offsets() -> None:
    """Its end would be refused anyway; until then no reader could tell a stable offset."""
    fenced = next_of(
        prepare_floor(add(ROW, ticket()), group_id="g", holder=held(), by="b", now_ms=0)
    )
    assert fenced.state is TransactionState.PREPARE_ABORT
    assert fenced.owner.floors == {"g": 4}
    assert fenced.pending.tickets == (ticket(),)


def test_floor_never_falls() -> None:
    row = next_of(prepare_floor(ROW, group_id="g", holder=held(number=8), by="", now_ms=0))
    assert prepare_floor(row, group_id="g", holder=held(number=3), by="", now_ms=0) == Done(row)


def test_chain_completes_and_decides_in_one_write() -> None:
    first = next_of(end(ROW, manifest=Manifest(tickets=(ticket(),))))
    done = next_of(prepare_complete(first, transaction=first.transaction, now_ms=0))
    chained = prepare_end(
        first,
        holder=done.holder,
        result=COMMIT,
        manifest=Manifest(tickets=(ticket(offset=6),)),
        follows=first.transaction,
        now_ms=0,
    )
    assert isinstance(chained, Transition)
    assert chained.previous == first
    assert chained.next == next_of(end(done, manifest=Manifest(tickets=(ticket(offset=6),))))


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_end_without_a_write_gives_the_row_as_it_is_stored(result: TransactionResult) -> None:
    """Nobody has written the COMPLETE of the transaction before."""
    first = next_of(end(ROW, manifest=Manifest(tickets=(ticket(),))))
    done = next_of(prepare_complete(first, transaction=first.transaction, now_ms=0))
    ended = prepare_end(
        first, holder=done.holder, result=result, follows=first.transaction, now_ms=0
    )
    assert ended == Done(first)


def test_marker_of_a_shard_moves_the_offsets_of_all_its_groups() -> None:
    """One marker per shard and producer id: a second write would find it there (R45)."""
    groups = {"g": Group(group_id="g", generation=1)}
    moved = prepare_carried_offsets(
        groups,
        {},
        [ticket(), ticket("h", offset=9)],
        transaction=ProducerIdAndEpoch(7, 1),
        result=COMMIT,
        version=2,
        now_ms=0,
    )
    assert moved is not None
    assert {row.group_id: row.positions() for row in moved.groups} == {
        "g": {"in": {0: 5}},
        "h": {"in": {0: 9}},
    }
    assert moved.txns == {7: 1}


def register(group: Group, tickets: GroupTickets, at: int = 0, **more: Any) -> Any:
    given = {"done": (), "partitions": {"in": (0,)}, "holder": holder(), **more}
    return prepare_registration(
        group,
        tickets,
        group_id="g",
        generation=1,
        member_id="",
        start={"in": {0: at}},
        now_ms=0,
        **given,
    )


def test_run_that_starts_behind_the_group_fences_nobody() -> None:
    """A stale copy of a checkpoint must not stop the query that is well."""
    offsets = {"in": {0: CommittedOffset(5, 1, 0)}}
    group = Group(group_id="g", generation=1, offsets=offsets)
    tickets = GroupTickets(newest=3, holders=(held(run="well"),))
    with pytest.raises(OffsetConflictError):
        register(group, tickets, at=3)
    assert register(group, tickets, at=5) == MustFence((held(run="well"),))


def test_run_that_registers_again_keeps_what_may_be_under_way() -> None:
    group, tickets = Group(group_id="g", generation=1), GroupTickets(newest=3, holders=(held(),))
    for more, left in (({}, [3, 4]), ({"done": (3,)}, [4])):
        found = register(group, tickets, **more)
        assert [one.ticket for one in found.tickets.holders] == left
    begun = prepare_start(
        group, tickets, group_id="g", holder=holder(), partitions={"in": (0,)}, now_ms=0
    )
    assert (begun.to_fence, begun.ticket) == ((held(),), 4)


def test_partitions_of_a_topic_do_not_count_as_offsets() -> None:
    """An open transaction without offsets of the group goes on beside a fence."""
    touched = (TopicPartitions(topic="t", topic_id="t-id", partitions=(0,)),)
    row = next_of(prepare_add_partitions(ROW, holder=ROW.holder, partitions=touched, now_ms=0))
    fenced = next_of(prepare_floor(row, group_id="g", holder=held(), by="", now_ms=0))
    assert fenced.state is TransactionState.ONGOING
