"""Throughput of the source beside Spark's Delta source, as a stream and as a batch."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.scale import Scale
from benchmarks.session import (
    TOPIC_PARTITIONS,
    input_stream,
    run_query,
    speed_up,
    take_turns,
    triggers_ms,
    write_input,
)
from txnlog.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "topic"
FILES_PER_MICRO_BATCH = 2


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Records per second into Spark's noop sink; both tables hold the same rows and columns."""
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as root:
        _fill(spark, root, scale)
        table = f"{root}/delta"
        files = len(spark.read.format("delta").load(table).inputFiles()) // scale.micro_batches

        def stream(frame: DataFrame) -> list[float]:
            writer = frame.writeStream.format("noop")
            progress = run_query(writer, Path(root))
            assert sum(found["numInputRows"] for found in progress) == scale.records
            # Delta ends its first snapshot with a micro-batch without rows.
            assert scale.micro_batches <= len(progress) <= scale.micro_batches + 1
            return [scale.records / sum(triggers_ms(progress))]

        def batch(frame: DataFrame) -> list[float]:
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            return [scale.records / (time.perf_counter() - started) / 1000]

        def delta_stream() -> list[float]:
            reader = spark.readStream.format("delta")
            return stream(reader.option("maxFilesPerTrigger", files).load(table))

        streams = take_turns(
            {"Delta": delta_stream, "txnlog": lambda: stream(_topic_stream(spark, root, scale))},
            scale.rounds,
        )
        batches = take_turns(
            {
                "Delta": lambda: batch(spark.read.format("delta").load(table)),
                "txnlog": lambda: batch(
                    spark.read.format("txnlog").option("subscribe", TOPIC).load(root)
                ),
            },
            scale.rounds,
        )
    peer = "Spark's Delta source"
    return [
        speed_up("streaming source, 2 M records in 10 micro-batches", 1.3, streams, "Delta", peer),
        speed_up("batch read of 2 M records", 0.5, batches, "Delta", peer),
    ]


def _fill(spark: SparkSession, root: str, scale: Scale) -> None:
    """The topic from the input, and the Delta table from the topic, in as many micro-batches."""
    folder = Path(root)
    source = write_input(spark, folder, scale)
    Cluster.open(root, create=True).create_topic(TOPIC, partitions=TOPIC_PARTITIONS)
    frame = input_stream(spark, source, micro_batches=scale.micro_batches, scale=scale)
    sink = frame.writeStream.format("txnlog").option("topic", TOPIC).option("path", root)
    run_query(sink, folder)
    copy = _topic_stream(spark, root, scale).coalesce(FILES_PER_MICRO_BATCH)
    run_query(copy.writeStream.format("delta").option("path", f"{root}/delta"), folder)
    assert spark.read.format("delta").load(f"{root}/delta").count() == scale.records


def _topic_stream(spark: SparkSession, root: str, scale: Scale) -> DataFrame:
    return (
        spark.readStream.format("txnlog")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        # A few more, as each partition's share of them is rounded down.
        .option("maxOffsetsPerTrigger", scale.records_per_micro_batch + TOPIC_PARTITIONS)
        .load(root)
    )
