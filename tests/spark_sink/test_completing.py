"""COMPLETE of a micro-batch, which is one write with the decision of the next one."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from spark_sink import commit as sink
from spark_sink.messages import StagedTask
from spark_sink.source_offsets import PlannedBatch
from tests.cases import Some
from tests.world import (
    CRASHES,
    ERRORS,
    GROUP,
    check_settled,
    consumed,
    faults,
    outcome_of,
    planned,
    position,
    process,
    recover,
    staged,
    state_of,
    world,
)
from txnlog.cluster import CLUSTERS, Cluster
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.history import CommittedTransactions
from txnlog.coordinator.phases import Phases
from txnlog.errors import ProducerFencedError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.revocation import prepare_revoke
from txnlog.protocol.states import TransactionState
from txnlog.settings.config import parse_config
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import read_committed

QUERY = "query"
OPTIONS = parse_config({"path": "/memory", "topic": "orders", "group.id": GROUP}, "writeStream")
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch n reads offsets 10 n to 10 n + 10."""

    def offsets(options: Any, cluster: Any, planned: PlannedBatch, **_: Any) -> list[Any]:
        return [consumed(planned.batch_id * 10, planned.batch_id * 10 + 10)]

    monkeypatch.setattr(sink, "group_offsets", offsets)
    monkeypatch.setattr(sink, "planned_batch", lambda _, number: PlannedBatch(number))


def publish(cluster: Cluster, batch_id: int, run: str = "run") -> TransactionMetadata | None:
    """Commit a micro-batch as far as Spark waits for it."""
    batch = staged(cluster, "orders", f"{batch_id}")
    task = StagedTask(0, (batch,), QUERY, run, batch_id)
    return sink.commit_once(cluster, OPTIONS, [task], batch_id, Phases())


def committed(cluster: Cluster) -> list[str]:
    """The batches that a read_committed reader sees."""
    log = cluster.topic("orders")
    paths = [b.path for batches in read_committed(log.view).values() for b in batches]
    return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in paths)


def operations(shared: SharedMemory) -> list[str]:
    """The writes of the query's shard."""
    shard = process(shared).shard_for(QUERY)
    store = shared.open()
    paths = [file.path for file in store.list(shard.path + "/_delta_log") if ".json" in file.path]
    infos = [json.loads(data.splitlines()[0])["commitInfo"] for data in store.get_many(paths)]
    return [info["operation"] for info in infos]


def test_batch_is_visible_and_its_offsets_have_moved_before_it_is_complete() -> None:
    shared = world()
    worker = process(shared)
    for batch_id in range(3):
        assert publish(worker, batch_id) is not None
        assert state_of(process(shared), QUERY) is PREPARE_COMMIT
        assert position(process(shared)) == batch_id * 10 + 10
        assert committed(process(shared)) == [f"{number}" for number in range(batch_id + 1)]
    made = operations(shared)
    assert made.count("PREPARE_COMMIT") == 3
    assert made.count("COMPLETE_COMMIT") == 0
    check_settled(shared)
    assert operations(shared).count("COMPLETE_COMMIT") == 1


@pytest.mark.parametrize("is_new_worker", [False, True])
def test_next_batch_completes_the_one_before_in_any_worker(is_new_worker: bool) -> None:
    """Spark may end the worker, and take another for the next commit (R36)."""
    shared = world()
    worker = process(shared)
    for batch_id in range(3):
        assert publish(worker, batch_id) is not None
        if is_new_worker:
            worker = process(shared)
    assert operations(shared).count("COMPLETE_COMMIT") == 0
    assert publish(worker, 2) is None, "a replay"
    assert publish(process(shared), 2, run="restarted") is None, "a replay of another run"
    assert committed(process(shared)) == ["0", "1", "2"]
    assert position(process(shared)) == 30
    check_settled(shared)


@pytest.mark.parametrize("who", ["sweeper", "other run", "operator"])
def test_batch_before_that_another_process_has_completed(who: str) -> None:
    """The row is a guess, which only a commit proves; a fenced run commits nothing (R43)."""
    shared = world()
    worker = process(shared)
    assert publish(worker, 0) is not None
    other = process(shared)
    row = other.coordinator.describe(QUERY)
    assert row is not None
    if who == "sweeper":
        finish(other, row)
        assert publish(worker, 1) is not None
    elif who == "operator":
        fence = partial(prepare_revoke, run_id="run", by="test", reason="test", now_ms=0)
        other.shard_for(QUERY).transition(QUERY, fence)
        with pytest.raises(ProducerFencedError):
            publish(worker, 1)
    else:
        assert publish(other, 1, run="another") is not None
        with pytest.raises(ProducerFencedError):
            publish(worker, 2)
    assert committed(process(shared)) == (["0"] if who == "operator" else ["0", "1"])
    check_settled(shared)


def test_fault_at_any_call_of_the_next_batch_loses_neither(some: Some[Any]) -> None:
    """Both batches are there once, whatever happened to the write that ends and decides (R36)."""
    counting = process(world())
    publish(counting, 0)
    with planned(counting, {}) as counted:
        publish(counting, 1)
    assert counted.calls
    for at in some(range(counted.calls)):
        for fault in (*CRASHES, *ERRORS):
            shared = world()
            worker = process(shared)
            publish(worker, 0)
            with planned(worker, {at: fault}):
                outcome = outcome_of(partial(publish, worker, 1))
            shared.land_late()
            # Spark starts the query again, and repeats its last batch.
            publish(process(shared), 1, run="restarted")
            after = recover(shared)
            where = f"{fault.name} at call {at}: {outcome}"
            assert committed(after) == ["0", "1"], where
            assert position(after) == 20, where


@pytest.mark.parametrize("is_new_worker", [False, True])
def test_figures_of_a_batch_come_with_the_next_decision_of_the_same_process(
    is_new_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = world()
    for batch_id in range(4):
        if batch_id == 0 or is_new_worker:
            worker = process(shared)
            sink._measured.clear()
            monkeypatch.setattr(CLUSTERS, "get", lambda *_, worker=worker: worker)
        batch = staged(worker, "orders", f"{batch_id}")
        sink.commit_micro_batch(
            OPTIONS, [StagedTask(0, (batch,), QUERY, "run", batch_id)], batch_id
        )
        count, newest = CommittedTransactions(process(shared)).read(QUERY)
        assert count == batch_id + 1
        if is_new_worker or batch_id == 0:
            assert newest is None
            continue
        assert newest is not None
        assert newest.parameters["batchId"] == f"{batch_id - 1}"
        assert newest.parameters["records"] == "2"
        assert newest.phases_ms["total"] >= newest.phases_ms["publish"] > 0
    assert committed(process(shared)) == ["0", "1", "2", "3"]
    assert position(process(shared)) == 40
    check_settled(shared)


def test_batch_that_is_not_published_is_finished_before_the_next_one() -> None:
    """Spark begins no batch before; where it did, the next decision would hide the topic (R36)."""
    counting = process(world())
    with planned(counting, {}) as counted:
        publish(counting, 0)
    for at in range(counted.calls):
        shared = world()
        worker = process(shared)
        with planned(worker, {at: Fault.CRASH_BEFORE}):
            outcome_of(partial(publish, worker, 0))
        row = process(shared).coordinator.describe(QUERY)
        if row is None or row.state is not PREPARE_COMMIT:
            continue
        assert publish(process(shared), 1) is not None
        assert committed(process(shared)) == ["0", "1"]
        assert position(process(shared)) == 20
        check_settled(shared)


def test_batch_of_another_topic_asks_nothing_of_the_topics_of_the_one_before() -> None:
    """Their markers are known to the worker that wrote them: no round more."""
    shared = world()
    worker = process(shared)
    publish(worker, 0)
    faults(worker).calls.clear()
    task = StagedTask(0, (staged(worker, "stock", "1"),), QUERY, "run", 1)
    assert sink.commit_once(worker, OPTIONS, [task], 1, Phases()) is not None
    assert not [path for _, path in faults(worker).calls if path.startswith("orders/")]
    check_settled(shared)


@pytest.mark.parametrize("act", ["fetch", "start"])
def test_reader_of_the_group_needs_no_topic_of_a_batch_whose_offsets_have_moved(act: str) -> None:
    """The topic may be denied to it, or damaged: its group was blocked until a sweep."""
    shared = world()
    assert publish(process(shared), 0) is not None
    reader = process(shared)
    faults(reader).plan = lambda verb, path: (
        Fault.DENY if path.startswith("orders/") else Fault.NONE
    )
    generation = 1 if act == "fetch" else reader.groups.start(GROUP)
    assert reader.groups.fetch(GROUP, generation) == {"input": {0: 10}}
