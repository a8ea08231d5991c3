"""Two-phase commit with an outside database (KIP-939): prepared transactions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases import Some
from tests.faults import Trial, cuts
from tests.producer.worlds import (
    BOTH,
    GROUP,
    Reports,
    cluster_of,
    group,
    input_at,
    producer,
    values,
    world,
)
from tests.world import (
    CRASHES,
    check_settled,
    position,
    process,
    recover,
    state_of,
)
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    InvalidTxnStateError,
    OperationTimedOutError,
    ProducerFencedError,
    UnstableOffsetCommitError,
)
from txnlog.producer import Producer
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault, SharedMemory

DAY_MS = 86_400_000


def prepared(shared: SharedMemory, publish: str) -> tuple[Producer, str]:
    made = producer(shared, "tx", publish, transaction_timeout_ms=60_000)
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "a", partition=0)
    made.send_offsets_to_transaction(input_at(5), group())
    return made, made.prepare_transaction()


@BOTH
def test_prepared_transaction_is_unseen_and_never_times_out(publish: str) -> None:
    """It waits for the decision of the outside database without limit (R29, R32, R46)."""
    shared = world()
    made, state = prepared(shared, publish)
    for _ in range(3):
        sweep_for_a_day(shared)
    assert values(process(shared), "orders") == []
    with pytest.raises(UnstableOffsetCommitError):
        process(shared).groups.fetch(GROUP)
    assert made.complete_transaction(state)
    assert values(process(shared), "orders") == ["a"]
    assert position(process(shared)) == 5
    check_settled(shared)


@BOTH
def test_prepared_transaction_is_committed_however_old_its_files_are(publish: str) -> None:
    """The outside database has committed days ago, which cannot be undone (R72)."""
    shared = world()
    made, state = prepared(shared, publish)
    shared.clock.advance_ms(6 * DAY_MS)
    assert made.complete_transaction(state)
    assert values(process(shared), "orders") == ["a"]
    check_settled(shared)


def sweep_for_a_day(shared: SharedMemory) -> None:
    sweeper = Sweeper(process(shared))
    sweeper.sweep_if_due()
    shared.clock.advance_ms(DAY_MS // 4)
    sweeper.sweep_if_due()


@BOTH
@pytest.mark.parametrize("kept", ["the same", "another", None])
def test_successor_commits_the_state_in_the_database_and_aborts_others(
    publish: str, kept: str | None
) -> None:
    """After a crash between the two phases the state in the database decides (KIP-939)."""
    shared = world()
    dead, state = prepared(shared, publish)
    successor = producer(shared, "tx", publish)
    successor.init_transactions(keep_prepared=True)
    assert successor.prepared_state == state
    with pytest.raises(InvalidTxnStateError, match="complete_transaction"):
        successor.begin_transaction()
    answer = {"the same": state, "another": "0:77", None: None}[kept]
    assert successor.complete_transaction(answer) is (kept == "the same")
    assert values(process(shared), "orders") == (["a"] if kept == "the same" else [])
    assert position(process(shared)) == (5 if kept == "the same" else 0)
    if kept == "the same":
        # The transaction was committed, as asked; but the id has another owner.
        assert dead.complete_transaction(state)
        with pytest.raises(ProducerFencedError):
            dead.begin_transaction()
    else:
        with pytest.raises(ProducerFencedError):
            dead.complete_transaction(state)
    with successor.transaction():
        successor.produce("orders", "next", partition=0)
    assert values(process(shared), "orders")[-1] == "next"
    check_settled(shared)


@BOTH
def test_successor_of_a_successor_keeps_the_same_state(publish: str) -> None:
    """Each successor fences the one before, and none changes the prepared state (R10, R28)."""
    shared = world()
    _, state = prepared(shared, publish)
    successors = []
    for _ in range(3):
        successors.append(producer(shared, "tx", publish))
        successors[-1].init_transactions(keep_prepared=True)
        assert successors[-1].prepared_state == state
    epochs = [successor._transactions.session.row.producer_epoch for successor in successors]
    assert sorted(set(epochs)) == epochs
    with pytest.raises(ProducerFencedError):
        successors[0].complete_transaction(state)
    assert successors[-1].complete_transaction(state)
    assert values(process(shared), "orders") == ["a"]
    check_settled(shared)


@BOTH
def test_successor_without_keep_prepared_aborts_the_prepared_transaction(publish: str) -> None:
    """init_transactions() ends every transaction of the former owner (R27)."""
    shared = world()
    prepared(shared, publish)
    successor = producer(shared, "tx", publish)
    successor.init_transactions()
    assert successor.prepared_state is None
    assert values(process(shared), "orders") == []
    assert state_of(process(shared)) is TransactionState.COMPLETE_ABORT or recover(shared)
    check_settled(shared)


def test_keep_prepared_without_anything_prepared_is_ready() -> None:
    """An open transaction that was not prepared is aborted nevertheless (R27)."""
    shared = world()
    made = producer(shared, "tx", "eager")
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "open")
    made.flush()
    successor = producer(shared, "tx", "eager")
    successor.init_transactions(keep_prepared=True)
    with successor.transaction():
        successor.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]


@BOTH
def test_nothing_is_added_to_a_prepared_transaction(publish: str) -> None:
    """The commit publishes exactly what was prepared (R39)."""
    shared = world()
    made, _ = prepared(shared, publish)
    for call in (
        lambda: made.produce("orders", "b"),
        lambda: made.send_offsets_to_transaction(input_at(9), group()),
        made.prepare_transaction,
    ):
        with pytest.raises(InvalidTxnStateError, match="complete_transaction"):
            call()
    made.commit_transaction()
    assert values(process(shared), "orders") == ["a"]


@BOTH
def test_complete_after_an_abort_that_timed_out_does_not_report_a_commit(publish: str) -> None:
    """Once an abort has begun only that may be repeated, whatever the database holds (R41)."""
    shared = world()
    made, state = prepared(shared, publish)
    store = cluster_of(made).store
    store.plan = lambda verb, path: Fault.FAIL_BEFORE
    with pytest.raises(OperationTimedOutError):
        made.abort_transaction(timeout=5)
    store.plan = lambda verb, path: Fault.NONE
    assert made.complete_transaction(state) is False
    assert values(process(shared), "orders") == []
    check_settled(shared)


@BOTH
def test_closing_keeps_a_prepared_transaction(publish: str) -> None:
    """The prepared transaction outlives its process."""
    shared = world()
    made, state = prepared(shared, publish)
    made.close()
    successor = producer(shared, "tx", publish)
    successor.init_transactions(keep_prepared=True)
    assert successor.complete_transaction(state)
    assert values(process(shared), "orders") == ["a"]


def test_block_that_prepares_is_left_prepared() -> None:
    """`with producer.transaction()` does not commit a prepared transaction."""
    shared = world()
    made, reports = producer(shared, "tx"), Reports()
    made.init_transactions()
    with made.transaction():
        made.produce("orders", "a", on_delivery=reports)
        state = made.prepare_transaction()
    assert made.prepared_state == state
    made.complete_transaction(state)
    made.poll()
    assert len(reports.offsets) == 1


@BOTH
def test_prepared_transaction_has_its_offsets_whatever_write_its_owner_died_at(
    publish: str, some: Some[Any]
) -> None:
    """A prepared row means that all can be published, so it has the offsets, too: else
    the database's commit publishes the output, and the input is read again (R45, R36).
    """

    def opened(shared: SharedMemory) -> Producer:
        made = producer(shared, "tx", publish)
        made.init_transactions()
        made.begin_transaction()
        made.produce("orders", "a", partition=0)
        made.send_offsets_to_transaction(input_at(5), group())
        return made

    def begin() -> Trial:
        shared = world()
        made = opened(shared)
        return Trial(shared, cluster_of(made), made.prepare_transaction)

    kept = 0
    for trial in cuts(begin, some, CRASHES):
        assert trial.outcome == "crashed"
        successor = producer(trial.shared, "tx", publish)
        successor.init_transactions(keep_prepared=True)
        state = successor.prepared_state
        if state is not None:
            kept += 1
            assert successor.complete_transaction(state)
        after = process(trial.shared)
        assert position(after) == (0 if state is None else 5)
        assert values(after, "orders") == ([] if state is None else ["a"])
    assert kept >= 1
