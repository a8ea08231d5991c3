"""The pipeline of pipeline.py in `foreachBatch`: its topics and two Delta tables, together.

`silver.numbers` gets a row for each number, and has what only an engine can write and what is
filled in at publication; `silver.newest` is overwritten by each batch with its greatest number.
`silver.counts` counts them: each batch merges what it has read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_sink import Transaction, transactional
from tests.spark import pipeline
from txnlog.admin.client import AdminClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NUMBERS, NEWEST, COUNTS = "silver.numbers", "silver.newest", "silver.counts"
PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableDeletionVectors": "true",
    "delta.feature.allowColumnDefaults": "supported",
}
ROWS = (f"{pipeline.NUMBER} AS id", f"if({pipeline.NUMBER} % 2 = 0, 'even', 'odd') AS parity")

Function = Callable[[Transaction, "DataFrame", int], Any]


def place(root: str | Path, table: str) -> str:
    """Where a table is, as Spark has it."""
    return f"{root}-{table}".replace("s3://", "s3a://")


def create(spark: SparkSession, root: str | Path) -> None:
    """Make and enlist both tables; the root is there."""
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE delta.`{place(root, NUMBERS)}` (id BIGINT NOT NULL, parity STRING, "
        "twice BIGINT GENERATED ALWAYS AS (id * 2), note STRING DEFAULT 'none') USING delta "
        f"PARTITIONED BY (parity) TBLPROPERTIES ({listed})"
    )
    spark.sql(f"ALTER TABLE delta.`{place(root, NUMBERS)}` ADD CONSTRAINT small CHECK (id < 1000)")
    spark.sql(f"CREATE TABLE delta.`{place(root, NEWEST)}` (id BIGINT) USING delta")
    enlist(root, NUMBERS, NEWEST)


def enlist(root: str | Path, *tables: str) -> None:
    """Let transactions write to tables, which are there."""
    places = {table: place(root, table) for table in tables}
    for made in AdminClient({"txnlog.root": str(root)}).enlist_tables(places).values():
        made.result()


def route(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
    """What each batch writes."""
    rows = frame.selectExpr(*ROWS)
    tx.write(pipeline.split(frame))
    if batch_id % 2:
        tx.sql("INSERT INTO {silver.numbers} (id, parity) SELECT * FROM {rows}", rows=rows)
    else:
        tx.append(NUMBERS, rows)
    tx.overwrite(NEWEST, rows.selectExpr("max(id) AS id"))


COUNT = """
MERGE INTO {silver.counts} t USING {counted} c ON t.parity = c.parity
WHEN MATCHED THEN UPDATE SET count = t.count + c.count, newest = c.newest
WHEN NOT MATCHED THEN INSERT (parity, count, newest) VALUES (c.parity, c.count, c.newest)
"""


def create_counts(spark: SparkSession, root: str | Path) -> None:
    """Make and enlist the table of counts."""
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE delta.`{place(root, COUNTS)}` (parity STRING, count BIGINT, newest BIGINT) "
        f"USING delta TBLPROPERTIES ({listed})"
    )
    enlist(root, COUNTS)


def count(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
    """Rows into a topic and a table, and their number into what was counted before."""
    rows = frame.selectExpr(*ROWS)
    tx.write(pipeline.split(frame))
    tx.append(NUMBERS, rows)
    rows.createOrReplaceTempView("rows")
    counted = frame.sparkSession.sql(
        "SELECT parity, count(*) AS count, max(id) AS newest FROM rows GROUP BY parity"
    )
    tx.sql(COUNT, counted=counted)


def check_counts(spark: SparkSession, root: str | Path, count: int) -> None:
    """Topics, offsets, rows and counts have the numbers below `count`, an even one, once."""
    pipeline.check(root, count)
    assert ids(spark, root) == list(range(count))
    found = spark.sql(f"SELECT * FROM delta.`{place(root, COUNTS)}` ORDER BY parity").collect()
    half = count // 2
    assert [tuple(row) for row in found] == [("even", half, count - 2), ("odd", half, count - 1)]


def start(
    spark: SparkSession,
    root: str | Path,
    checkpoint: str | Path,
    *,
    batch_records: int | None = None,
    function: Function = route,
    **options: object,
) -> StreamingQuery:
    """Start the pipeline on the available input."""
    process = transactional(
        str(root),
        group_id=pipeline.GROUP,
        checkpoint=str(checkpoint),
        options=pipeline.set_options({"num.partitions": pipeline.PARTITIONS}, options),
    )(function)
    frame = pipeline.numbers(spark, root, maxOffsetsPerTrigger=batch_records)
    writer = frame.writeStream.foreachBatch(process).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def ids(spark: SparkSession, root: str | Path, table: str = NUMBERS) -> Sequence[int]:
    """What is in a table, for Spark's own reader."""
    rows = spark.sql(f"SELECT id FROM delta.`{place(root, table)}`").collect()
    return sorted(row.id for row in rows)


def check(spark: SparkSession, root: str | Path, count: int) -> None:
    """Topics, offsets and tables have the numbers below `count`, once."""
    pipeline.check(root, count)
    assert ids(spark, root) == list(range(count))
    assert ids(spark, root, NEWEST) == [count - 1]
