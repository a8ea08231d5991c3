"""COMPLETE of a producer's commit comes with its next one, on a store where a round takes time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import Trial, cuts
from tests.producer.following import NEXT, commit, next_with_offsets
from tests.producer.worlds import BOTH, cluster_of, started, values, world
from tests.world import (
    check_settled,
    faults,
    position,
    process,
    recover,
    row_of,
    state_of,
)
from txnlog.admin.client import AdminClient
from txnlog.errors import ProducerFencedError, TxnLogError
from txnlog.producer import Producer
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


@BOTH
def test_committed_transaction_is_visible_before_it_is_complete(publish: str) -> None:
    """Its epoch is that of the next one all the same; close() completes it."""
    shared = world()
    made = started(shared, publish)
    for number in range(3):
        commit(made, f"{number}")
        assert state_of(process(shared)) is PREPARE_COMMIT
    assert values(process(shared), "orders") == ["0", "1", "2"]
    commit(made, "3")
    made.close()
    assert state_of(process(shared)) is COMPLETE_COMMIT
    assert values(process(shared), "orders") == ["0", "1", "2", "3"]
    check_settled(shared)


def test_next_decision_completes_the_transaction_before_in_the_same_write() -> None:
    """A write less per transaction, and the transaction log has both (D103)."""
    shared = world()
    made = started(shared, "deferred")
    shard = process(shared).shard_for("tx")
    shard.refresh()
    before = shard.log.version
    for number in range(4):
        commit(made, f"{number}")
    shard.refresh()
    assert shard.log.version - before == 4
    row = row_of(process(shared))
    assert (row.state, row.txn_epoch) == (PREPARE_COMMIT, 3)
    made.close()
    assert values(process(shared), "orders") == ["0", "1", "2", "3"]
    check_settled(shared)


def test_operators_see_a_published_transaction_as_committed() -> None:
    """Its COMPLETE may come an hour later, with the next one; a decided one is still under way."""
    shared = world()
    made = started(shared, "deferred")
    commit(made, "0", input_offset=10)
    admin = AdminClient({}, cluster=process(shared))
    [listed] = admin.list_transactions().result()
    described = admin.describe_transactions(["tx"])["tx"].result()
    assert state_of(process(shared)) is PREPARE_COMMIT
    assert listed.state is described.state is COMPLETE_COMMIT
    assert (described.topic_partitions, described.groups) == ([], ())
    assert admin.list_transactions(states=[PREPARE_COMMIT]).result() == []
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError):
        commit(made, "unpublished", input_offset=20)
    [listed] = admin.list_transactions().result()
    assert listed.state is PREPARE_COMMIT
    faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE
    made.commit_transaction()


@NEXT
@BOTH
def test_whatever_comes_next_completes_first(publish: str, act: Callable[[Producer], None]) -> None:
    shared = world()
    made = started(shared, publish)
    commit(made, "first", input_offset=10)
    act(made)
    made.close()
    assert values(process(shared), "orders") == ["first", "next"]
    assert position(process(shared)) == (20 if act is next_with_offsets else 10)
    check_settled(shared)


@NEXT
@BOTH
def test_crash_or_error_at_any_call_of_the_next_one_changes_nothing_of_the_first(
    publish: str, act: Callable[[Producer], None], some: Some[Any]
) -> None:
    """The first is there once, and the second once, or never if its process died (R36, R40)."""

    def begin() -> Trial:
        shared = world()
        made = started(shared, publish)
        commit(made, "first", input_offset=10)
        return Trial(shared, cluster_of(made), partial(act, made))

    for trial in cuts(begin, some):
        # What was prepared waits for its owner.
        started(trial.shared, publish)
        after = recover(trial.shared)
        found = values(after, "orders")
        assert found in (["first"], ["first", "next"])
        assert trial.outcome != "done" or "next" in found
        assert position(after) in (10, 20)


@BOTH
def test_store_that_refuses_to_complete_loses_nothing(publish: str) -> None:
    """Whoever comes next does it."""
    shared = world()
    made = started(shared, publish)
    commit(made, "first")
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("__transaction_state") else Fault.NONE
    )
    made.close()
    assert state_of(process(shared)) is PREPARE_COMMIT
    commit(started(shared, publish), "next")
    assert values(process(shared), "orders") == ["first", "next"]


@BOTH
def test_transaction_that_a_sweeper_completed_is_followed_by_the_next(publish: str) -> None:
    shared = world()
    made = started(shared, publish)
    commit(made, "first")
    recover(shared)
    commit(made, "next")
    assert values(process(shared), "orders") == ["first", "next"]


@BOTH
def test_producer_fenced_before_it_completed_decides_nothing_more(publish: str) -> None:
    """Its successor has completed, and taken the epoch that COMPLETE began (R27, R44)."""
    shared = world()
    made = started(shared, publish)
    commit(made, "first")
    successor = started(shared, publish)
    with pytest.raises(ProducerFencedError):
        commit(made, "zombie")
    commit(successor, "next")
    assert values(process(shared), "orders") == ["first", "next"]
    made.close()
    check_settled(shared)


def test_close_without_time_succeeds_when_nothing_is_left() -> None:
    """Although its thread holds the lock, for a sweep."""
    made = started(world())
    commit(made, "0")
    made.flush()
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with made._sender.io:
            held.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    threading.Timer(0.1, may_end.set).start()
    made.close(0)
    thread.join()
