"""The row of a streaming query: its last batch is found by any run, a former run is stopped (D10).

Drivers over one shared memory store, each with its own memory. The sink's own steps run; only
Spark is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_sink.commit import commit_micro_batch, commit_once
from spark_sink.messages import StagedTask
from tests.cases import Some
from tests.world import (
    CRASHES,
    ERRORS,
    faults,
    outcome_of,
    owned,
    planned,
    process,
    recover,
    staged,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.phases import Phases
from txnlog.errors import CheckpointError, ProducerFencedError
from txnlog.settings.config import parse_config
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import read_committed

QUERY = "query"
OPTIONS = parse_config({"path": "/memory", "topic": "orders"}, "writeStream")


@dataclass
class Driver:
    """One run of the query, on its checkpoint."""

    cluster: Cluster
    run: str

    @classmethod
    def of(cls, shared: SharedMemory, run: str) -> Driver:
        return cls(process(shared), run)

    def commit(self, batch_id: int) -> bool:
        return self.commit_staged(self.stage(batch_id))

    def commit_staged(self, task: StagedTask) -> bool:
        row = commit_once(self.cluster, OPTIONS, [task], task.batch_id, Phases())
        if row is not None and row.state.is_prepared:
            complete(self.cluster, row)
        return row is not None

    def stage(self, batch_id: int) -> StagedTask:
        batch = staged(self.cluster, "orders", f"{batch_id}.{self.run}")
        return StagedTask(0, (batch,), QUERY, self.run, batch_id)


def committed(shared: SharedMemory) -> list[str]:
    """`<batch id>.<run>` of what a read_committed reader sees, in order of the batch ids."""
    log = process(shared).topic("orders")
    paths = [b.path for batches in read_committed(log.view).values() for b in batches]
    return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in paths)


def test_replay_by_a_new_run_is_skipped() -> None:
    """Spark lost commits/1: the query's row, at its id, has the batch (R54, R55)."""
    shared = world()
    first = Driver.of(shared, "r1")
    assert first.commit(0)
    assert first.commit(1)
    second = Driver.of(shared, "r2")
    assert not second.commit(1)
    assert second.commit(2)
    assert committed(shared) == ["0.r1", "1.r1", "2.r2"]
    with pytest.raises(CheckpointError, match="old copy"):
        Driver.of(shared, "r3").commit(1)
    assert not Driver.of(shared, "r3").commit(2)
    recover(shared)


def test_former_run_is_fenced_in_every_worker() -> None:
    """A driver still running would commit the next batch a second time (R58)."""
    shared = world()
    old = Driver.of(shared, "r1")
    assert old.commit(0)
    assert Driver.of(shared, "r2").commit(1)
    with pytest.raises(CheckpointError):
        Driver.of(shared, "r1").commit(0)
    for worker in (old, Driver.of(shared, "r1")):
        with pytest.raises(ProducerFencedError, match="by a newer start.*another driver") as fenced:
            worker.commit(2)
        assert "of its own" not in str(fenced.value), "a query has no other transactional.id"
    assert committed(shared) == ["0.r1", "1.r2"]


def test_producer_under_the_id_of_a_query_leaves_its_last_batch() -> None:
    """Whoever owned the row meanwhile, the query's replay must be found in it (R55)."""
    shared = world()
    assert Driver.of(shared, "r1").commit(3)
    producer = process(shared)
    row = owned(producer, "p", tid=QUERY)
    producer.coordinator.commit(row, [staged(producer, "orders", "9.p")])
    with pytest.raises(ProducerFencedError):
        Driver.of(shared, "r1").commit(4)
    again = Driver.of(shared, "r2")
    assert not again.commit(3)
    assert again.commit(4)
    assert committed(shared) == ["3.r1", "4.r2", "9.p"]


def at_call(cluster: Cluster, number: int, act: Callable[[], object]) -> None:
    """Run `act` before that storage call of a process."""
    calls = iter(range(10_000))

    def plan(verb: str, path: str) -> Fault:
        if next(calls) == number:
            act()
        return Fault.NONE

    faults(cluster).plan = plan


def calls_of(prepare: Callable[[], tuple[Driver, StagedTask]]) -> int:
    driver, task = prepare()
    with planned(driver.cluster, {}) as plan:
        driver.commit_staged(task)
    return plan.calls


@pytest.mark.parametrize("is_first", [True, False], ids=["first-batch", "later-batch"])
def test_two_drivers_of_a_query_commit_a_batch_once(is_first: bool, some: Some[Any]) -> None:
    """Old and new driver meet at each step of the old one: also while it is being decided (R58).

    The new one does all its work before each storage call of the old one.
    """

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        old = Driver.of(shared, "r1")
        if not is_first:
            assert old.commit(0)
        return old, old.stage(1)

    winners = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        shared = world()
        old, task = begin(shared)
        new = Driver.of(shared, "r2")
        results: dict[str, str] = {}
        at_call(
            old.cluster,
            number,
            lambda d=new, r=results: r.update(new=outcome_of(lambda: d.commit(1))),
        )
        results["old"] = outcome_of(lambda o=old, t=task: o.commit_staged(t))
        faults(old.cluster).plan = lambda verb, path: Fault.NONE
        recover(shared)
        ones = [name for name in committed(shared) if name.startswith("1.")]
        assert len(ones) == 1, f"call {number}: {results}: {committed(shared)}"
        winners.add(ones[0])
        assert results["old"] in ("done", "ProducerFencedError", "InvalidProducerEpochError")
        outcomes = [outcome_of(lambda d=driver: d.commit(2)) for driver in (old, new)]
        outcome_of(lambda s=shared: Driver.of(s, "r3").commit(2))
        twos = [name for name in committed(shared) if name.startswith("2.")]
        assert len(twos) == 1, f"call {number}: {results}, {outcomes}: {committed(shared)}"
    assert winners == {"1.r1", "1.r2"}


def test_old_run_that_decides_while_the_new_one_starts_is_finished_and_fenced(
    some: Some[Any],
) -> None:
    """While a new run starts the old one decides a batch and dies, or is suspended (R36, R58)."""

    def dies_at_its_marker(verb: str, path: str) -> Fault:
        is_marker = verb == "put" and path.startswith("orders/_delta_log")
        return Fault.CRASH_BEFORE if is_marker else Fault.NONE

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        assert Driver.of(shared, "r1").commit(0)
        new = Driver.of(shared, "r2")
        return new, new.stage(1)

    decided = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        shared = world()
        new, task = begin(shared)
        old = Driver.of(shared, "r1")
        mine = old.stage(1)
        faults(old.cluster).plan = dies_at_its_marker
        at_call(new.cluster, number, lambda o=old, t=mine: outcome_of(lambda: o.commit_staged(t)))
        outcome = outcome_of(lambda n=new, t=task: n.commit_staged(t))
        faults(new.cluster).plan = lambda verb, path: Fault.NONE
        assert outcome == "done", f"call {number}"
        Driver.of(shared, "r3").commit(2)
        assert outcome_of(lambda s=shared: Driver.of(s, "r1").commit(3)) != "done"
        found = committed(shared)
        assert len([name for name in found if name.startswith("1.")]) == 1, f"{number}: {found}"
        decided.add(found[1])
        recover(shared)
    assert decided == {"1.r1", "1.r2"}


def test_restart_after_a_crash_at_any_call_commits_once(some: Some[Any]) -> None:
    """The old driver dies, or gets an error, at each storage call; nothing sweeps (R36, R54)."""

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        assert Driver.of(shared, "r0").commit(0)
        old = Driver.of(shared, "r1")
        return old, old.stage(1)

    results = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        for fault in (*CRASHES, ERRORS[number % len(ERRORS)]):
            shared = world()
            old, task = begin(shared)
            with planned(old.cluster, {number: fault}):
                outcome = outcome_of(lambda o=old, t=task: o.commit_staged(t))
            shared.land_late()
            is_new = Driver.of(shared, "r2").commit(1)
            assert committed(shared) == ["0.r0", "1.r2" if is_new else "1.r1"], f"{fault} {number}"
            assert outcome != "done" or not is_new
            results.add(is_new)
            recover(shared)
            assert Driver.of(shared, "r3").commit(2)
    assert results == {True, False}


def test_run_touches_only_the_shard_of_its_query() -> None:
    """Reading all rows at a start would cost more with every id that ever existed (D10)."""
    shared = world()
    for other in range(8):
        owned(process(shared), "p", tid=f"other-{other}")
    assert len(process(shared).existing_shards()) == 2
    driver = Driver.of(shared, "r1")
    mine = f"__transaction_state-{driver.cluster.shard_of(QUERY)}/"
    task, others = driver.stage(0), []

    def plan(verb: str, path: str) -> Fault:
        if path.startswith("__transaction_state-") and not path.startswith(mine):
            others.append(path)
        return Fault.NONE

    faults(driver.cluster).plan = plan
    assert driver.commit_staged(task)
    assert not others


def test_sink_itself_finds_the_batch_of_a_former_run(tmp_path: Path) -> None:
    """The whole of commit_micro_batch, on a disk."""
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("orders", partitions=2)
    options = parse_config({"path": str(tmp_path), "topic": "orders"}, "writeStream")
    for run in ("r1", "r2"):
        batch = staged(cluster, "orders", run)
        commit_micro_batch(options, [StagedTask(0, (batch,), QUERY, run, 3)], 3)
    live = Cluster.open(str(tmp_path)).topic("orders").view.by_path
    assert [path.split("-", 2)[2] for path in live] == ["r1.parquet"]
