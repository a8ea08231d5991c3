"""Offsets that a producer leaves in its row: its next transaction supersedes them (D130)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from spark_source.state_tables import consumer_offsets
from tests.cases import Some
from tests.coordinator.processes import (
    CRASHES,
    ERRORS,
    GROUP,
    check_settled,
    faults,
    outcome_of,
    planned,
    position,
    prepared,
    process,
    recover,
)
from tests.producer.deciding import deciding
from tests.producer.following import commit
from tests.producer.worlds import cluster_of, group, input_at, started, values, world
from txnlog.admin.client import AdminClient
from txnlog.admin.descriptions import ConsumerGroupTopicPartitions
from txnlog.admin.groups import delete_group
from txnlog.errors import (
    GroupAuthorizationError,
    IllegalGenerationError,
    NothingWrittenError,
    OperationTimedOutError,
    ProducerFencedError,
    TransactionAbortableError,
    TxnLogError,
)
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash

MADE = pytest.mark.parametrize("make", [started, deciding], ids=["visible", "decided"])
Make = Callable[[SharedMemory], Producer]


def moved(shared: SharedMemory) -> int:
    """The position in the group's row, whatever a producer has left."""
    found = process(shared).groups.describe(GROUP)
    assert found is not None
    return found.positions().get("input", {}).get(0, 0)


def shown(shared: SharedMemory, is_stable: bool = False) -> int:
    """The position that an operator is shown who may only read."""
    reader = process(shared)
    faults(reader).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    asked = ConsumerGroupTopicPartitions(GROUP, input_at(-1))
    admin = AdminClient({}, cluster=reader)
    [result] = admin.list_consumer_group_offsets([asked], require_stable=is_stable).values()
    [found] = result.result().topic_partitions or ()
    return found.offset


def stable(shared: SharedMemory) -> int:
    return shown(shared, is_stable=True)


def viewed(shared: SharedMemory) -> int:
    """The position in the view of SQL."""
    [offset] = consumer_offsets(process(shared)).column("CurrentOffset").to_pylist()
    return int(offset)


def leaving(shared: SharedMemory, make: Make = started) -> Producer:
    """A producer that has moved offset 10, and left 20."""
    made = make(shared)
    commit(made, "first", input_offset=10)
    made.flush()
    commit(made, "second", input_offset=20)
    made.flush()
    assert (moved(shared), shown(shared)) == (10, 20)
    return made


@MADE
def test_offsets_are_left_to_the_next_transaction_for_a_second_at_most(make: Make) -> None:
    shared = world()
    made = leaving(shared, make)
    for number, expected in [(30, 10), (40, 10), (50, 50), (60, 50)]:
        shared.clock.advance_ms(400)
        commit(made, f"{number}", input_offset=number)
        made.flush()
        assert (moved(shared), shown(shared)) == (expected, number)
    shared.clock.advance_ms(1_000)
    made.poll()
    assert moved(shared) == 60
    check_settled(shared)


@MADE
def test_close_moves_what_is_left(make: Make) -> None:
    shared = world()
    leaving(shared, make).close()
    assert moved(shared) == 20


def without(made: Producer) -> None:
    commit(made, "third")


def of_another_partition(made: Producer) -> None:
    made.begin_transaction()
    made.produce("orders", "third", partition=0)
    made.send_offsets_to_transaction([TopicPartition("input", 1, 7)], group())
    made.commit_transaction()


def of_another_group(made: Producer) -> None:
    other = ConsumerGroupMetadata("other", cluster_of(made).groups.start("other"))
    made.begin_transaction()
    made.produce("orders", "third", partition=0)
    made.send_offsets_to_transaction(input_at(7), other)
    made.commit_transaction()


def aborted(made: Producer) -> None:
    made.begin_transaction()
    made.produce("orders", "gone", partition=0)
    made.send_offsets_to_transaction(input_at(30), group())
    made.abort_transaction()
    commit(made, "third")


@pytest.mark.parametrize("act", [without, of_another_partition, of_another_group, aborted])
def test_transaction_without_them_moves_them_first(act: Callable[[Producer], None]) -> None:
    shared = world()
    made = leaving(shared)
    act(made)
    assert (moved(shared), position(process(shared))) == (20, 20)
    assert values(process(shared), "orders") == ["first", "second", "third"]
    check_settled(shared)


def test_transaction_with_fewer_partitions_moves_the_others_first() -> None:
    """Under the ticket that is for both."""
    shared = world()
    made = started(shared)
    for number in range(3):
        made.begin_transaction()
        positions = [
            TopicPartition("input", 1, number),
            *(input_at(19 + number) if number < 2 else []),
        ]
        made.send_offsets_to_transaction(positions, group())
        made.commit_transaction()
    made.close()
    found = process(shared).groups.describe(GROUP)
    assert found is not None
    assert found.positions() == {"input": {0: 20, 1: 2}}
    assert found.tickets.newest == 1


def superseding(made: Producer) -> None:
    commit(made, "third", input_offset=30)


@pytest.mark.parametrize(
    "act", [superseding, without, of_another_partition, of_another_group, aborted]
)
def test_crash_or_error_at_any_call_of_the_next_one_loses_none(
    act: Callable[[Producer], None], some: Some[Any]
) -> None:
    """What was left is moved, or superseded by what was decided since (R36, R40)."""
    first = leaving(world())
    with planned(cluster_of(first), {}) as counted:
        act(first)
    for at in some(range(counted.calls)):
        for fault in (*CRASHES, *ERRORS):
            shared = world()
            made = leaving(shared)
            with planned(cluster_of(made), {at: fault}):
                outcome = outcome_of(lambda made=made: act(made))  # type: ignore[misc]
            shared.land_late()
            started(shared)
            after = recover(shared)
            found = values(after, "orders")
            where = f"{fault.name} at call {at}: {outcome}, {found}"
            assert found in (["first", "second"], ["first", "second", "third"]), where
            assert outcome != "done" or "third" in found, where
            expected = 30 if act is superseding and "third" in found else 20
            assert position(after) == expected, where


def test_reader_of_a_group_finds_what_a_dead_producer_has_left() -> None:
    """Whoever begins a generation, and whoever only asks."""
    shared = world()
    leaving(shared)
    assert position(process(shared)) == 20
    shared = world()
    leaving(shared)
    process(shared).groups.start(GROUP)
    assert moved(shared) == 20


@pytest.mark.parametrize("generation", [None, 1])
def test_next_decision_takes_nothing_back_from_a_reader_that_it_meets(
    generation: int | None,
) -> None:
    """The offsets that the reader has found are superseded, not moved."""
    is_over, at = False, 0
    while not is_over:
        shared = world()
        made = leaving(shared)
        reader = process(shared)
        is_over, calls = True, itertools.count()

        def meet(verb: str, path: str) -> Fault:
            nonlocal is_over
            if next(calls) == at:  # noqa: B023
                is_over = False
                superseding(made)  # noqa: B023
            return Fault.NONE

        faults(reader).plan = meet
        found = reader.groups.fetch(GROUP, generation)["input"][0]
        assert found in (20, 30), f"{found} with the next decision at call {at}"
        at += 1
    assert at > 10


def test_reader_without_a_generation_needs_no_right_to_write() -> None:
    shared = world()
    leaving(shared)
    reader = process(shared)
    faults(reader).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    assert position(reader) == 20
    assert stable(shared) == 20
    assert moved(shared) == 10


def test_reader_without_a_generation_needs_no_disk_that_takes_writes() -> None:
    """It is mounted read-only, or full."""
    shared = world()
    leaving(shared)
    reader = process(shared)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put":
            raise NothingWrittenError(f"{path}: nothing was written (EROFS)", path=path)
        return Fault.NONE

    faults(reader).plan = plan
    assert position(reader) == 20
    assert moved(shared) == 10


def test_transaction_that_has_left_its_offsets_is_not_pending() -> None:
    """It is shown as complete, so its group has nothing to wait for."""
    shared = world()
    leaving(shared)
    admin = AdminClient({}, cluster=process(shared))
    assert admin.describe_consumer_groups([GROUP])[GROUP].result().pending == []


@pytest.mark.parametrize("ask", [shown, stable])
def test_offset_counts_once_it_is_decided_for_who_may_only_read(
    ask: Callable[[SharedMemory], int],
) -> None:
    """Also before it is visible: it can no longer be undone (R46)."""
    shared = world()
    prepared(shared)
    assert ask(shared) == 10


@pytest.mark.parametrize("ask", [shown, stable, viewed])
def test_offset_does_not_go_back_until_what_superseded_it_is_visible(
    ask: Callable[[SharedMemory], int],
) -> None:
    """The next decision has replaced it in the row, and is in no topic yet."""
    shared = world()
    made = leaving(shared)
    assert ask(shared) == 20
    faults(made._outlet.cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError, match="injected refusal"):
        superseding(made)
    assert moved(shared) == 10
    assert ask(shared) == 30


def test_offsets_that_are_decided_and_not_visible_can_be_deleted() -> None:
    shared = world()
    prepared(shared)
    admin = AdminClient({}, cluster=process(shared))
    asked = ConsumerGroupTopicPartitions(GROUP, input_at(-1))
    [result] = admin.delete_consumer_group_offsets([asked]).values()
    result.result()
    assert position(recover(shared)) == 0


def test_who_may_not_read_the_transaction_log_is_shown_what_is_moved() -> None:
    shared = world()
    leaving(shared)
    reader = process(shared)
    faults(reader).plan = lambda verb, path: (
        Fault.DENY if path.startswith("__transaction_state") else Fault.NONE
    )
    found = reader.groups.committed(GROUP)
    assert found is not None
    assert found.positions() == {"input": {0: 10}}


def test_lost_reply_about_what_was_left_is_no_doubt_about_the_next_commit() -> None:
    """Nothing of the next one was sent: the fence that refuses it is its error."""
    shared = world()
    made = leaving(shared)
    made.begin_transaction()
    made.produce("orders", "third", partition=0)
    is_down = False

    def plan(verb: str, path: str) -> Fault:
        nonlocal is_down
        is_down |= verb == "put" and path.startswith("__consumer_offsets")
        is_met = is_down and path.startswith("__consumer_offsets")
        return Fault.FAIL_BEFORE if is_met else Fault.NONE

    faults(cluster_of(made)).plan = plan
    with pytest.raises(OperationTimedOutError, match="unknown"):
        made.commit_transaction(timeout=1)
    faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE
    started(shared)
    with pytest.raises(ProducerFencedError):
        made.commit_transaction()
    assert values(process(shared), "orders") == ["first", "second"]


def test_refusal_of_what_was_left_says_which_transaction_and_group_it_is_about() -> None:
    """Not the one that is refused: that may be of no group at all."""
    shared = world()
    made = leaving(shared)
    made.begin_transaction()
    made.produce("orders", "third", partition=0)
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("__consumer_offsets") else Fault.NONE
    )
    told = "'tx' before this one is committed.*groups \\('readers'\\).*injected refusal"
    with pytest.raises(TransactionAbortableError, match=told):
        made.commit_transaction()
    with pytest.raises(GroupAuthorizationError, match=told):
        made.abort_transaction()
    faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE
    made.abort_transaction()
    commit(made, "fourth", input_offset=30)
    made.close()
    assert moved(shared) == 30
    check_settled(shared)


def test_thread_that_always_has_something_to_send_moves_what_is_left() -> None:
    shared = world()
    made = leaving(shared)
    made.begin_transaction()
    made.produce("orders", "third", partition=0)
    shared.clock.advance_ms(1_000)
    sender = made._sender
    sender._accumulator.is_full = True
    assert sender.turn()
    assert moved(shared) == 20


def test_offsets_that_are_left_can_be_deleted() -> None:
    """Those of a second group were never moved."""
    shared = world()
    made = started(shared)
    commit(made, "first", input_offset=10)
    other = ConsumerGroupMetadata("other", cluster_of(made).groups.start("other"))
    made.begin_transaction()
    made.send_offsets_to_transaction(input_at(20), group())
    made.send_offsets_to_transaction(input_at(7), other)
    made.commit_transaction()
    admin = AdminClient({}, cluster=process(shared))
    asked = ConsumerGroupTopicPartitions("other", input_at(-1))
    [result] = admin.delete_consumer_group_offsets([asked]).values()
    result.result()
    made.close()
    assert process(shared).groups.fetch("other") == {}
    assert position(process(shared)) == 20


def test_fenced_producer_moves_what_it_has_left_once() -> None:
    """A reset comes after it, and stays, however late the producer ends."""
    shared = world()
    made = leaving(shared)
    process(shared).groups.reset(GROUP, {"input": {0: 3}})
    made.begin_transaction()
    with pytest.raises((IllegalGenerationError, TransactionAbortableError)):
        made.send_offsets_to_transaction(input_at(30), group())
    made.abort_transaction()
    made.close()
    assert (moved(shared), position(process(shared))) == (3, 3)
    check_settled(shared)


@pytest.mark.parametrize("ends", [30, None])
def test_commit_of_a_consumer_counts_until_the_next_decision(ends: int | None) -> None:
    """It was decided after what the producer has left, and before what it commits next (D30)."""
    shared = world()
    made = leaving(shared)
    process(shared).groups.commit(GROUP, 1, {"input": {0: 15}})
    assert (moved(shared), shown(shared)) == (15, 15)
    commit(made, "third", input_offset=ends)
    made.close()
    assert position(process(shared)) == (ends or 15)


def test_two_producers_of_a_group_fence_one_another_and_lose_nothing() -> None:
    """Each registers again, and so moves what it has left before (D107)."""
    shared = world()
    one = leaving(shared)
    two = started(shared, name="two")
    for number in range(3):
        commit(two, f"two-{number}", input_offset=30 + 2 * number)
        assert shown(shared) == 30 + 2 * number
        commit(one, f"one-{number}", input_offset=31 + 2 * number)
        assert shown(shared) == 31 + 2 * number
    one.close()
    two.close()
    assert position(process(shared)) == 35
    check_settled(shared)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("lost", [("offsets",), ("offsets", "tickets")])
def test_offsets_left_to_a_group_that_is_damaged_do_not_come_back_after_its_deletion(
    lost: tuple[str, ...], dies: bool
) -> None:
    """Nor overwrite what it commits next (R47), also if a first try died after one write."""
    shared = world()
    made = leaving(shared)
    log = process(shared).offsets_log(GROUP)
    row = log.view.rows[GROUP]
    damaged = {**row.to_values(), **dict.fromkeys(lost, "{damaged")}
    log.log.commit([row_add(row.path, damaged, size_bytes=1, now_ms=1)], operation="DAMAGE")
    if dies:
        dying = process(shared)
        faults(dying).plan = lambda verb, path: (
            Fault.CRASH_AFTER if verb == "put" and "offsets-" in path else Fault.NONE
        )
        with pytest.raises(SimulatedCrash):
            delete_group(dying, GROUP, by="an operator")
    AdminClient({}, cluster=process(shared)).delete_consumer_groups([GROUP])[GROUP].result()
    groups = process(shared).groups
    groups.commit(GROUP, groups.start(GROUP), {"input": {0: 500}})
    made.close()
    assert position(recover(shared)) == 500
