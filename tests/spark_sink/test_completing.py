"""COMPLETE of a micro-batch, which the sink leaves to a thread where a round takes time."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from spark_sink import commit as sink
from spark_sink.messages import StagedTask
from spark_sink.source_offsets import PlannedBatch
from tests.cases import Some
from tests.coordinator.processes import (
    CRASHES,
    ERRORS,
    GROUP,
    check_settled,
    consumed,
    outcome_of,
    planned,
    position,
    process,
    recover,
    staged,
    state_of,
    world,
)
from txnlog import cluster as cluster_module
from txnlog.cluster import Cluster
from txnlog.coordinator.history import CommittedTransactions
from txnlog.coordinator.phases import Phases
from txnlog.process import afterwards
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.settings.options import parse_options
from txnlog.testing.invariants import read_committed

QUERY = "query"
OPTIONS = parse_options({"path": "/memory", "topic": "orders", "group.id": GROUP}, "writeStream")
PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch n reads offsets 10 n to 10 n + 10."""

    def offsets(options: Any, cluster: Any, planned: PlannedBatch, **_: Any) -> list[Any]:
        return [consumed(planned.batch_id * 10, planned.batch_id * 10 + 10)]

    monkeypatch.setattr(afterwards, "PATIENCE_S", 600)
    monkeypatch.setattr(sink, "group_offsets", offsets)
    monkeypatch.setattr(sink, "planned_batch", lambda _, number: PlannedBatch(number))


def publish(cluster: Cluster, batch_id: int, run: str = "run") -> TransactionMetadata | None:
    """Commit a micro-batch as far as Spark waits for it."""
    batch = staged(cluster, "orders", f"{batch_id}")
    task = StagedTask(0, (batch,), QUERY, run, batch_id)
    return sink.commit_once(cluster, OPTIONS, [task], batch_id, Phases())


def complete(cluster: Cluster, ended: TransactionMetadata | None) -> None:
    """What the thread does."""
    sink._complete(cluster, ended, Phases({"queryId": QUERY, "batchId": "0"}))


def committed(cluster: Cluster) -> list[str]:
    """The batches that a read_committed reader sees."""
    log = cluster.topic("orders")
    paths = [b.path for batches in read_committed(log.view).values() for b in batches]
    return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in paths)


def test_batch_is_visible_and_its_offsets_have_moved_before_it_is_complete() -> None:
    shared = world()
    worker = process(shared)
    for batch_id in range(3):
        ended = publish(worker, batch_id)
        assert state_of(process(shared), QUERY) is PREPARE_COMMIT
        assert position(process(shared)) == batch_id * 10 + 10
        complete(worker, ended)
        assert state_of(process(shared), QUERY) is COMPLETE_COMMIT
    assert committed(process(shared)) == ["0", "1", "2"]
    check_settled(shared)


@pytest.mark.parametrize("is_new_worker", [False, True])
def test_worker_that_left_it_is_followed_by_the_next_batch(is_new_worker: bool) -> None:
    """Spark ended the worker, or the thread met an error: the next commit completes (R36)."""
    shared = world()
    worker = process(shared)
    for batch_id in range(3):
        assert publish(worker, batch_id) is not None
        if is_new_worker:
            worker = process(shared)
    assert publish(worker, 2) is None, "a replay"
    assert publish(process(shared), 2, run="restarted") is None, "a replay of another run"
    assert committed(process(shared)) == ["0", "1", "2"]
    assert position(process(shared)) == 30
    check_settled(shared)


def test_fault_at_any_call_of_the_thread_changes_nothing_of_its_batch(some: Some[Any]) -> None:
    """The batch is there once, and the next one after it (R36, R40)."""
    counting = process(world())
    ended = publish(counting, 0)
    with planned(counting, {}) as counted:
        complete(counting, ended)
    assert counted.calls
    for at in some(range(counted.calls)):
        for fault in (*CRASHES, *ERRORS):
            shared = world()
            worker = process(shared)
            ended = publish(worker, 0)
            with planned(worker, {at: fault}):
                outcome = outcome_of(partial(complete, worker, ended))
            if outcome == "crashed":
                worker = process(shared)
            publish(worker, 1)
            shared.land_late()
            after = recover(shared)
            where = f"{fault.name} at call {at}: {outcome}"
            assert committed(after) == ["0", "1"], where
            assert position(after) == 20, where


def test_work_is_done_beside_and_awaited_by_who_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = process(world())
    monkeypatch.setattr(cluster_module.CLUSTERS, "get", lambda *_: cluster)
    begun, go_on, came_back = threading.Event(), threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(600)
        done.append("work")

    def come_back() -> None:
        Cluster.cached("/memory")
        done.append("cached")
        came_back.set()

    cluster.afterwards.do(work)
    assert begun.wait(600)
    threading.Thread(target=come_back, daemon=True).start()
    assert not done
    go_on.set()
    assert came_back.wait(600)
    assert done == ["work", "cached"]
    Cluster.cached("/memory")


def test_error_of_the_work_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = process(world())
    monkeypatch.setattr(cluster_module.CLUSTERS, "get", lambda *_: cluster)
    ran = threading.Event()

    def work() -> None:
        ran.set()
        raise ZeroDivisionError

    cluster.afterwards.do(work)
    Cluster.cached("/memory")
    assert ran.is_set()


def test_slow_work_lets_the_next_one_open_the_cluster_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two instances are like two processes."""
    shared = world()
    slow, other = process(shared), process(shared)
    ended = publish(slow, 0)
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(60)
        complete(slow, ended)

    with monkeypatch.context() as patch:
        patch.setattr(afterwards, "PATIENCE_S", 0.01)
        patch.setattr(cluster_module.CLUSTERS, "get", Mock(side_effect=[slow, other]))
        patch.setattr(cluster_module.CLUSTERS, "drop", Mock())
        slow.afterwards.do(work)
        assert begun.wait(60)
        assert Cluster.cached("/memory") is other
    assert slow.afterwards.take_waited_ns() > 0
    assert publish(other, 1) is not None
    go_on.set()
    assert slow.afterwards.wait()
    assert committed(process(shared)) == ["0", "1"]
    check_settled(shared)


def test_interrupt_before_the_work_is_taken_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = process(world())
    monkeypatch.setattr(cluster_module.CLUSTERS, "get", lambda *_: cluster)

    def interrupt(work: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(afterwards._THREADS, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cluster.afterwards.do(lambda: None)
    assert Cluster.cached("/memory") is cluster


@pytest.mark.parametrize("stays", [True, False])
def test_commit_of_a_worker_completes_with_its_own_figures(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a thread where Spark keeps the worker, and before the return where it ends it."""
    shared = world()
    worker = process(shared)
    monkeypatch.setattr(cluster_module.CLUSTERS, "get", lambda *_: worker)
    if stays:
        monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    else:
        monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    for batch_id in range(4):
        batch = staged(worker, "orders", f"{batch_id}")
        sink.commit_micro_batch(
            OPTIONS, [StagedTask(0, (batch,), QUERY, "run", batch_id)], batch_id
        )
        if not stays:
            assert state_of(process(shared), QUERY) is COMPLETE_COMMIT
        Cluster.cached("/memory")
        assert state_of(process(shared), QUERY) is COMPLETE_COMMIT
        count, newest = CommittedTransactions(process(shared)).read(QUERY)
        assert count == batch_id + 1
        assert newest is not None
        assert newest.parameters["batchId"] == f"{batch_id}"
        assert newest.phases_ms["total"] > 0
    assert committed(process(shared)) == ["0", "1", "2", "3"]
    assert position(process(shared)) == 40
    check_settled(shared)
