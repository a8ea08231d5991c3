"""Aborting and fencing from outside (R43), and the errors of the owners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.admin.worlds import admin, partition_of, query
from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts, meetings
from tests.world import (
    both,
    check_settled,
    consumed,
    eager,
    outcome_of,
    owned,
    position,
    prepared,
    process,
    recover,
    row_of,
    state_of,
    visible,
    world,
)
from txnlog.admin import AbortTransactionSpec
from txnlog.cluster import Cluster
from txnlog.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.metadata import LastBatch, Owner
from txnlog.protocol.states import TransactionState
from txnlog.testing.invariants import check_cluster

ENDED = (ProducerFencedError, InvalidTxnStateError)


# --- Aborting and fencing -------------------------------------------------------------------------


def test_owner_of_an_aborted_transaction_gets_an_error_with_operator_and_reason() -> None:
    """Its data is aborted, its owner fenced; the next owner continues (R43, R44)."""
    shared = world()
    owner = process(shared)
    row = eager(owner, owned(owner, "first"), "x", offsets=[consumed(0, 10)])
    admin(process(shared)).abort_transaction("tx", reason="it hung").result()
    after = process(shared)
    check_cluster(after, settled=True)
    assert visible(after, "x") == (False, False)
    assert state_of(after) is TransactionState.COMPLETE_ABORT
    for act in (
        lambda: owner.coordinator.commit(row),
        lambda: eager(owner, row, "xx"),
        lambda: owned(owner, "first"),
    ):
        with pytest.raises(ENDED, match="it hung"):
            act()
    heir = owned(process(shared), "second")
    after.coordinator.commit(heir, both(after, "y"), offsets=[consumed(0, 10)])
    assert position(after) == 10


def test_abort_of_a_decided_commit_finishes_it_and_raises() -> None:
    """After PREPARE only one result is possible (R31, R36)."""
    shared = world()
    prepared(shared)
    client = admin(process(shared))
    with pytest.raises(InvalidTxnStateError, match="decided as a commit"):
        client.abort_transaction("tx").result()
    after = process(shared)
    check_cluster(after, settled=True)
    assert visible(after, "mine") == (True, True)
    with pytest.raises(TransactionalIdNotFoundError):
        client.abort_transaction("nothing").result()


@pytest.mark.parametrize("way", ["fence", "abort"])
def test_fenced_spark_query_is_fenced_in_every_worker(way: str) -> None:
    """A new commit worker of the run must not adopt the higher epoch (R43)."""
    shared = world()
    driver = process(shared)
    row = query(driver, "run-1")
    row = driver.coordinator.commit(row, both(driver, "x"), last_batch=LastBatch(batch_id=0))
    client = admin(process(shared))
    if way == "fence":
        fenced = client.fence_producers(["tx"])["tx"].result()
        assert fenced.producer_epoch > row.producer_epoch
        assert fenced.producer_id == row.producer_id
    else:
        client.abort_transaction("tx").result()
    with pytest.raises(ProducerFencedError, match="operator.*start it again"):
        driver.coordinator.commit(row, both(driver, "y"), last_batch=LastBatch(batch_id=1))
    with pytest.raises(ProducerFencedError, match="operator"):
        query(process(shared), "run-1")
    restarted = query(process(shared), "run-2")
    assert restarted.owner.last_batch == LastBatch(batch_id=0)
    process(shared).coordinator.commit(restarted, both(driver, "z"))
    assert visible(process(shared), "y") == (False, False)
    assert visible(process(shared), "z") == (True, True)


def committing() -> Trial:
    shared = world()
    cluster = process(shared)
    row = query(cluster, "run-1")
    commit = partial(cluster.coordinator.commit, row, both(cluster, "x"))
    return Trial(shared, cluster, partial(commit, offsets=[consumed(0, 10)]))


@pytest.mark.parametrize("way", ["fence", "abort"])
def test_fence_at_any_call_of_a_deferred_commit_is_all_or_nothing(
    way: str, some: Some[Any]
) -> None:
    """The transaction commits completely or its owner gets an error; the run is fenced (R43)."""

    def meanwhile(trial: Trial) -> None:
        client = admin(process(trial.shared))
        if way == "fence":
            client.fence_producers(["tx"])["tx"].result()
        else:
            client.abort_transaction("tx").exception()

    results = set()
    for trial in meetings(committing, meanwhile, some):
        after = recover(trial.shared)
        seen = visible(after, "x")
        assert seen in ((True, True), (False, False))
        assert position(after) == (10 if seen[0] else 0)
        assert (trial.outcome == "done") <= seen[0]
        if way == "fence":
            with pytest.raises(ProducerFencedError):
                query(process(trial.shared), "run-1")
        results.add(seen[0])
    assert results == {True, False}


def test_fence_of_a_query_that_committed_in_between_still_fences_it(some: Some[Any]) -> None:
    """Fencing by the epoch that was read would miss a run with a newer epoch (R43)."""

    def begin() -> Trial:
        shared = world()
        driver, operator = process(shared), process(shared)
        rows = [query(driver, "run-1")]
        return Trial(shared, operator, partial(_fence, operator), more=(driver, rows))

    def commit(trial: Trial) -> None:
        driver, rows = trial.more
        with suppress(ProducerFencedError):
            rows.append(driver.coordinator.commit(rows[-1], both(driver, "x")))

    for trial in meetings(begin, commit, some):
        assert trial.outcome == "done"
        driver, rows = trial.more
        with pytest.raises(ProducerFencedError):
            driver.coordinator.commit(rows[-1], both(driver, "y"))
        check_settled(trial.shared)


def test_fence_ends_a_transaction_that_has_sent_offsets() -> None:
    """A fenced owner must not block its group until a time-out (R46)."""
    shared = world()
    owner = process(shared)
    owner.coordinator.add_partitions(owned(owner, "first"), offsets=[consumed(0, 10)])
    with pytest.raises(UnstableOffsetCommitError):
        position(process(shared))
    admin(process(shared)).fence_producers(["tx"])["tx"].result()
    assert position(process(shared)) == 0


def _fence(cluster: Cluster) -> None:
    admin(cluster).fence_producers(["tx"])["tx"].result()


def _abort(cluster: Cluster) -> None:
    admin(cluster).abort_transaction("tx").result()


def _abort_spec(cluster: Cluster) -> None:
    row = row_of(cluster)
    spec = AbortTransactionSpec(
        topic_partition=partition_of(cluster), producer_id=row.producer_id, producer_epoch=0
    )
    admin(cluster).abort_transaction(spec).result()


@pytest.mark.parametrize("act", [_fence, _abort, _abort_spec])
def test_abort_or_fence_that_crashes_at_any_call_is_finished_by_others(
    act: Callable[[Cluster], None], some: Some[Any]
) -> None:
    """If the operator's process dies, the next sweeper finishes with the same result (R36)."""

    def begin() -> Trial:
        shared = world()
        owner = process(shared)
        row = eager(owner, owned(owner, "first"), "x", offsets=[consumed(0, 10)])
        cluster = process(shared)
        return Trial(shared, cluster, partial(act, cluster), more=row)

    for trial in cuts(begin, some):
        assert trial.outcome in ("done", "crashed", *RETRIABLE)
        again = trial.again()
        assert again in ("done", "crashed") or (act, again) == (_abort_spec, "InvalidTxnStateError")
        after = recover(trial.shared)
        assert visible(after, "x") == (False, False)
        assert position(after) == 0
        if trial.outcome == "done":
            with pytest.raises(ENDED, match="operator"):
                process(trial.shared).coordinator.commit(trial.more)


def test_abort_by_spec_ends_a_prepared_transaction_that_a_new_owner_has_kept() -> None:
    """Its data has a former epoch: a marker alone would split what can still commit (R36)."""
    shared = world()
    owner = process(shared)
    row = owner.coordinator.prepare(eager(owner, owned(owner, "first"), "x"))
    kept = process(shared).coordinator.init_producer_id(
        "tx", Owner(run_id="second"), keep_prepared=True
    )
    assert kept.producer_epoch > kept.txn_epoch == row.txn_epoch
    spec = AbortTransactionSpec(
        topic_partition=partition_of(owner), producer_id=row.producer_id, producer_epoch=0
    )
    admin(process(shared)).abort_transaction(spec).result()
    assert outcome_of(lambda: process(shared).coordinator.commit(kept)) == "ProducerFencedError"
    assert visible(process(shared), "x") == (False, False)
    check_settled(shared)
