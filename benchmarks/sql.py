"""Batch reads of a topic by Spark's Delta reader, compared with plain Delta reads of its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from benchmarks.session import take_turns
from benchmarks.source import RATE, TOPIC, fill
from spark_source.sql import read_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 0.95
READS_PER_ROUND = 4
SAME_TABLE = "the topic's Delta table"
OWN_TABLE = "a Delta table of Spark's"


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Records per millisecond into Spark's noop sink, equal columns, with frame creation."""
    root = new_folder()
    fill(spark, Path(root), scale)

    def plain(table: str) -> DataFrame:
        return spark.read.format("delta").load(f"{root}/{table}")

    def topic_table() -> DataFrame:
        return plain(TOPIC).selectExpr(
            "key", "value", f"'{TOPIC}' AS topic", "partition",
            "base_offset + offset_delta AS offset", "timestamp", "0 AS timestampType",
        )  # fmt: skip

    def reads(frame: Callable[[], DataFrame]) -> Callable[[], list[float]]:
        return lambda: [_rate(frame, scale.records) for _ in range(READS_PER_ROUND)]

    runs = take_turns(
        {
            OWN_TABLE: reads(lambda: plain("delta")),
            SAME_TABLE: reads(topic_table),
            OURS: reads(lambda: read_committed(spark, root, TOPIC)),
        },
        2 * scale.rounds,
    )
    found = Comparison("read_committed of 2 M records", RATE, runs)
    return [found.at_least(peer, GOAL) for peer in (SAME_TABLE, OWN_TABLE)]


def _rate(frame: Callable[[], DataFrame], records: int) -> float:
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return records / (time.perf_counter() - started) / 1000
