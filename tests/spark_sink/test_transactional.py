"""A micro-batch of `transactional`, over a topic and a Delta table, without Spark.

The row is taken before the user's function runs, which may take long, and the commit comes after.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from spark_sink import Transaction, transactional
from spark_sink.commit import begin_batch, commit_begun, task_files
from spark_sink.messages import QUERY_ID, RUN_ID, StagedTask
from tests.cases import Some
from tests.spark_sink.test_query_rows import OPTIONS, QUERY, at_call, committed
from tests.staged_files import named_file_of
from tests.tables import ForeignTable, appended, changed, definition, with_table
from tests.world import (
    CRASHES,
    ERRORS,
    faults,
    outcome_of,
    planned,
    process,
    recover,
    staged,
    world,
    write_behind,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.phases import Phases
from txnlog.errors import (
    ConfigError,
    InvalidTxnStateError,
    TableChangedError,
    TableConflictError,
)
from txnlog.testing.faults import Fault, SharedMemory

NARROW = (("day", "string"),)


class Driver:
    """One run of the query; batch n writes to the topic, and n to the table, or adds n to what it
    `merges`.
    """

    def __init__(self, shared: SharedMemory, run: str, *, merges: bool = False) -> None:
        self.cluster, self.run, self.merges = process(shared), run, merges
        self._table = ForeignTable(shared)

    def commit(self, batch_id: int, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """False: the batch is committed, and its function was not called."""
        run = StagedTask(0, (), QUERY, self.run, batch_id)
        begun = begin_batch(self.cluster, OPTIONS, run, batch_id, Phases())
        if begun is None:
            return False
        batch = staged(self.cluster, "orders", f"{batch_id}.{self.run}")
        files = task_files(OPTIONS, [StagedTask(0, (batch,))])
        if self.merges:
            tables = changed(self.cluster, *self._table.ours(), batch_id)
        else:
            tables = appended(self.cluster, batch_id)
        meanwhile()
        commit_begun(self.cluster, begun, files, Phases(), tables=tables)
        return True


def with_driver(*, merges: bool = False) -> tuple[SharedMemory, Driver]:
    """It has committed batch 0."""
    shared = world()
    with_table(shared, process(shared))
    driver = Driver(shared, "r1", merges=merges)
    assert driver.commit(0)
    return shared, driver


def check(shared: SharedMemory, batches: int) -> None:
    recover(shared)
    assert [name[0] for name in committed(shared)] == [str(n) for n in range(batches)]
    assert ForeignTable(shared).ours() == list(range(batches))


def calls_of_a_batch(*, merges: bool) -> int:
    _, driver = with_driver(merges=merges)
    with planned(driver.cluster, {}) as plan:
        driver.commit(1)
    return plan.calls


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("fault", [*CRASHES, *ERRORS])
def test_batch_that_dies_at_any_call_is_there_once(
    fault: Fault, some: Some[Any], merges: bool
) -> None:
    """Spark starts again, and repeats it (R54, R74, R77)."""
    for number in some(range(calls_of_a_batch(merges=merges))):
        shared, driver = with_driver(merges=merges)
        with planned(driver.cluster, {number: fault}):
            died = outcome_of(lambda d=driver: d.commit(1)) == "crashed"
        assert died == (fault in CRASHES)
        again = Driver(shared, "r2", merges=merges)
        again.commit(1)
        assert not again.commit(1)
        assert again.commit(2)
        check(shared, 3)


@pytest.mark.parametrize("merges", [False, True])
def test_two_drivers_commit_a_batch_once(some: Some[Any], merges: bool) -> None:
    """They meet at each call of the old one, and while its function runs (R58, R74, R77)."""

    def meet(shared: SharedMemory, act: Callable[[Callable[[], object]], object]) -> None:
        new, results = Driver(shared, "r2", merges=merges), []
        act(lambda: results.append(outcome_of(lambda: new.commit(1))))
        assert results == ["done"]
        check(shared, 2)

    shared, old = with_driver(merges=merges)
    meet(shared, lambda other: outcome_of(lambda: old.commit(1, other)))
    for number in some(range(calls_of_a_batch(merges=merges))):
        shared, old = with_driver(merges=merges)

        def at(other: Callable[[], object], old: Driver = old, number: int = number) -> None:
            at_call(old.cluster, number, other)
            outcome_of(lambda: old.commit(1))
            faults(old.cluster).plan = lambda verb, path: Fault.NONE

        meet(shared, at)


@pytest.mark.parametrize("others_commit_at", ["read", "decision"])
def test_batch_whose_table_others_have_changed_is_computed_again(others_commit_at: str) -> None:
    """As `transactional` does; from the row that the refusal has left (R77, R78)."""
    shared, driver = with_driver(merges=True)
    table = ForeignTable(shared)
    if others_commit_at == "decision":
        change_before_publication(shared, driver.cluster, table.append)
    meanwhile = table.append if others_commit_at == "read" else lambda: None
    with pytest.raises(TableConflictError):
        driver.commit(1, meanwhile)
    assert table.ours() == [0]
    assert driver.commit(1)
    assert not driver.commit(1)
    assert driver.commit(2)
    check(shared, 3)


def test_batch_that_waits_for_its_table_is_not_hidden_by_the_next_one() -> None:
    """Its decision completes the batch before, which must be in all its tables (R37)."""
    shared, driver = with_driver()
    change_before_publication(shared, driver.cluster)
    with pytest.raises(TableChangedError) as raised:
        driver.commit(1)
    assert raised.value.context["decided"]
    for run in (driver, Driver(shared, "r2")):
        assert outcome_of(lambda r=run: r.commit(2)) == "TableChangedError"
    ForeignTable(shared).commit(definition())
    assert not Driver(shared, "r2").commit(1)
    assert Driver(shared, "r2").commit(2)
    check(shared, 3)


def change_before_publication(
    shared: SharedMemory, cluster: Cluster, change: Callable[[], object] | None = None
) -> None:
    """Drop a column of the table, or make another change, when the decision has been written."""
    is_decided: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith("__transaction_state"):
            is_decided.append(path)
        elif len(is_decided) == 1 and verb == "put":
            is_decided.append(path)
            (change or (lambda: ForeignTable(shared).commit(definition(NARROW))))()
        return Fault.NONE

    faults(cluster).plan = plan


def test_spark_connect_and_other_callers_are_refused() -> None:
    """The function of a Connect client runs where no commit can be made."""
    process_batch = transactional("/memory")(lambda tx, frame, batch_id: None)

    class Session:
        sparkContext = SimpleNamespace(getLocalProperty=lambda name: None)

    with pytest.raises(ConfigError, match="foreachBatch"):
        process_batch(SimpleNamespace(sparkSession=Session()), 0)
    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(ConfigError, match="Spark Connect"):
        process_batch(SimpleNamespace(sparkSession=Session()), 0)
    with pytest.raises(ConfigError, match="as checkpoint"):
        transactional("/memory", group_id="g")
    with pytest.raises(ConfigError, match="group\\.idd"):
        transactional("/memory", options={"group.idd": "g"})


class Frame(SimpleNamespace):
    """Which has weak references, as a DataFrame has."""


def test_second_transaction_of_a_micro_batch_is_refused(tmp_path: Path) -> None:
    """It was skipped as a repeat of the first one, and what it would have written was lost."""
    topic = Cluster.open(str(tmp_path), create=True).create_topic("orders", partitions=1)

    def write(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        path = f"part-0-{uuid.uuid4()}.parquet"
        write_behind(tx._cluster, f"orders/{path}", b"r")
        batch = named_file_of(topic, path, records=1, staged_ms=tx._cluster.store.now_ms())
        tx._tasks.append(StagedTask(0, (batch,)))

    def frame(run: str) -> Any:
        ids = {QUERY_ID: QUERY, RUN_ID: run}
        return Frame(
            sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=ids.get))
        )

    first, second = (transactional(str(tmp_path))(lambda *given: write(*given)) for _ in range(2))
    for run in ("r1", "r2"):  # Spark repeats it in another run
        given = frame(run)
        first(given, 0)
        for process_batch, other in ((second, given), (first, frame(run))):
            with pytest.raises(InvalidTxnStateError, match="taken for a repeat"):
                process_batch(other, 0)
        first(given, 0)
    first(frame("r2"), 1)
    topic.refresh()
    assert topic.view.high_watermark(0) == 2
