"""Tickets of several groups, and calls that the model of tickets does not make."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import a_holder, a_ticket
from tests.staged_files import named_file
from txnlog.errors import (
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OffsetConflictError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.group_metadata import CommittedOffset, Group, GroupTickets
from txnlog.protocol.groups import GroupOffsets, prepare_generation
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
    MustFence,
    find_ticket,
    held_by_others,
    holders_met,
    is_over,
    prepare_carried_offsets,
    prepare_floor,
    prepare_forget,
    prepare_registration,
    with_known,
)
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_init,
    prepare_one_off_commit,
)

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
ROW = TransactionMetadata(
    transactional_id="id", producer_id=7, producer_epoch=1, timeout_ms=1, owner=Owner(run_id="run")
)


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


def holder(run: str = "run", name: str = "id") -> Holder:
    return Holder(transactional_id=name, producer_id=7, producer_epoch=1, run_id=run)


def test_offsets_sent_in_several_calls_add_up() -> None:
    """Of several groups, too, and those of the end: else they never move (R45)."""
    row = add(ROW, a_ticket(), a_ticket("h", offsets={"in": {1: 1}}))
    row = add(row, a_ticket(offset=6), a_ticket("h", offsets={"in": {2: 2}}))
    decided = next_of(end(row, manifest=Manifest(tickets=(a_ticket("i"),))))
    assert {one.group_id: one.offsets["in"] for one in decided.pending.tickets} == {
        "g": {0: 6},
        "h": {1: 1, 2: 2},
        "i": {0: 5},
    }


def test_run_that_registers_again_commits_by_its_newest_ticket() -> None:
    """It is for the union of the partitions: the older one may be refused by now."""
    row = add(ROW, a_ticket(number=4))
    for one in (a_ticket(number=3, offset=4), a_ticket(number=5, offsets={"in": {1: 2}})):
        row = add(row, one)
    decided = next_of(end(row, manifest=Manifest(tickets=(a_ticket(number=4, offset=6),))))
    assert decided.moves == (a_ticket(number=5, offsets={"in": {0: 6, 1: 2}}),)


def test_transaction_of_two_generations_of_one_group_is_refused() -> None:
    """Its offsets were read by two readers (R48)."""
    row = add(ROW, a_ticket())
    other = a_ticket(generation=2)
    with pytest.raises(IllegalGenerationError, match="and now of generation 2"):
        add(row, other)
    with pytest.raises(IllegalGenerationError, match="and now of generation 2"):
        end(row, manifest=Manifest(tickets=(other,)))


def test_client_prepares_the_offsets_that_were_sent_before() -> None:
    """A fence then waits for the client, whose offsets they are."""
    row = add(add(ROW, a_ticket()), manifest=Manifest(batches=(named_file(),)))
    assert row.pending.tickets == (a_ticket(),)
    with pytest.raises(UnstableOffsetCommitError):
        prepare_floor(row, group_id="g", holder=a_holder(), by="", now_ms=0)


def test_end_repeated_with_other_offsets_is_refused() -> None:
    """It is another transaction: "done" would lose its offsets (R31)."""
    row = next_of(end(ROW, manifest=Manifest(tickets=(a_ticket(),))))
    again = prepare_end(
        row, holder=ROW.holder, result=COMMIT, manifest=Manifest(tickets=(a_ticket(),)), now_ms=0
    )
    assert again == Done(row)
    renewed = Manifest(tickets=(a_ticket(number=9),))
    assert prepare_end(row, holder=ROW.holder, result=COMMIT, manifest=renewed, now_ms=0) == Done(
        row
    )
    for other in (a_ticket(offset=99), a_ticket(generation=2), a_ticket("h")):
        with pytest.raises(InvalidTxnStateError, match="other offsets"):
            prepare_end(
                row, holder=ROW.holder, result=COMMIT, manifest=Manifest(tickets=(other,)), now_ms=0
            )


def test_ticket_is_worth_nothing_under_another_producer_id() -> None:
    """The id expired, and the same run took it again: its floors are gone with the row (R44)."""
    row = replace(ROW, producer_id=8)
    with pytest.raises(IllegalGenerationError, match="another producer id"):
        end(row, manifest=Manifest(tickets=(a_ticket(),)))
    with pytest.raises(IllegalGenerationError, match="another producer id"):
        add(row, a_ticket())


def test_batch_write_carries_no_offsets() -> None:
    with pytest.raises(InvalidTxnStateError, match="no offsets"):
        prepare_one_off_commit(
            None,
            transactional_id="_batch-1",
            producer_id=7,
            manifest=Manifest(tickets=(a_ticket(),)),
            owner=Owner(),
            now_ms=0,
        )


def test_fence_spares_a_ticket_that_is_not_below_its_floor() -> None:
    """Members with other partitions have one id after another: the newer one is healthy."""
    row = add(ROW, a_ticket(number=5))
    fenced = next_of(prepare_floor(row, group_id="g", holder=a_holder(3), by="", now_ms=0))
    assert (fenced.state, fenced.owner.floors) == (TransactionState.ONGOING, {"g": 4})
    assert next_of(end(fenced, manifest=Manifest())).state is TransactionState.PREPARE_COMMIT


def test_fence_aborts_an_open_transaction_with_offsets() -> None:
    """Its end would be refused anyway; until then no reader could tell a stable offset."""
    fenced = next_of(
        prepare_floor(add(ROW, a_ticket()), group_id="g", holder=a_holder(), by="b", now_ms=0)
    )
    assert fenced.state is TransactionState.PREPARE_ABORT
    assert fenced.owner.floors == {"g": 4}
    assert (fenced.pending.tickets, fenced.moves) == ((a_ticket(),), ())


def init(row: TransactionMetadata, run: str) -> TransactionMetadata:
    return next_of(
        prepare_init(
            row,
            transactional_id="id",
            new_producer_id=-1,
            owner=Owner(run_id=run),
            timeout_ms=1,
            now_ms=0,
        )
    )


def test_floors_go_with_the_run_whose_tickets_they_refuse() -> None:
    """Nobody may use the tickets of a former run; the row of a busy id would grow for ever (R27).

    A run that ends its own open transaction still has those that were fenced.
    """
    row = next_of(prepare_floor(ROW, group_id="g", holder=a_holder(), by="", now_ms=0))
    assert init(row, "another").owner.floors == {}
    again = init(add(row, a_ticket("h")), "run")
    assert (again.state, again.owner.floors) == (TransactionState.PREPARE_ABORT, {"g": 4})
    decided = next_of(end(row, manifest=Manifest()))
    beside = init(decided, "another")
    assert (beside.state, beside.owner.floors) == (TransactionState.PREPARE_COMMIT, {})


def test_floor_never_falls() -> None:
    row = next_of(prepare_floor(ROW, group_id="g", holder=a_holder(8), by="", now_ms=0))
    assert prepare_floor(row, group_id="g", holder=a_holder(3), by="", now_ms=0) == Done(row)


def test_chain_completes_and_decides_in_one_write() -> None:
    first = next_of(end(ROW, manifest=Manifest(tickets=(a_ticket(),))))
    done = next_of(prepare_complete(first, transaction=first.transaction, now_ms=0))
    chained = prepare_end(
        first,
        holder=done.holder,
        result=COMMIT,
        manifest=Manifest(tickets=(a_ticket(offset=6),)),
        follows=first.transaction,
        now_ms=0,
    )
    assert isinstance(chained, Transition)
    assert chained.previous == first
    assert chained.next == next_of(end(done, manifest=Manifest(tickets=(a_ticket(offset=6),))))


def test_chain_follows_the_transaction_that_was_seen_to_land_only() -> None:
    """One that was decided since may have no marker yet (R36)."""
    first = next_of(end(ROW, manifest=Manifest(tickets=(a_ticket(),))))
    done = next_of(prepare_complete(first, transaction=first.transaction, now_ms=0))
    for follows in (ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 1)):
        with pytest.raises(InvalidProducerEpochError):
            prepare_end(
                first,
                holder=done.holder,
                result=COMMIT,
                manifest=Manifest(tickets=(a_ticket(offset=6),)),
                follows=follows,
                now_ms=0,
            )


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_end_without_a_write_gives_the_row_as_it_is_stored(result: TransactionResult) -> None:
    """Nobody has written the COMPLETE of the transaction before."""
    first = next_of(end(ROW, manifest=Manifest(tickets=(a_ticket(),))))
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
        [a_ticket(), a_ticket("h", offset=9)],
        transaction=ProducerIdAndEpoch(7, 1),
        version=2,
        now_ms=0,
    )
    assert moved is not None
    assert {row.group_id: row.positions() for row in moved.groups} == {
        "g": {"in": {0: 5}},
        "h": {"in": {0: 9}},
    }
    assert moved.txns == {7: 1}


def register(group: Group, at: int = 0, **more: Any) -> Any:
    given = {"done": (), "partitions": {"in": (0,)}, "holder": holder(), **more}
    return prepare_registration(
        group,
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
    tickets = GroupTickets(newest=3, holders=(a_holder(run_id="well"),))
    group = Group(group_id="g", generation=1, offsets=offsets, tickets=tickets)
    with pytest.raises(OffsetConflictError):
        register(group, at=3)
    assert register(group, at=5) == MustFence((a_holder(run_id="well"),))
    # What was committed under another generation was there before this run read its start.
    former = replace(group, offsets={"in": {0: CommittedOffset(5, 0, 0)}})
    assert register(former, at=3) == MustFence((a_holder(run_id="well"),))


def test_run_that_registers_again_keeps_what_may_be_under_way() -> None:
    tickets = GroupTickets(newest=3, holders=(a_holder(),))
    group = Group(group_id="g", generation=1, tickets=tickets)
    for more, left in (({}, [3, 4]), ({"done": (3,)}, [4])):
        found = register(group, **more)
        assert [one.ticket for one in found.group.tickets.holders] == left


def test_partitions_of_a_topic_do_not_count_as_offsets() -> None:
    """An open transaction without offsets of the group goes on beside a fence."""
    touched = (TopicPartitions(topic="t", topic_id="t-id", partitions=(0,)),)
    row = next_of(prepare_add_partitions(ROW, holder=ROW.holder, partitions=touched, now_ms=0))
    fenced = next_of(prepare_floor(row, group_id="g", holder=a_holder(), by="", now_ms=0))
    assert fenced.state is TransactionState.ONGOING


HELD = GroupTickets(newest=9, holders=(a_holder(3), a_holder(5, (0, 1)), a_holder(7, (2,))))
WITH_HOLDERS = Group(group_id="g", generation=1, tickets=HELD)


def find(group: Group | None = WITH_HOLDERS, *partitions: int, **more: Any) -> int | None:
    given = {"floor": 0, "generation": 1, "member_id": "", "holder": holder(), **more}
    return find_ticket(group, partitions={"in": partitions}, **given)


def test_run_goes_on_with_its_newest_ticket_for_the_partitions() -> None:
    assert (find(WITH_HOLDERS, 0), find(WITH_HOLDERS, 1), find(WITH_HOLDERS, 2)) == (5, 5, 7)
    assert find(WITH_HOLDERS, 0, floor=5) == 5


@pytest.mark.parametrize(
    "more",
    [
        {"floor": 6},
        {"generation": 2},
        {"member_id": "m"},
        {"holder": holder("another")},
        {"holder": holder(name="other")},
    ],
    ids=str,
)
def test_ticket_of_another_reader_or_below_the_floor_is_not_found(more: dict[str, Any]) -> None:
    """The run must register: others must meet what it reads now (R48)."""
    assert find(WITH_HOLDERS, 0, **more) is None


def test_ticket_for_some_of_the_partitions_is_not_found() -> None:
    """Who reads the others would not meet this run."""
    assert find(WITH_HOLDERS, 0, 2) is None
    assert find(None, 0) is None
    begun = prepare_generation(WITH_HOLDERS, group_id="g", now_ms=0).groups[0]
    assert find(begun, 0) is None
    assert find(begun, 0, generation=2) is None


def test_run_registers_for_the_partitions_that_it_had_and_the_new_ones() -> None:
    """Those of the same generation and member only: others may have the rest by now."""
    own = (a_holder(3, (0,)), a_holder(4, (1,), generation=0), a_holder(5, (2,), member_id="m"))
    request = GroupOffsets(group_id="g", generation=1, start={}, end={"in": {3: 9}, "u": {0: 1}})
    assert with_known(own, request) == {"in": {0, 3}, "u": {0}}


def test_holders_met_are_those_with_one_of_the_partitions() -> None:
    """A starting member must not fence the transactions of all the others (R46)."""
    assert holders_met(None, None) == ()
    assert holders_met(WITH_HOLDERS, None) == HELD.holders
    met = holders_met(WITH_HOLDERS, {"in": (1, 4), "u": (2,)})
    assert [one.ticket for one in met] == [5]
    assert holders_met(WITH_HOLDERS, {"u": (0,)}) == ()


def test_holder_is_over_once_it_can_decide_nothing_and_all_has_moved() -> None:
    """Forgotten before, it commits beside who never met it (R46)."""
    raised = next_of(prepare_floor(ROW, group_id="g", holder=a_holder(), by="", now_ms=0))
    decided = next_of(end(ROW, manifest=Manifest(tickets=(a_ticket(),))))
    fenced = next_of(prepare_floor(decided, group_id="g", holder=a_holder(), by="", now_ms=99))
    assert fenced.updated_ms == decided.updated_ms
    complete = next_of(prepare_complete(fenced, transaction=fenced.transaction, now_ms=0))
    for row, is_it in (
        (None, True),
        (replace(ROW, producer_id=8), True),
        (ROW, False),
        (raised, True),
        (decided, False),
        (fenced, False),
        (complete, True),
    ):
        assert is_over(row, "g", a_holder()) is is_it
    assert not is_over(raised, "h", a_holder())
    assert not is_over(raised, "g", a_holder(4))


def test_holder_of_what_a_client_has_prepared_is_not_over() -> None:
    """Its client may commit it under a new run: forgotten before, the offsets move after another
    reader has read them (R32, R46).
    """
    held = add(ROW, manifest=Manifest(batches=(named_file(),), tickets=(a_ticket(),)))
    kept = next_of(
        prepare_init(
            held,
            transactional_id="id",
            new_producer_id=-1,
            owner=Owner(run_id="next run"),
            timeout_ms=1,
            now_ms=0,
            keep_prepared=True,
        )
    )
    assert (kept.state, kept.owner.run_id) == (TransactionState.ONGOING, "next run")
    assert not is_over(kept, "g", a_holder())


def test_holders_of_a_replaced_member_are_others_in_its_own_generation() -> None:
    """A static member's successor has its generation: it commits what the successor has read."""
    group = Group(group_id="g", generation=2)
    former, mine = (
        a_holder(3, generation=2, member_id="a-1"),
        a_holder(4, generation=2, member_id="a-2"),
    )
    old = a_holder(5, generation=1, member_id="a-2")
    found = held_by_others(group, (former, mine, old), generation=2, member_id="a-2")
    assert found == [former, old]
    assert held_by_others(group, (former, mine, old), generation=None, member_id="") == []


def test_group_forgets_exactly_the_given_holder() -> None:
    """It may have registered again: that one is alive."""
    found = prepare_forget(WITH_HOLDERS, a_holder(5, (0, 1)), now_ms=1)
    assert found is not None
    assert [one.ticket for one in found.groups[0].tickets.holders] == [3, 7]
    assert found.groups[0].tickets.newest == 9
    for group, one in ((None, a_holder()), (WITH_HOLDERS, a_holder(3, run_id="another"))):
        assert prepare_forget(group, one, now_ms=1) is None


def test_marker_is_not_written_again_and_asks_no_generation() -> None:
    """Every late helper would move the group back (R5, R47)."""
    later = {"g": Group(group_id="g", generation=4)}

    def move(markers: dict[int, int]) -> Any:
        return prepare_carried_offsets(
            later, markers, [a_ticket()], transaction=ProducerIdAndEpoch(7, 1), version=2, now_ms=0
        )

    assert move({7: 0, 8: 5}).groups[0].offsets == {"in": {0: CommittedOffset(5, 1, 2)}}
    assert move({7: 1}) is None
    assert move({7: 2}) is None
