"""A Spark driver in a separate process, for tests that kill it or need a second one.

Its fail point is TXNLOG_FAILPOINT's. Started with a master; prints "ready"; then each line on stdin
is the arguments of a pipeline as JSON, answered when the query has ended by a line with its error,
or null. A fourth task attempt may succeed where the three before failed: `local[2,4]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from jobs.spark_session import build_session
from tests.spark import pipeline, tables_pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def main(master: str) -> None:
    """Answer commands until stdin ends."""
    spark = build_session(
        "txnlog tests, driver", master=master, settings={"spark.ui.enabled": "false"}
    )
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(outcome(spark, json.loads(line))), flush=True)
    spark.stop()


def outcome(spark: SparkSession, command: dict[str, Any]) -> str | None:
    """Run one command; its error as text, None when there was none."""
    what = {
        "stream": pipeline.start,
        "flaky stream": start_flaky,
        "transactional": tables_pipeline.start,
        "make tables": tables_pipeline.create,
        "check tables": tables_pipeline.check,
        "make counts": tables_pipeline.create_counts,
        "check counts": tables_pipeline.check_counts,
        "merging": partial(tables_pipeline.start, function=tables_pipeline.count),
        "write": write,
        "count": count_by_sql,
    }[command.pop("command")]
    try:
        query = what(spark, **command)
        if query is not None:
            pipeline.run(query)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def start_flaky(spark: SparkSession, root: str, checkpoint: str) -> StreamingQuery:
    """The pipeline, with every task's first two attempts failing at the end of their input."""
    frame = pipeline.split(pipeline.numbers(spark, root))
    return pipeline.writer(failing_at_first(frame), root, checkpoint).start()


def count_by_sql(spark: SparkSession, root: str, topic: str, expected: int) -> None:
    """The committed records of a topic, by Spark's own Delta reader. Raises AssertionError."""
    committed = "txn_status in ('none', 'committed')"
    found = spark.read.format("delta").load(f"{root}/{topic}").where(committed).count()
    assert found == expected, f"{topic} has {found} records in SQL, not {expected}"


def write(
    spark: SparkSession, root: str, topic: str, count: int, tasks: int, large: bool = False
) -> None:
    """A batch write of the numbers below `count`, in several tasks."""
    frame = spark.range(0, count, 1, tasks).selectExpr(
        f"cast(id % {pipeline.KEYS} as string) as key",
        "cast(id as string) as value",
        *([pipeline.LARGE] if large else []),
    )
    frame.write.format("txnlog").option("topic", topic).mode("append").save(root)


def failing_at_first(frame: DataFrame) -> DataFrame:
    """Give all rows, then fail, but in a third attempt."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() < 2:
            raise RuntimeError("this attempt fails")

    return frame.mapInArrow(rows, frame.schema)


if __name__ == "__main__":
    main(sys.argv[1])
