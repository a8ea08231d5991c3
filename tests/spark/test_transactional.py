"""`transactional`: topics, Delta tables and offsets in one transaction of a micro-batch (R74).

Spark stages the rows. Killed at each step, and started again, everything is there once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_sink import Transaction, transactional
from tests.spark import pipeline, tables_pipeline
from tests.spark.conftest import Driver, Lab, hit_in_second_batch
from tests.spark.tables_pipeline import NEWEST, NUMBERS, ROWS, ids, place, route
from txnlog.errors import ConfigError, InvalidTxnStateError, StorageError
from txnlog.storage.store.objects import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

BATCH = 20
STEPS = (
    "take_over.after",
    "tickets.after",
    "prepare_commit.before",
    "prepare_commit.after",
    "table.after",
    "marker.after",
    "markers.after",
    "offsets.after",
    "sink_commit.after",
)


def begun(lab: Lab, count: int = 2 * BATCH) -> Lab:
    lab.feed(0, count)
    tables_pipeline.create(lab.spark, lab.root)
    return lab


def run(lab: Lab, **options: Any) -> None:
    """Run to the end. Raises StreamingQueryException."""
    checkpoint = options.pop("checkpoint", lab.checkpoint)
    query = tables_pipeline.start(lab.spark, lab.root, checkpoint, batch_records=BATCH, **options)
    pipeline.run(query)


def check(lab: Lab, count: int = 2 * BATCH) -> None:
    lab.sweep()
    tables_pipeline.check(lab.spark, lab.root, count)


def test_batch_is_whole_and_is_not_repeated(lab: Lab) -> None:
    """What only an engine computes is Spark's; a committed batch is not even computed again."""
    called, logs = [], []

    def log_of(place: str) -> Any:
        jvm = lab.spark._jvm
        found = jvm.org.apache.spark.sql.delta.DeltaLog
        return found.forTable(lab.spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(place))

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        called.append(batch_id)
        route(tx, frame, batch_id)
        staging = tx._tables[NUMBERS].place
        logs.append((staging, log_of(staging)))
        assert log_of(staging).equals(logs[0][1])

    begun(lab, BATCH)
    run(lab, function=function)
    lab.forget_batch("commits", 0)
    run(lab, function=function)
    assert called == [0]
    # Delta has forgotten the staging table: there is one for each batch.
    ((staging, log),) = logs
    assert not log_of(staging).equals(log)
    check(lab, BATCH)
    table = f"delta.`{place(lab.root, NUMBERS)}`"
    (row,) = lab.spark.sql(
        "SELECT count_if(twice = 2 * id), count_if(note = 'none'), count(DISTINCT "
        f"_metadata.row_id), count(DISTINCT parity) FROM {table}"
    ).collect()
    assert tuple(row) == (BATCH, BATCH, BATCH, 2)


@pytest.mark.soak
def test_function_that_raises_changes_nothing(lab: Lab) -> None:
    """Its batch is repeated, and is one commit in each table."""
    called = []

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        called.append(batch_id)
        route(tx, frame, batch_id)
        if len(called) == 2:
            raise RuntimeError("this batch fails")

    begun(lab)
    with pytest.raises(StreamingQueryException, match="this batch fails"):
        run(lab, function=function)
    check(lab, BATCH)
    run(lab, function=function)
    assert called == [0, 1, 1]
    check(lab)
    table = f"delta.`{place(lab.root, NUMBERS)}`"
    history = [row.operation for row in lab.spark.sql(f"DESCRIBE HISTORY {table}").collect()]
    assert history == ["WRITE", "WRITE", "ADD CONSTRAINT", "CREATE TABLE"]


@pytest.mark.soak
def test_lost_checkpoint_goes_on_exactly_once(lab: Lab) -> None:
    """By the group's offsets, which are in the transaction; with every way to stage rows (R59)."""

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr(*ROWS)
        tx.write(pipeline.split(frame))
        tx.append(NUMBERS, rows.where("parity = 'even'"))
        tx.sql(
            "INSERT INTO {silver.numbers} (id, parity) SELECT id, parity FROM {odd}",
            odd=rows.where("parity = 'odd'"),
        )
        tx.sql("insert into table {silver.newest} VALUES (-1)")

    begun(lab, 3 * BATCH)
    stopped = []

    def failing(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        function(tx, frame, batch_id)
        stopped.append(batch_id)
        if batch_id == 1:
            raise RuntimeError("stop")

    with pytest.raises(StreamingQueryException, match="stop"):
        run(lab, function=failing)
    shutil.rmtree(lab.checkpoint)
    run(lab, function=function, checkpoint=lab.checkpoint.with_name("new"))
    lab.sweep()
    pipeline.check(lab.root, 3 * BATCH)
    assert ids(lab.spark, lab.root) == list(range(3 * BATCH))
    assert ids(lab.spark, lab.root, NEWEST) == [-1, -1, -1]
    # The figures of a batch are in the decision of the next one.
    rows = lab.root.glob("__transaction_state-*/_delta_log/*.json")
    assert any("stageMs" in commit.read_text() for commit in rows)


@pytest.mark.soak
def test_overwrite_replaces_partitions_with_the_rows_that_follow(lab: Lab) -> None:
    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr(*ROWS)
        odd, even = rows.where("parity = 'odd'"), rows.where("parity = 'even'")
        tx.overwrite(NUMBERS, odd.where("false"), partitions=[{"parity": "odd"}])
        tx.append(NUMBERS, odd)
        tx.write(pipeline.split(frame))
        if batch_id == 1:
            tx.append(NUMBERS, even)

    begun(lab)
    with pytest.raises(StreamingQueryException, match="TableDataError.*in no partition"):
        run(lab, function=function)
    lab.sweep()
    assert ids(lab.spark, lab.root) == list(range(1, BATCH, 2))


REFUSED: dict[str, tuple[Callable[[Transaction, DataFrame], object], str]] = {
    "null": (
        lambda tx, f: tx.append(NUMBERS, f.selectExpr("cast(NULL AS BIGINT) id", "'x' parity")),
        "id : null",
    ),
    "constraint": (
        lambda tx, f: tx.append(NUMBERS, f.selectExpr("5000L id", "'x' parity")),
        "DELTA_VIOLATE_CONSTRAINT",
    ),
    "column": (
        lambda tx, f: tx.append(NUMBERS, f.selectExpr("1L id", "1 more")),
        "DELTA_METADATA_MISMATCH|schema mismatch",
    ),
    "no table": (lambda tx, f: tx.append("silver.none", f), "No table 'silver.none' is enlisted"),
    "no partition": (
        lambda tx, f: tx.overwrite(NUMBERS, f, partitions=[{"id": 1}]),
        "'id' is no partition column",
    ),
    "twice": (
        lambda tx, f: (tx.append(NEWEST, f.selectExpr("1L id")), tx.overwrite(NEWEST, f)),
        "writes to table 'silver.newest' already",
    ),
    "replace": (
        lambda tx, f: tx.sql(
            "INSERT INTO {silver.numbers} REPLACE WHERE id > 0 SELECT 1L id, 'x' parity, 2L, 'y'"
        ),
        "mode Overwrite",
    ),
    "app id": (
        lambda tx, f: (
            f.sparkSession.conf.set("spark.databricks.delta.write.txnAppId", "mine"),
            tx.append(NUMBERS, f),
        ),
        "txnAppId is set in this session",
    ),
    "no value": (lambda tx, f: tx.write(f.selectExpr("'t' topic")), "'value' not found"),
}


@pytest.mark.soak
@pytest.mark.parametrize("case", REFUSED)
def test_refused_writes_change_nothing_even_if_they_are_caught(lab: Lab, case: str) -> None:
    """A write that failed in part must not be committed without the rest."""
    write, why = REFUSED[case]
    errors = []

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        tx.write(pipeline.split(frame))
        try:
            write(tx, frame)
        except Exception as error:
            errors.append(str(error))

    begun(lab)
    with pytest.raises(StreamingQueryException) as raised:
        run(lab, function=function)
    found = errors[0] if errors else str(raised.value)
    assert any(each in found for each in why.split("|")), found
    assert lab.values() == []
    assert ids(lab.spark, lab.root) == ids(lab.spark, lab.root, NEWEST) == []


FEATURES = """
CREATE TABLE {} (id BIGINT, short VARCHAR(3), v VARIANT, at TIMESTAMP_NTZ)
USING delta CLUSTER BY (id)
TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.appendOnly' = 'true',
'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1',
'delta.enableTypeWidening' = 'true', 'delta.autoOptimize.autoCompact' = 'true')
"""


@pytest.mark.soak
def test_tables_of_other_features_are_written(lab: Lab) -> None:
    """Spark goes on with them afterwards: it compacts, and shows the change feed."""
    name = "silver.features"
    table = f"delta.`{place(lab.root, name)}`"

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr(*ROWS).selectExpr(
            "id", "'abc' AS short", "parse_json('[1]') AS v", "timestamp_ntz'2026-01-01' AS at"
        )
        for part in (rows.where("id % 2 = 0"), rows.where("id % 2 = 1")):
            tx.append(name, part)
        tx.write(pipeline.split(frame))

    lab.feed(0, BATCH)
    lab.spark.sql(FEATURES.replace("{}", table))
    tables_pipeline.enlist(lab.root, name)
    run(lab, function=function)
    lab.spark.sql(f"OPTIMIZE {table}")
    found = lab.spark.sql(
        f"SELECT id FROM {table} WHERE short = 'abc' AND variant_get(v, '$[0]', 'int') = 1"
    )
    assert sorted(row.id for row in found.collect()) == list(range(BATCH))
    feed = lab.spark.read.format("delta").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", 1).load(place(lab.root, name))
    assert changes.where("_change_type = 'insert'").count() == BATCH


@pytest.mark.soak
def test_calls_at_the_wrong_place_are_refused(lab: Lab, tmp_path: Path) -> None:
    """Outside of a query, after the function has returned, with the checkpoint of another query."""
    kept: list[Transaction] = []

    def function(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        kept.append(tx)
        tx.write(pipeline.split(frame))

    begun(lab)
    process = transactional(str(lab.root))(function)
    with pytest.raises(ConfigError, match=r"foreachBatch"):
        process(lab.spark.range(1), 0)
    run(lab, function=function)
    with pytest.raises(InvalidTxnStateError, match="has returned"):
        kept[0].write(lab.spark.range(1))
    other = transactional(str(lab.root), checkpoint=str(lab.checkpoint))(function)
    lab.feed(2 * BATCH, 3 * BATCH)
    writer = pipeline.numbers(lab.spark, lab.root).writeStream.foreachBatch(other)
    query = writer.option("checkpointLocation", str(tmp_path / "other")).start()
    with pytest.raises(StreamingQueryException, match="is that of query"):
        query.awaitTermination(300)


@pytest.mark.soak
@pytest.mark.parametrize("name", STEPS)
def test_killed_driver_is_started_again(
    lab: Lab, start_driver: Callable[[], Driver], name: str
) -> None:
    """SIGKILL in its second batch, then another driver with the same checkpoint (R54, R74)."""
    begun(lab, 3 * BATCH)
    driver = start_driver()
    driver.failpoint.set(f"{name}@{hit_in_second_batch(name)}")
    driver.run_to_death("transactional", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    run(lab)
    check(lab, 3 * BATCH)


@pytest.mark.soak
@pytest.mark.parametrize("log", ["__transaction_state", "numbers", "evens", "__consumer_offsets"])
def test_lost_reply_is_found_out(lab: Lab, monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    """Each commit of the second batch lands, and its reply is lost."""
    begun(lab)
    put, lost = ObjectStore.put_if_absent, []

    def put_and_lose(self: ObjectStore, path: str, data: bytes) -> bool:
        landed = put(self, path, data)
        if landed and log in f"{self.url}/{path}" and b'"id":' not in data:
            lost.append(path)
            if len(lost) == 2:
                raise StorageError("the reply is lost")
        return landed

    monkeypatch.setattr(ObjectStore, "put_if_absent", put_and_lose)
    run(lab)
    monkeypatch.undo()
    assert len(lost) >= 2
    check(lab)
