"""Throughput of the streaming sink beside Spark's Delta sink, and beside one that does nothing."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import Figure
from benchmarks.scale import Scale
from benchmarks.session import (
    TOPIC_PARTITIONS,
    input_stream,
    register_peers,
    run_query,
    speed_up,
    take_turns,
    triggers_ms,
    write_input,
)
from txnlog.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_numbers = itertools.count()


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Records per second of whole micro-batches, from the same Parquet files for all."""
    register_peers(spark)
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as root:
        folder = Path(root)
        source = write_input(spark, folder, scale)

        def peer(
            sink: Callable[[DataStreamWriter], DataStreamWriter], micro_batches: int
        ) -> Callable[[], list[float]]:
            def run() -> list[float]:
                frame = input_stream(spark, source, micro_batches=micro_batches, scale=scale)
                took_ms = triggers_ms(run_query(sink(frame.writeStream), folder))
                assert len(took_ms) == micro_batches
                return [scale.records / sum(took_ms)]

            return run

        def txnlog(writer: DataStreamWriter) -> DataStreamWriter:
            topic = f"topic{next(_numbers)}"
            Cluster.open(root, create=True).create_topic(topic, partitions=TOPIC_PARTITIONS)
            return writer.format("txnlog").option("topic", topic).option("path", root)

        def delta(writer: DataStreamWriter) -> DataStreamWriter:
            return writer.format("delta").option("path", f"{root}/delta{next(_numbers)}")

        def nothing(writer: DataStreamWriter) -> DataStreamWriter:
            return writer.format(NOTHING)

        many = scale.micro_batches
        streams = take_turns(
            {"Delta": peer(delta, many), "txnlog": peer(txnlog, many)}, scale.rounds
        )
        singles = take_turns({"nothing": peer(nothing, 1), "txnlog": peer(txnlog, 1)}, scale.rounds)
    name = "sink, 2 M records in"
    drops = "a Python sink that drops its rows"
    return [
        speed_up(f"{name} 10 micro-batches", 2.5, streams, "Delta", "Spark's Delta sink"),
        speed_up(f"{name} one micro-batch", 0.5, singles, "nothing", drops),
    ]
