"""The job that every way in runs: a batch write, a stream topic to topic, batch reads, SQL.

It imports nothing of this checkout, so that what it finds is what the way in has put there. Under
spark-submit or plain Python; connect_job.py is its twin for Spark Connect. It reports in one file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COUNT = 60
GROUP = "splitters"
NUMBER = "cast(cast(value as string) as long)"


def main() -> None:
    """Run it and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--register", action="store_true", help="do not rely on the look-up")
    parser.add_argument("--kill-executor", action="store_true", help="in the stream's first task")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("ways in").getOrCreate()
    if arguments.register:
        from pyspark_txnlog import DefaultSource

        spark.dataSource.register(DefaultSource)
    report = run(spark, arguments.folder.resolve(), kill=arguments.kill_executor)
    (arguments.folder / "report.json").write_text(json.dumps(report))
    spark.stop()


def run(spark: SparkSession, folder: Path, *, kill: bool = False) -> dict[str, Any]:
    """All four operations of the format."""
    root, killed = str(folder / "root"), folder / "killed"
    write(spark, root)
    stream(spark, root, folder / "checkpoint", killed if kill else None)
    return {
        "numbers": read(spark, root, "evens,odds"),
        "workers": workers(spark),
        "sql": sql_count(spark, root),
    }


def write(spark: SparkSession, root: str) -> None:
    """Batch sink: the numbers below COUNT into topic numbers."""
    frame = spark.range(0, COUNT, 1, 2).selectExpr(
        "cast(id % 10 as string) as key", "cast(id as string) as value"
    )
    options = {"topic": "numbers", "num.partitions": "2"}
    frame.write.format("txnlog").options(**options).mode("append").save(root)


def stream(spark: SparkSession, root: str, checkpoint: Path, killed: Path | None) -> None:
    """Streaming source and sink: numbers into evens and odds, offsets in the same transaction."""
    frame = (
        spark.readStream.format("txnlog")
        .option("subscribe", "numbers")
        .option("group.id", GROUP)
        .option("startingOffsets", "committed")
        .option("auto.offset.reset", "earliest")
        .option("maxOffsetsPerTrigger", str(COUNT // 3))
        .load(root)
    )
    if killed is not None:
        frame = killing_its_executor(frame.repartition(2), killed)
    query = (
        frame.selectExpr("key", "value", f"if({NUMBER} % 2 = 0, 'evens', 'odds') as topic")
        .writeStream.format("txnlog")
        .option("group.id", GROUP)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(root)
    )
    if not query.awaitTermination(1_200):
        raise TimeoutError("the query is still running")


def read(spark: SparkSession, root: str, topics: str) -> list[int]:
    """Batch source: the numbers in some topics, sorted."""
    frame = spark.read.format("txnlog").option("subscribe", topics).load(root)
    return sorted(row.number for row in frame.selectExpr(f"{NUMBER} as number").collect())


def sql_count(spark: SparkSession, root: str) -> int:
    """The same source by its name in SQL."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW odds USING txnlog "
        f"OPTIONS (path '{root}', subscribe 'odds')"
    )
    return int(spark.sql("SELECT count(*) AS n FROM odds").collect()[0].n)


def workers(spark: SparkSession) -> list[dict[str, str]]:
    """Where tasks run, and which pyspark_txnlog they would import, one entry per executor."""

    def describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util
        import sys
        import time

        import pyarrow as pa

        for _ in batches:
            pass
        spec = importlib.util.find_spec("pyspark_txnlog")
        time.sleep(1)  # Else one executor may run all tasks.
        row = {
            "python": sys.executable,
            "module": str(spec.origin if spec else None),
            "cwd": os.getcwd(),
            "sockets": os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", ""),
        }
        yield pa.RecordBatch.from_pylist([row])

    schema = "python string, module string, cwd string, sockets string"
    rows = spark.range(0, 4, 1, 4).mapInArrow(describe, schema).distinct().collect()
    return sorted((row.asDict() for row in rows), key=lambda row: row["cwd"])


def killing_its_executor(frame: DataFrame, killed: Path) -> DataFrame:
    """`frame`; the first task to get here takes its executor with it, JVM and all."""
    marker = str(killed)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import signal
        import subprocess

        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield from batches
            return
        # This worker is a child of the daemon, and the daemon one of the executor.
        parent = subprocess.check_output(["ps", "-o", "ppid=", "-p", str(os.getppid())], text=True)
        os.kill(int(parent), signal.SIGKILL)

    return frame.mapInArrow(rows, frame.schema)


if __name__ == "__main__":
    main()
