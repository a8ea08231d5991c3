"""A query restarted under another transactional.id: its last batch is found, its old run stopped.

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
from tests.coordinator.processes import (
    CRASHES,
    ERRORS,
    faults,
    outcome_of,
    planned,
    process,
    recover,
    staged,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.phases import Phases
from txnlog.errors import CheckpointError, ProducerFencedError
from txnlog.protocol.micro_batches import newest_row
from txnlog.protocol.transitions import Transition, prepare_expire
from txnlog.settings.options import parse_options
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import read_committed

QUERY = "query"


@dataclass
class Driver:
    """One run of the query, under its own transactional.id; "" is the default."""

    cluster: Cluster
    run: str
    id: str

    @classmethod
    def of(cls, shared: SharedMemory, run: str, transactional_id: str = "") -> Driver:
        return cls(process(shared), run, transactional_id)

    def commit(self, batch_id: int) -> bool:
        batch = staged(self.cluster, "orders", f"{batch_id}.{self.run}")
        return self.commit_staged(StagedTask(0, (batch,), QUERY, self.run, batch_id))

    def commit_staged(self, task: StagedTask) -> bool:
        chosen = {"transactional.id": self.id} if self.id else {}
        options = parse_options({"path": "/memory", "topic": "orders", **chosen}, "writeStream")
        ended = commit_once(self.cluster, options, [task], task.batch_id, Phases())
        if ended is not None:
            self.cluster.coordinator.complete(ended)
        return ended is not None

    def stage(self, batch_id: int) -> StagedTask:
        batch = staged(self.cluster, "orders", f"{batch_id}.{self.run}")
        return StagedTask(0, (batch,), QUERY, self.run, batch_id)


def committed(shared: SharedMemory) -> list[str]:
    """`<batch id>.<run>` of what a read_committed reader sees, in order of the batch ids."""
    log = process(shared).topic("orders")
    paths = [b.path for batches in read_committed(log.view).values() for b in batches]
    return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in paths)


@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("", "b"), ("a", "")])
def test_replay_under_another_id_is_skipped(before: str, after: str) -> None:
    """The memory of (query id, batch id) was kept per id: the replayed batch came twice (R54)."""
    shared = world()
    first = Driver.of(shared, "r1", before)
    assert first.commit(0)
    assert first.commit(1)
    second = Driver.of(shared, "r2", after)
    assert not second.commit(1), "Spark lost commits/1"
    assert second.commit(2)
    assert committed(shared) == ["0.r1", "1.r1", "2.r2"]
    with pytest.raises(CheckpointError, match="old copy"):
        Driver.of(shared, "r3", "c").commit(1)
    assert not Driver.of(shared, "r3", "c").commit(2)
    recover(shared)


def test_old_run_under_the_old_id_is_fenced() -> None:
    """A driver still running under the old id would commit the next batch a second time (R58)."""
    shared = world()
    old = Driver.of(shared, "r1", "a")
    assert old.commit(0)
    assert Driver.of(shared, "r2", "b").commit(1)
    with pytest.raises(CheckpointError):
        Driver.of(shared, "r1", "a").commit(0)
    for worker in (old, Driver.of(shared, "r1", "a")):
        with pytest.raises(ProducerFencedError, match="transactional.id 'b'"):
            worker.commit(2)
    assert committed(shared) == ["0.r1", "1.r2"]


def test_rows_of_former_ids_can_expire_and_the_newest_never() -> None:
    """An id per start would leave a row per start for ever; batch ids must outlive them (R35)."""
    shared = world()
    for number in range(6):
        assert Driver.of(shared, f"r{number}", f"id-{number}").commit(number)
    cluster = process(shared)
    rows = {}
    for shard in range(cluster.shards):
        cluster.shard(shard).refresh()
        rows.update(cluster.shard(shard).view.rows)
    expiring = {
        name for name, row in rows.items() if isinstance(prepare_expire(row, now_ms=0), Transition)
    }
    assert expiring == {f"id-{number}" for number in range(4)}
    newest = newest_row(rows.values(), QUERY)
    assert newest is not None
    assert (newest.transactional_id, newest.owner.batches[QUERY].batch_id) == ("id-5", 5)


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
def test_two_drivers_under_two_ids_commit_a_batch_once(is_first: bool, some: Some[Any]) -> None:
    """Old and new driver meet at each step of the old one: also while it is being decided (R58).

    The new one does all its work before each storage call of the old one. Where each has fenced the
    other, the next start continues.
    """

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        old = Driver.of(shared, "r1", "a")
        if not is_first:
            assert old.commit(0)
        return old, old.stage(1)

    winners = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        shared = world()
        old, task = begin(shared)
        new = Driver.of(shared, "r2", "b")
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
        Driver.of(shared, "r3", "a").commit(2)
        twos = [name for name in committed(shared) if name.startswith("2.")]
        assert len(twos) == 1, f"call {number}: {results}, {outcomes}: {committed(shared)}"
    assert winners == {"1.r1", "1.r2"}


def test_old_run_that_decides_while_the_new_one_starts_is_finished_and_fenced(
    some: Some[Any],
) -> None:
    """Between read and stop the old run decides a batch and dies, or is suspended (R36, R58)."""

    def dies_at_its_marker(verb: str, path: str) -> Fault:
        is_marker = verb == "put" and path.startswith("orders/_delta_log")
        return Fault.CRASH_BEFORE if is_marker else Fault.NONE

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        assert Driver.of(shared, "r1", "a").commit(0)
        new = Driver.of(shared, "r2", "b")
        return new, new.stage(1)

    decided = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        shared = world()
        new, task = begin(shared)
        old = Driver.of(shared, "r1", "a")
        mine = old.stage(1)
        faults(old.cluster).plan = dies_at_its_marker
        at_call(new.cluster, number, lambda o=old, t=mine: outcome_of(lambda: o.commit_staged(t)))
        outcome = outcome_of(lambda n=new, t=task: n.commit_staged(t))
        faults(new.cluster).plan = lambda verb, path: Fault.NONE
        assert outcome in ("done", "ProducerFencedError"), f"call {number}"
        Driver.of(shared, "r3", "b").commit(2)
        assert outcome_of(lambda s=shared: Driver.of(s, "r1", "a").commit(3)) != "done"
        found = committed(shared)
        assert len([name for name in found if name.startswith("1.")]) == 1, f"{number}: {found}"
        decided.add(found[1])
        recover(shared)
    assert decided == {"1.r1", "1.r2"}


def test_restart_under_another_id_after_a_crash_at_any_call_commits_once(some: Some[Any]) -> None:
    """The old driver dies, or gets an error, at each storage call; nothing sweeps (R36, R54)."""

    def begin(shared: SharedMemory) -> tuple[Driver, StagedTask]:
        assert Driver.of(shared, "r0", "z").commit(0)
        old = Driver.of(shared, "r1", "a")
        return old, old.stage(1)

    results = set()
    for number in some(range(calls_of(lambda: begin(world())))):
        for fault in (*CRASHES, ERRORS[number % len(ERRORS)]):
            shared = world()
            old, task = begin(shared)
            with planned(old.cluster, {number: fault}):
                outcome = outcome_of(lambda o=old, t=task: o.commit_staged(t))
            shared.land_late()
            is_new = Driver.of(shared, "r2", "b").commit(1)
            assert committed(shared) == ["0.r0", "1.r2" if is_new else "1.r1"], f"{fault} {number}"
            assert outcome != "done" or not is_new
            results.add(is_new)
            recover(shared)
            assert Driver.of(shared, "r3", "z").commit(2)
    assert results == {True, False}


def test_only_the_first_batch_of_a_run_reads_all_shards(tmp_path: Path) -> None:
    """Reading all rows per micro-batch would cost more with every id that ever existed."""
    shared = world()
    driver = Driver.of(shared, "r1", "a")
    assert driver.commit(0)
    shard = driver.cluster.shard_of("a")
    task = driver.stage(1)
    others = []

    def plan(verb: str, path: str) -> Fault:
        if path.startswith("__transaction_state-") and not path.startswith(
            f"__transaction_state-{shard}/"
        ):
            others.append(path)
        return Fault.NONE

    faults(driver.cluster).plan = plan
    assert driver.commit_staged(task)
    assert not others
    # A new worker of the same run reads it from the row.
    again = Driver.of(shared, "r1", "a")
    again.cluster.coordinator.describe("a")
    faults(again.cluster).plan = plan
    assert again.commit(2)
    assert not others


def test_sink_itself_finds_the_batch_under_another_id(tmp_path: Path) -> None:
    """The whole of commit_micro_batch, on a disk."""
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("orders", partitions=2)
    for run, chosen in (("r1", {"transactional.id": "a"}), ("r2", {})):
        options = parse_options({"path": str(tmp_path), "topic": "orders", **chosen}, "writeStream")
        batch = staged(cluster, "orders", run)
        commit_micro_batch(options, [StagedTask(0, (batch,), QUERY, run, 3)], 3)
    live = Cluster.open(str(tmp_path)).topic("orders").view.by_path
    assert [path.split("-", 2)[2] for path in live] == ["r1.parquet"]
