"""commit.wait=decided: a commit returns once nothing can undo it, a moment before it is visible."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cases import Some
from tests.coordinator.processes import (
    CRASHES,
    ERRORS,
    check_settled,
    outcome_of,
    planned,
    position,
    process,
    recover,
    state_of,
)
from tests.producer.deciding import (
    DAY_MS,
    deciding,
    interrupted,
)
from tests.producer.following import ACTS, commit, next_commit, next_with_offsets
from tests.producer.worlds import (
    BOTH,
    Reports,
    cluster_of,
    producer,
    started,
    values,
    world,
)
from txnlog.cluster import Cluster
from txnlog.errors import (
    ProducerFencedError,
    TxnLogError,
)
from txnlog.producer import Producer
from txnlog.protocol.states import TransactionState

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


@BOTH
def test_commit_returns_before_readers_see_it(publish: str) -> None:
    """Nothing can undo it all the same: another process publishes it, and the id goes on."""
    shared = world()
    made = deciding(shared, publish)
    commit(made, "0", input_offset=10)
    assert state_of(process(shared)) is PREPARE_COMMIT
    assert values(process(shared), "orders") == []
    after = recover(shared)
    assert values(after, "orders") == ["0"]
    assert position(after) == 10
    commit(made, "1")
    made.close()
    assert values(process(shared), "orders") == ["0", "1"]
    check_settled(shared)


@BOTH
def test_its_thread_publishes_it_and_completes_it_when_idle(publish: str) -> None:
    shared = world()
    made = deciding(shared, publish)
    commit(made, "0")
    made.poll()
    assert values(process(shared), "orders") == ["0"]
    assert state_of(process(shared)) is PREPARE_COMMIT
    shared.clock.advance_ms(1_000)
    made.poll()
    assert state_of(process(shared)) is COMPLETE_COMMIT


def begin(made: Producer) -> None:
    made.begin_transaction()


def produce(made: Producer) -> None:
    made.begin_transaction()
    made.produce("orders", "next", partition=0)


def flush(made: Producer) -> None:
    assert made.flush() == 0


def next_empty(made: Producer) -> None:
    made.begin_transaction()
    made.commit_transaction()
    commit(made, "next")


NEXT = pytest.mark.parametrize("act", [*ACTS, next_empty], ids=lambda act: act.__name__)


@pytest.mark.parametrize("act", [flush, next_commit, next_with_offsets, Producer.close])
@BOTH
def test_what_waits_for_it(publish: str, act: Callable[[Producer], None]) -> None:
    """The next commit, flush, close: afterwards readers see what was committed before."""
    shared = world()
    made = deciding(shared, publish)
    commit(made, "first", input_offset=10)
    assert len(made) > 0 or publish == "eager"
    act(made)
    assert values(process(shared), "orders")[:1] == ["first"]


@pytest.mark.parametrize("act", [begin, produce])
def test_what_does_not_wait_for_it(act: Callable[[Producer], None]) -> None:
    """A begin and records of a deferred transaction make no call of the store at all."""
    shared = world()
    made = deciding(shared)
    commit(made, "first", input_offset=10)
    with planned(cluster_of(made), {}) as counted:
        act(made)
    assert counted.calls == 0
    assert values(process(shared), "orders") == []


@NEXT
@BOTH
def test_whatever_comes_next_publishes_first(publish: str, act: Callable[[Producer], None]) -> None:
    shared = world()
    made = deciding(shared, publish)
    commit(made, "first", input_offset=10)
    act(made)
    made.close()
    assert values(process(shared), "orders") == ["first", "next"]
    assert position(process(shared)) == (20 if act is next_with_offsets else 10)
    assert state_of(process(shared)) is COMPLETE_COMMIT
    check_settled(shared)


def calls_of(publish: str, act: Callable[[Producer], None]) -> int:
    """How many calls of the store the second transaction makes, and the publishing of both."""
    made = deciding(world(), publish)
    commit(made, "first", input_offset=10)
    with planned(cluster_of(made), {}) as counted:
        act(made)
        made.flush()
    return counted.calls


@NEXT
@BOTH
def test_crash_or_error_at_any_call_of_the_next_one_loses_nothing(
    publish: str, act: Callable[[Producer], None], some: Some[Any]
) -> None:
    """The first is there once, and the second once, or never if its commit did not return."""
    for at in some(range(calls_of(publish, act))):
        for fault in (*CRASHES, *ERRORS):
            shared = world()
            made = deciding(shared, publish)
            commit(made, "first", input_offset=10)

            def both(made: Producer = made) -> None:
                act(made)
                made.flush()

            with planned(cluster_of(made), {at: fault}):
                outcome = outcome_of(both)
            shared.land_late()
            # What was prepared waits for its owner.
            started(shared, publish)
            after = recover(shared)
            found = values(after, "orders")
            where = f"{fault.name} at call {at}: {outcome}, {found}"
            assert found in (["first"], ["first", "next"]), where
            assert outcome != "done" or "next" in found, where
            assert position(after) in (10, 20), where


def test_deliveries_are_reported_once_readers_see_them() -> None:
    """With the offsets that the marker assigned; an empty transaction between changes nothing."""
    shared = world()
    made = deciding(shared)
    reports = Reports()
    made.begin_transaction()
    for value in ("0", "1"):
        made.produce("orders", value, partition=1, on_delivery=reports)
    made.commit_transaction()
    assert len(made) == 2
    made.begin_transaction()
    made.commit_transaction()
    assert reports.offsets == []
    made.poll()
    assert reports.offsets == [("orders", 1, 0), ("orders", 1, 1)]
    assert len(made) == 0


@BOTH
def test_successor_publishes_it_and_fences_the_producer(publish: str) -> None:
    """The fenced producer hears of it from its publisher, before it decides anything more."""
    shared = world()
    made = deciding(shared, publish)
    commit(made, "first")
    successor = deciding(shared, publish)
    assert values(process(shared), "orders") == ["first"]
    made.begin_transaction()
    # It must read the row again, and finds another owner.
    shared.clock.advance_ms(DAY_MS)
    made.poll()
    for call in (lambda: made.produce("orders", "zombie"), made.commit_transaction):
        with pytest.raises(ProducerFencedError):
            call()
    commit(successor, "next")
    successor.close()
    made.close()
    assert values(process(shared), "orders") == ["first", "next"]
    check_settled(shared)


@BOTH
def test_fenced_producer_commits_nothing_though_no_thread_has_published(publish: str) -> None:
    shared = world()
    made = deciding(shared, publish)
    commit(made, "first")
    successor = deciding(shared, publish)
    with pytest.raises(ProducerFencedError):
        commit(made, "zombie")
    commit(successor, "next")
    successor.close()
    assert values(process(shared), "orders") == ["first", "next"]


@BOTH
def test_repeated_commit_after_an_interrupt_decides_it_once(publish: str) -> None:
    """The interrupt comes when the decision has landed, before the call has returned."""
    shared = world()
    made = deciding(shared, publish)
    made.begin_transaction()
    made.produce("orders", "0", partition=0)
    manager = made._transactions
    assert manager is not None
    end, manager._end = manager._end, interrupted  # type: ignore[method-assign]
    with suppress(KeyboardInterrupt):
        made.commit_transaction()
    manager._end = end  # type: ignore[method-assign]
    made.commit_transaction()
    commit(made, "1")
    made.close()
    assert values(process(shared), "orders") == ["0", "1"]
    check_settled(shared)


@BOTH
def test_epoch_and_producer_id_stay_those_of_visible_commits(publish: str) -> None:
    rows = []
    for wait in ("decided", "visible"):
        shared = world()
        made = started(shared, publish, commit_wait=wait)
        for number in range(5):
            commit(made, f"{number}")
        made.close()
        row = process(shared).coordinator.describe("tx")
        assert row is not None
        rows.append((row.producer_id, row.producer_epoch, row.txn_epoch, row.state))
        assert values(process(shared), "orders") == ["0", "1", "2", "3", "4"]
    assert rows[0] == rows[1]


def test_thread_publishes_and_reports_without_a_call_of_flush() -> None:
    shared = world()
    seen = threading.Event()
    config = {"txnlog.root": "memory://", "transactional.id": "tx", "commit.wait": "decided"}
    with Producer(config, cluster=process(shared)) as made:
        made.init_transactions()
        made.begin_transaction()
        made.produce("orders", "0", partition=0, on_delivery=lambda *_: seen.set())
        made.commit_transaction()
        while not seen.is_set():
            made.poll(60)
        assert values(process(shared), "orders") == ["0"]
        commit(made, "1")
    assert state_of(process(shared)) is COMPLETE_COMMIT
    assert values(process(shared), "orders") == ["0", "1"]


def test_on_a_local_disk_a_commit_is_visible_when_it_returns(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    Cluster.open(root, create=True).create_topic("orders", partitions=1)
    config = {"txnlog.root": root, "transactional.id": "tx", "commit.wait": "decided"}
    with Producer(config) as made:
        made.init_transactions()
        commit(made, "0")
        assert values(Cluster.open(root), "orders") == ["0"]


def test_setting_takes_two_values() -> None:
    with pytest.raises(TxnLogError, match=r"commit\.wait"):
        producer(world(), "tx", commit_wait="complete")
