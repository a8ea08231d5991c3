"""Micro-batches of 100 records, from topic to topic, beside doing nothing and beside Delta."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import Figure, at_most
from benchmarks.scale import Scale
from benchmarks.session import (
    TOPIC_PARTITIONS,
    register_peers,
    run_query,
    take_turns,
    triggers_ms,
)
from benchmarks.timed_sink import TIMED
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

ROWS = 100
SOURCE = "source"
GROUP = "group"

_numbers = itertools.count()


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Medians of triggerExecution, all in one session, and of the sink's commit alone."""
    register_peers(spark)
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as root:
        runs = _Runs(spark, root, scale)
        found = take_turns(
            {
                "Delta": runs.delta,
                "nothing": runs.nothing,
                "txnlog": lambda: runs.txnlog(group_id=None),
                "txnlog with group.id": lambda: runs.txnlog(group_id=GROUP),
            },
            scale.rounds,
        )
    ms = {name: median(times_ms) for name, times_ms in found.items()}
    nothing = "a Python source and sink that do nothing"
    name = "micro-batch of 100 records, topic to topic"

    def against(ours: str, peer: str, what: str) -> str:
        return f"{what}: {ms[ours]:.0f} to {ms[peer]:.0f} ms"

    figures = []
    for ours, suffix in (("txnlog", ""), ("txnlog with group.id", ", with group.id")):
        commit_ms = median(runs.commits_ms[GROUP if suffix else None])
        figures += [
            at_most(
                name + suffix,
                ms[ours] / ms["nothing"],
                "x",
                1.15,
                against(ours, "nothing", nothing),
            ),
            at_most(
                name + suffix + " (Delta)",
                ms[ours] / ms["Delta"],
                "x",
                0.4,
                against(ours, "Delta", "Delta to Delta"),
            ),
            at_most(f"our code in the commit of such a micro-batch{suffix}", commit_ms, "ms", 10),
        ]
    return figures


class _Runs:
    """The peers. Each run is a query of its own that copies the whole source, 100 rows a time."""

    def __init__(self, spark: SparkSession, root: str, scale: Scale) -> None:
        self._spark = spark
        self._root = root
        self._scale = scale
        self._batches = scale.small_warm_up + scale.small_micro_batches
        self.commits_ms: dict[str | None, list[float]] = {None: [], GROUP: []}
        _fill(root, self._batches)

    def delta(self) -> list[float]:
        """From version to version of one table, each with one file, to another table."""
        reader = self._spark.readStream.format("delta").option("startingVersion", 0)
        frame = reader.option("maxFilesPerTrigger", 1).load(f"{self._root}/delta")
        target = f"{self._root}/delta{next(_numbers)}"
        return self._run(frame.writeStream.format("delta").option("path", target))

    def nothing(self) -> list[float]:
        """What Spark itself takes for a micro-batch with Python on both ends."""
        reader = self._spark.readStream.format(NOTHING)
        frame = reader.option("batches", self._batches).option("rows", ROWS).load()
        return self._run(frame.writeStream.format(NOTHING))

    def txnlog(self, group_id: str | None) -> list[float]:
        """From topic to topic; the time of each commit goes to commits_ms."""
        number = next(_numbers)
        topic, timings = f"topic{number}", Path(self._root, f"timings{number}")
        Cluster.open(self._root).create_topic(topic, partitions=TOPIC_PARTITIONS)
        reader = (
            self._spark.readStream.format("txnlog")
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS)
        )
        frame = reader.options(**_group(group_id)).load(self._root)
        writer = (
            frame.drop("topic", "partition")
            .writeStream.format(TIMED)
            .option("topic", topic)
            .option("path", self._root)
            .option("timings", str(timings))
        )
        found = self._run(writer.options(**_group(group_id)))
        commits_ms = [float(line) for line in timings.read_text().splitlines()]
        self.commits_ms[group_id] += commits_ms[self._scale.small_warm_up :]
        return found

    def _run(self, writer: DataStreamWriter) -> list[float]:
        took_ms = triggers_ms(run_query(writer, Path(self._root)))
        assert len(took_ms) == self._batches
        return [float(ms) for ms in took_ms[self._scale.small_warm_up :]]


def _group(group_id: str | None) -> dict[str, str]:
    return {} if group_id is None else {"group.id": group_id}


def _fill(root: str, batches: int) -> None:
    """A topic and a Delta table with `batches` commits of ROWS rows each, not made by Spark."""
    cluster = Cluster.open(root, create=True)
    cluster.create_topic(SOURCE, partitions=TOPIC_PARTITIONS)
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [b"key-%d" % number for number in range(ROWS)],
            "value": [uuid.uuid4().bytes * 6 + b"...." for _ in range(ROWS)],
        }
    )
    for _ in range(batches):
        stager = Stager(cluster, topic=SOURCE, include_headers=False, target_size_bytes=1 << 20)
        cluster.coordinator.commit_one_off(stager.write([rows]), Owner(run_id="bench"))
        write_deltalake(f"{root}/delta", pa.table(rows.to_pydict()), mode="append")
