"""Limits of batches and tasks in real Spark (R61)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

WAIT_S = 600


@pytest.fixture
def filled(topics) -> Any:
    """Topic t: 3 partitions with 60, 30 and 0 records, in files of 10."""
    topics.create("t", 3)
    for partition, count in enumerate((60, 30)):
        for first in range(0, count, 10):
            values = [f"{partition}-{first + i}".encode() for i in range(10)]
            topics.append("t", partition, values)
    return topics


@pytest.fixture(autouse=True)
def queries_stopped(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def stream_of(spark: SparkSession, topics: Any, **options: str) -> DataFrame:
    given = {"subscribe": "t", "startingOffsets": "earliest", **options}
    return spark.readStream.format("txnlog").options(**given).load(topics.root)


def task_sizes(spark: SparkSession, topics: Any, **options: str) -> list[int]:
    """Records of each task of a batch read."""
    frame = spark.read.format("txnlog").options(subscribe="t", **options).load(topics.root)
    rows = frame.groupBy(F.spark_partition_id().alias("task")).count().orderBy("task").collect()
    return [row["count"] for row in rows]


def test_available_now_ends_at_the_end_fixed_at_its_start(
    spark: SparkSession, filled, tmp_path: Path
) -> None:
    """Each batch adds new records, as in a busy topic: the run still ends (R61)."""
    seen: list[list[str]] = []

    def see(frame: DataFrame, batch_id: int) -> None:
        seen.append([bytes(row.value).decode() for row in frame.select("value").collect()])
        filled.append("t", 2, [b"late"] * 5)

    def run() -> None:
        frame = stream_of(spark, filled, maxOffsetsPerTrigger="40", minOffsetsPerTrigger="40")
        query = (
            frame.writeStream.foreachBatch(see)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    run()
    assert [len(batch) for batch in seen] == [39, 39, 12]
    values = [value for batch in seen for value in batch]
    assert "late" not in values
    assert len(set(values)) == 90
    seen.clear()
    run()
    assert seen[0] == ["late"] * 15
    assert len(seen) == 1


def test_min_partitions_and_max_records_hold(spark: SparkSession, filled) -> None:
    """Fewer tasks would leave cores idle, larger ones might exceed memory (R61)."""
    assert task_sizes(spark, filled) == [90]
    assert task_sizes(spark, filled, minPartitions="2") == [60, 30]
    assert task_sizes(spark, filled, minPartitions="6") == [15, 15, 15, 15, 15, 15]
    sizes = task_sizes(spark, filled, maxRecordsPerPartition="25")
    assert max(sizes) <= 25
    assert sizes == [20, 20, 20, 15, 15]
    both = task_sizes(spark, filled, maxRecordsPerPartition="25", minPartitions="8")
    assert len(both) == 8
    assert sum(both) == 90


def test_max_offsets_and_tasks_of_a_stream_hold(
    spark: SparkSession, filled, tmp_path: Path
) -> None:
    """All limits at once: no record twice, none lost (R61)."""
    tasks: list[list[int]] = []
    values: list[str] = []

    def see(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("value", F.spark_partition_id().alias("task")).collect()
        numbers = [row.task for row in rows]
        tasks.append([numbers.count(number) for number in sorted(set(numbers))])
        values.extend(bytes(row.value).decode() for row in rows)

    frame = stream_of(
        spark, filled, maxOffsetsPerTrigger="50", maxRecordsPerPartition="20", minPartitions="4"
    )
    query = (
        frame.writeStream.foreachBatch(see)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    assert [sum(batch) for batch in tasks] == [49, 41]
    assert all(len(batch) >= 4 and max(batch) <= 20 for batch in tasks)
    assert len(values) == len(set(values)) == 90


def test_min_offsets_delay_batches_up_to_max_trigger_delay(
    spark: SparkSession, filled, tmp_path: Path
) -> None:
    """Spark passes the limit back unchanged, and polls without empty batches (R61)."""
    frame = stream_of(spark, filled, minOffsetsPerTrigger="10", maxTriggerDelay="4s")
    query = (
        frame.writeStream.format("memory")
        .queryName("held_back")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="20 milliseconds")
        .start()
    )
    await_rows(query, [90])
    filled.append("t", 0, [b"x"] * 4)
    filled.append("t", 1, [b"x"] * 5)
    await_rows(query, [90, 9])
    waited_ms = batch_times_ms(query)[1] - batch_times_ms(query)[0]
    assert waited_ms >= 3_000
    filled.append("t", 2, [b"x"] * 10)
    await_rows(query, [90, 9, 10])
    assert batch_times_ms(query)[2] - batch_times_ms(query)[1] < 3_000


def batches(query: StreamingQuery) -> list[Any]:
    return [progress for progress in query.recentProgress if progress.numInputRows]


def batch_times_ms(query: StreamingQuery) -> list[float]:
    return [
        datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp() * 1000
        for progress in batches(query)
    ]


def await_rows(query: StreamingQuery, rows: list[int]) -> None:
    """Wait for batches with exactly these numbers of records."""
    deadline_s = time.monotonic() + WAIT_S
    while len(found := [progress.numInputRows for progress in batches(query)]) < len(rows):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)
    assert found == rows
