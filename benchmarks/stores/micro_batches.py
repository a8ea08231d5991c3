"""Micro-batches of 100 records on S3: topic to topic, beside Delta table to Delta table on s3a."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.scale import TOPIC_PARTITIONS, Scale
from benchmarks.session import bench_session, run_query, take_turns, triggers_ms
from benchmarks.stores.server import S3, Server, s3_server
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.protocol.metadata import Owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

NAME = "micro-batch of 100 records on S3, topic to topic"
WITH_GROUP = "txnlog with group.id"
DELTA = "Delta"
ROWS = 100
SOURCE = "source"
GROUP = "group"
DELTA_MAX = 0.5


def measure(scale: Scale) -> list[Figure]:
    """Medians of triggerExecution, all in one session; checkpoints are on the local disk."""
    with s3_server() as server, bench_session(server.far.hadoop()) as spark:
        _fill(server, scale)
        runs = _Runs(spark, server.far, Path(new_folder()), scale)
        peers = {
            DELTA: runs.delta,
            OURS: runs.txnlog,
            WITH_GROUP: lambda: runs.txnlog(GROUP),
        }
        found = take_turns(peers, scale.rounds)
    compared = [Comparison(NAME, "ms", found, ours) for ours in (OURS, WITH_GROUP)]
    return [
        *compared[0].each(),
        *(one.at_most(DELTA, DELTA_MAX, "Delta to Delta on s3a") for one in compared),
    ]


def _fill(server: Server, scale: Scale) -> None:
    """A topic and a Delta table with a commit of ROWS rows per micro-batch, from near."""
    near = server.near
    cluster = Cluster.open(near.root("topics"), near.storage, create=True)
    cluster.create_topic(SOURCE, partitions=TOPIC_PARTITIONS)
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [b"key-%d" % number for number in range(ROWS)],
            "value": [uuid.uuid4().bytes * 6 + b"...." for _ in range(ROWS)],
        }
    )
    options = {f"aws_{name}": value for name, value in near.storage.items()}
    for _ in range(scale.small_warm_up + scale.small_micro_batches):
        stager = Stager(cluster, topic=SOURCE, include_headers=False, target_size_bytes=1 << 20)
        commit_one_off(cluster, stager.write([rows]), Owner(run_id="bench"))
        write_deltalake(
            near.root("delta"), pa.table(rows.to_pydict()), mode="append", storage_options=options
        )


class _Runs:
    """Each run is a new query that copies the whole source, 100 rows at a time."""

    def __init__(self, spark: SparkSession, s3: S3, folder: Path, scale: Scale) -> None:
        self._spark = spark
        self._topics = s3.place("topics")
        self._tables = s3.place("delta").tables
        self._folder = folder
        self._warm_up = scale.small_warm_up
        self._batches = scale.small_warm_up + scale.small_micro_batches
        self._numbers = itertools.count()

    def delta(self) -> list[float]:
        """From one table, a version with one file at a time, to another table."""
        reader = self._spark.readStream.format("delta").option("startingVersion", 0)
        frame = reader.option("maxFilesPerTrigger", 1).load(self._tables)
        target = f"{self._tables}{next(self._numbers)}"
        return self._run(frame.writeStream.format("delta").option("path", target))

    def txnlog(self, group_id: str = "") -> list[float]:
        """From topic to topic."""
        topics, topic = self._topics, f"topic{next(self._numbers)}"
        cluster = Cluster.open(topics.root, topics.storage)
        cluster.create_topic(topic, partitions=TOPIC_PARTITIONS)
        options = {**topics.options, **({"group.id": group_id} if group_id else {})}
        reader = (
            self._spark.readStream.format("txnlog")
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS)
        )
        frame = reader.options(**options).load(topics.root)
        writer = frame.drop("topic", "partition").writeStream.format("txnlog")
        writer = writer.option("topic", topic).option("path", topics.root)
        return self._run(writer.options(**options))

    def _run(self, writer: DataStreamWriter) -> list[float]:
        progress = run_query(writer, self._folder)
        assert len(progress) == self._batches
        return [float(took_ms) for took_ms in triggers_ms(progress[self._warm_up :])]
