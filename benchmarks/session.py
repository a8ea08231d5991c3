"""Shared by the Spark benchmarks: session, input, running a query, and taking turns."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.do_nothing import DoNothing
from benchmarks.scale import Scale
from benchmarks.timed import TimedTxnLog
from jobs.spark_session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

KEYS = 100_000

_numbers = itertools.count()


@contextmanager
def bench_session(
    more: Mapping[str, str] | None = None, *, cores: int = 2
) -> Iterator[SparkSession]:
    """A session with conf/, which sets Unix domain sockets and the checkpoint file manager."""
    with tempfile.TemporaryDirectory(prefix="txnlog-") as folder:
        os.environ["SPARK_LOCAL_DIRS"] = f"{folder}/local"
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            # Otherwise Spark splits a micro-batch's files into equal tasks, one per core.
            "spark.sql.files.maxPartitionBytes": "1g",
            "spark.driver.memory": f"{max(1, cores // 4)}g",
            **(more or {}),
        }
        session = build_session("txnlog benchmarks", master=f"local[{cores}]", settings=settings)
        try:
            yield session
        finally:
            session.stop()


def register_peers(spark: SparkSession) -> None:
    """Register the formats of the benchmarks in the session."""
    spark.dataSource.register(DoNothing)
    spark.dataSource.register(TimedTxnLog)


def write_input(spark: SparkSession, folder: Path, scale: Scale) -> str:
    """Parquet files of keyed records, values of 100 hex digits; as many files as tasks."""
    path = str(folder / "input")
    files = scale.micro_batches * scale.files
    spark.range(0, scale.records, 1, files).selectExpr(
        f"cast(concat('key-', id % {KEYS}) as binary) as key",
        "cast(left(concat(sha2(cast(id as string), 256), sha2(cast(-id as string), 256)), 100)"
        " as binary) as value",
    ).write.parquet(path)
    return path


def input_stream(spark: SparkSession, path: str, *, micro_batches: int, scale: Scale) -> DataFrame:
    """The input as a stream of `micro_batches` micro-batches."""
    files = scale.micro_batches * scale.files
    return (
        spark.readStream.schema("key binary, value binary")
        .option("maxFilesPerTrigger", files // micro_batches)
        .parquet(path)
    )


def run_query(writer: DataStreamWriter, folder: Path) -> list[dict[str, Any]]:
    """Run a query to its end with a new checkpoint; returns the progress of each micro-batch."""
    checkpoint = folder / f"checkpoint-{next(_numbers)}"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        return [found for found in query.recentProgress if "addBatch" in found["durationMs"]]
    finally:
        query.stop()


def triggers_ms(progress: list[dict[str, Any]]) -> list[int]:
    """The duration of each micro-batch."""
    return [found["durationMs"]["triggerExecution"] for found in progress]


def take_turns(
    peers: Mapping[str, Callable[[], list[float]]],
    rounds: int,
    *,
    warm_ups: int = 1,
    runs: int = 1,
) -> dict[str, list[float]]:
    """The values of each peer in all rounds; every other round goes in reverse order.

    `warm_ups` rounds before them do not count. Of several `runs` in a turn only the last one
    counts, as a session is slower after it has waited.
    """
    found: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(1 - warm_ups, rounds + 1):
        order = list(peers) if number % 2 else list(peers)[::-1]
        for name in order:
            measured = [peers[name]() for _ in range(runs)][-1]
            what = f"round {number} of {rounds}" if number > 0 else "warm-up"
            print(f"  {what}: {name}, {statistics.median(measured):,.1f}", flush=True)
            if number > 0:
                found[name] += measured
    return found
