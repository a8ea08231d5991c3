"""Throughput of the source, compared with Spark's Delta source, as a stream and as a batch."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.places import Place
from benchmarks.scale import Scale
from benchmarks.session import (
    input_stream,
    register_peers,
    run_query,
    take_turns,
    triggers_ms,
    write_input,
)
from txnlog.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

TOPIC = "topic"
RATE = "records/ms"


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Records per millisecond into Spark's noop sink, with the same rows and columns."""
    root = new_folder()
    fill(spark, Path(root), scale)
    runs = SourceRuns(spark, Place.on_disk(Path(root)), Path(root), scale)
    many = scale.micro_batches
    streams = take_turns(
        {"Delta": partial(runs.delta, many), OURS: partial(runs.txnlog, many)}, scale.rounds
    )
    batches = take_turns({"Delta": runs.delta_batch, OURS: runs.txnlog_batch}, scale.rounds)
    peer = "Spark's Delta source"
    streaming = Comparison("streaming source, 2 M records in 10 micro-batches", RATE, streams)
    batch = Comparison("batch read of 2 M records", RATE, batches)
    return [streaming.at_least("Delta", 1.3, peer), batch.at_least("Delta", 0.5, peer)]


def fill(spark: SparkSession, folder: Path, scale: Scale, place: Place | None = None) -> None:
    """The topic from the input, and the Delta table from the topic, in as many micro-batches."""
    place = place or Place.on_disk(folder)
    source = write_input(spark, folder, scale)
    cluster = Cluster.open(place.root, place.storage, create=True)
    cluster.create_topic(TOPIC, partitions=scale.partitions)
    frame = input_stream(spark, source, micro_batches=scale.micro_batches, scale=scale)
    options = {"topic": TOPIC, "path": place.root, **place.options}
    run_query(frame.writeStream.format("txnlog").options(**options), folder)
    runs = SourceRuns(spark, place, folder, scale)
    copy = runs.topic(scale.micro_batches).coalesce(scale.files)
    run_query(copy.writeStream.format("delta").option("path", runs.table), folder)
    assert spark.read.format("delta").load(runs.table).count() == scale.records


class SourceRuns:
    """Each run reads all that `fill` wrote at `place`, in micro-batches or as one batch."""

    def __init__(self, spark: SparkSession, place: Place, folder: Path, scale: Scale) -> None:
        self._spark = spark
        self._place = place
        self._folder = folder
        self._scale = scale
        self.table = f"{place.tables}/delta"
        register_peers(spark)

    def txnlog(self, micro_batches: int) -> list[float]:
        return self._stream(self.topic(micro_batches), micro_batches)

    def delta(self, micro_batches: int) -> list[float]:
        files = len(self._spark.read.format("delta").load(self.table).inputFiles())
        reader = self._spark.readStream.format("delta")
        frame = reader.option("maxFilesPerTrigger", files // micro_batches).load(self.table)
        return self._stream(frame, micro_batches)

    def nothing(self, micro_batches: int) -> list[float]:
        """From a Python source of equal rows: the upper limit of a source in Python."""
        reader = self._spark.readStream.format(NOTHING).option("batches", micro_batches)
        rows = self._scale.records // micro_batches
        frame = reader.option("rows", rows).option("tasks", self._scale.partitions).load()
        return self._stream(frame, micro_batches)

    def txnlog_batch(self) -> list[float]:
        reader = self._spark.read.format("txnlog").option("subscribe", TOPIC)
        return self._batch(reader.options(**self._place.options).load(self._place.root))

    def read_committed(self) -> list[float]:
        """The topic's Delta table with Spark's own reader."""
        from spark_source.sql import read_committed

        return self._batch(read_committed(self._spark, self._place.root, TOPIC))

    def delta_batch(self) -> list[float]:
        return self._batch(self._spark.read.format("delta").load(self.table))

    def topic(self, micro_batches: int) -> DataFrame:
        reader = self._spark.readStream.format("txnlog").option("subscribe", TOPIC)
        reader = reader.options(**self._place.options)
        return self._limited(reader, micro_batches).load(self._place.root)

    def _limited(self, reader: DataStreamReader, micro_batches: int) -> DataStreamReader:
        reader = reader.option("startingOffsets", "earliest")
        if micro_batches == 1:
            return reader
        # A few more, as each partition's share of them is rounded down.
        records = self._scale.records // micro_batches + self._scale.partitions
        return reader.option("maxOffsetsPerTrigger", records)

    def _stream(self, frame: DataFrame, micro_batches: int) -> list[float]:
        progress = run_query(frame.writeStream.format("noop"), self._folder)
        assert sum(found["numInputRows"] for found in progress) == self._scale.records
        # Delta ends its first snapshot with a micro-batch without rows.
        assert micro_batches <= len(progress) <= micro_batches + 1
        return [self._scale.records / sum(triggers_ms(progress))]

    def _batch(self, frame: DataFrame) -> list[float]:
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return [self._scale.records / (time.perf_counter() - started) / 1000]
