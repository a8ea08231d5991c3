"""A MERGE in the transaction of a micro-batch: its commit decides (R74).

Each batch adds to counts that it has read: one that counted twice, or not, would show for ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.errors import StreamingQueryException

from spark_sink import Transaction
from tests.spark import pipeline, tables_pipeline
from tests.spark.conftest import Driver, Lab, hit_in_second_batch
from tests.spark.tables_pipeline import COUNTS, NEWEST, NUMBERS, ROWS, count, place
from txnlog.errors import StorageError
from txnlog.storage.store.objects import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

BATCH = 20
STEPS = (
    "take_over.after",
    "ongoing.after",
    "change.after",
    "prepare_commit.before",
    "prepare_commit.after",
    "table.after",
    "marker.after",
    "markers.after",
    "offsets.after",
    "sink_commit.after",
)


def begun(lab: Lab, numbers: int = 2 * BATCH) -> Lab:
    lab.feed(0, numbers)
    tables_pipeline.create(lab.spark, lab.root)
    tables_pipeline.create_counts(lab.spark, lab.root)
    return lab


def run(lab: Lab, function: Any = count, **options: Any) -> None:
    """Run to the end. Raises StreamingQueryException."""
    options = {"checkpoint": lab.checkpoint, "batch_records": BATCH, **options}
    pipeline.run(tables_pipeline.start(lab.spark, lab.root, function=function, **options))


def check(lab: Lab, numbers: int = 2 * BATCH) -> None:
    lab.sweep()
    tables_pipeline.check_counts(lab.spark, lab.root, numbers)


def test_merge_is_in_the_transaction(lab: Lab) -> None:
    """With records, rows of another table and offsets; a committed batch is not repeated."""
    begun(lab)
    run(lab)
    lab.forget_batch("commits", 1)
    run(lab)
    check(lab)


@pytest.mark.soak
def test_other_engines_read_what_was_merged(lab: Lab) -> None:
    """delta-rs, a plain table of which it knows all features."""

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr(*ROWS)
        tx.write(pipeline.split(frame))
        tx.append(NUMBERS, rows)
        tx.sql(
            "MERGE INTO {silver.newest} t USING {rows} r ON t.id = r.id - 20 WHEN MATCHED THEN "
            "UPDATE SET id = r.id WHEN NOT MATCHED THEN INSERT (id) VALUES (r.id)",
            rows=rows,
        )

    begun(lab)
    run(lab, function)
    lab.sweep()
    engine = QueryBuilder().register("t", DeltaTable(place(lab.root, NEWEST)))
    found = engine.execute("SELECT id FROM t ORDER BY id").read_all()["id"].to_pylist()
    assert found == list(range(BATCH, 2 * BATCH))
    assert found == tables_pipeline.ids(lab.spark, lab.root, NEWEST)


@pytest.mark.soak
def test_statements_that_change_rows(lab: Lab) -> None:
    """UPDATE and MERGE by tx.sql, which may read the table; a function, with partitions."""
    numbers = place(lab.root, NUMBERS)

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        tx.write(pipeline.split(frame))
        if batch_id == 0:
            tx.sql("UPDATE {silver.numbers} SET note = 'seen' WHERE id >= 2")
        elif batch_id == 1:
            tx.sql(
                "merge into {silver.numbers} t USING "
                "(SELECT min(id) AS id FROM {silver.numbers}) m ON t.id = m.id "
                "WHEN MATCHED THEN DELETE"
            )
        else:
            rows = frame.selectExpr(*ROWS).where("parity = 'odd'")

            def upsert(staged: str) -> None:
                rows.createOrReplaceTempView("upserted")
                frame.sparkSession.sql(
                    f"MERGE INTO delta.`{staged}` t USING upserted u ON t.id = u.id WHEN MATCHED "
                    "THEN UPDATE SET note = 'again' WHEN NOT MATCHED THEN INSERT (id, parity) "
                    "VALUES (u.id, u.parity) WHEN NOT MATCHED BY SOURCE THEN DELETE"
                )

            tx.merge(NUMBERS, upsert, partitions=[{"parity": "odd"}])

    begun(lab, 3 * BATCH)
    insert = "(id, parity) VALUES (1, 'odd'), (2, 'even'), (3, 'odd'), (41, 'odd')"
    lab.spark.sql(f"INSERT INTO delta.`{numbers}` {insert}")
    run(lab, function)
    lab.sweep()
    found = lab.spark.sql(f"SELECT id, twice, note FROM delta.`{numbers}`").collect()
    wanted = {2: (4, "seen"), 41: (82, "again")}
    wanted.update((number, (2 * number, "none")) for number in range(43, 60, 2))
    assert {row.id: (row.twice, row.note) for row in found} == wanted


@pytest.mark.soak
def test_function_is_called_again_if_others_changed_what_it_read(lab: Lab) -> None:
    called = []

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        called.append(batch_id)
        count(tx, frame, batch_id)
        if len(called) in (2, 3):
            others = f"delta.`{place(lab.root, COUNTS)}`"
            lab.spark.sql(f"UPDATE {others} SET count = count + 100 WHERE parity = 'odd'")

    begun(lab)
    run(lab, function)
    assert called == [0, 1, 1, 1]
    others = f"delta.`{place(lab.root, COUNTS)}`"
    lab.spark.sql(f"UPDATE {others} SET count = count - 200 WHERE parity = 'odd'")
    check(lab)


@pytest.mark.soak
def test_conflicts_without_end_fail_the_query(lab: Lab) -> None:
    """And change nothing; the next start repeats the batch."""
    called = []

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        called.append(batch_id)
        count(tx, frame, batch_id)
        table = f"delta.`{place(lab.root, COUNTS)}`"
        lab.spark.sql(f"INSERT INTO {table} VALUES ('none', 0, 0)")

    begun(lab)
    with pytest.raises(StreamingQueryException, match=r"TableConflictError.*silver\.counts"):
        run(lab, function)
    assert called == [0] * 4
    lab.sweep()
    assert lab.values() == []
    lab.spark.sql(f"DELETE FROM delta.`{place(lab.root, COUNTS)}` WHERE parity = 'none'")
    run(lab)
    check(lab)


UPDATE = "UPDATE {silver.counts} SET count = 0"
REFUSED: dict[str, tuple[Callable[[Transaction, DataFrame], object], str]] = {
    "two tables": (
        lambda tx, f: (tx.sql(UPDATE), tx.sql("DELETE FROM {silver.newest}")),
        "can do so in one table only",
    ),
    "twice": (lambda tx, f: (tx.sql(UPDATE), tx.sql(UPDATE)), "writes to table 'silver.counts'"),
    "append first": (
        lambda tx, f: (
            tx.append(NEWEST, f.selectExpr("1L id")),
            tx.merge(NEWEST, lambda staged: None),
        ),
        "writes to table 'silver.newest' already",
    ),
    "append then": (
        lambda tx, f: (
            tx.sql("UPDATE {silver.newest} SET id = 0"),
            tx.append(NEWEST, f.selectExpr("1L id")),
        ),
        "writes to table 'silver.newest' already",
    ),
    "no function": (lambda tx, f: tx.merge(COUNTS, "UPDATE"), "function must be"),
    "no partition": (
        lambda tx, f: tx.merge(COUNTS, lambda staged: None, [{"count": 1}]),
        "'count' is no partition column",
    ),
    "insert overwrite": (
        lambda tx, f: tx.sql("INSERT OVERWRITE {silver.counts} SELECT 'a', 1, 1"),
        "tx.sql is for one",
    ),
}


@pytest.mark.soak
def test_refused_changes_change_nothing(lab: Lab) -> None:
    """By name, before anything is decided."""
    begun(lab, BATCH)
    lab.spark.sql(f"INSERT INTO delta.`{place(lab.root, COUNTS)}` VALUES ('odd', 1, 1)")
    for name, (write, why) in REFUSED.items():

        def function(tx: Transaction, frame: DataFrame, batch_id: int, write: Any = write) -> None:
            write(tx, frame)

        checkpoint = lab.checkpoint.with_name(name)
        with pytest.raises(StreamingQueryException) as raised:
            run(lab, function, checkpoint=checkpoint)
        assert why in str(raised.value), name
    assert lab.values() == []


@pytest.mark.soak
def test_lost_checkpoint_goes_on_exactly_once(lab: Lab) -> None:
    """By the group's offsets, which are in the transaction (R59)."""
    begun(lab, 3 * BATCH)

    def failing(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        count(tx, frame, batch_id)
        if batch_id == 1:
            raise RuntimeError("stop")

    with pytest.raises(StreamingQueryException, match="stop"):
        run(lab, failing)
    shutil.rmtree(lab.checkpoint)
    run(lab, checkpoint=lab.checkpoint.with_name("new"))
    check(lab, 3 * BATCH)


@pytest.mark.soak
@pytest.mark.parametrize("name", STEPS)
def test_killed_driver_is_started_again(
    lab: Lab, start_driver: Callable[[], Driver], name: str
) -> None:
    """SIGKILL in its second batch, then another driver with the same checkpoint (R54, R74)."""
    begun(lab, 3 * BATCH)
    driver = start_driver()
    driver.failpoint.set(f"{name}@{hit_in_second_batch(name)}")
    driver.run_to_death("merging", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    run(lab)
    check(lab, 3 * BATCH)


@pytest.mark.soak
@pytest.mark.parametrize("log", ["__transaction_state", "numbers", "counts", "__consumer_offsets"])
def test_lost_reply_is_found_out(lab: Lab, monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    """Each commit of the second batch lands, and its reply is lost."""
    begun(lab)
    put, lost = ObjectStore.put_if_absent, []

    def put_and_lose(self: ObjectStore, path: str, data: bytes) -> bool:
        landed = put(self, path, data)
        # A staging table's log is Spark's from version 1 on.
        if landed and not path.startswith("_txnlog/") and log in f"{self.url}/{path}":
            lost.append(path)
            if len(lost) == 2:
                raise StorageError("the reply is lost")
        return landed

    monkeypatch.setattr(ObjectStore, "put_if_absent", put_and_lose)
    run(lab)
    monkeypatch.undo()
    assert len(lost) >= 2
    check(lab)
