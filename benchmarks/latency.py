"""Micro-batches of 100 records, topic to topic, compared with doing nothing and with Delta."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import OURS, Comparison, Figure, at_most
from benchmarks.folders import new_folder
from benchmarks.scale import TOPIC_PARTITIONS, Scale
from benchmarks.session import register_peers, run_query, take_turns
from benchmarks.timed import STEPS, TIMED, steps_ms
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.protocol.metadata import Owner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

NAME = "micro-batch of 100 records, topic to topic"
WITH_GROUP = "txnlog with group.id"
DOES_NOTHING = "a Python source and sink that do nothing"
ROWS = 100
SOURCE = "source"
GROUP = "group"
TRIGGER = "triggerExecution"
STEP_RUNS = 3

Phases = Mapping[str, int]


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Medians of triggerExecution, all in one session, and of our own code in each step."""
    root = new_folder()
    fill(root, scale)
    runs = LatencyRuns(spark, Path(root), Path(root), scale)
    python_peers = {
        "nothing": lambda: triggers_ms(runs.nothing()),
        OURS: lambda: triggers_ms(runs.txnlog()),
        WITH_GROUP: lambda: triggers_ms(runs.txnlog(GROUP)),
    }
    # The JVM continues compiling: rounds get faster up to about the fourth, ours for longer.
    for _ in range(scale.latency_warm_ups):
        for run in python_peers.values():
            run()
    beside_delta = take_turns({"Delta": lambda: triggers_ms(runs.delta()), **python_peers}, 1)
    # A round's median varies by up to a third: showing a tenth takes many rounds.
    beside_nothing = take_turns(python_peers, scale.latency_rounds)
    steps = {OURS: runs.steps(), WITH_GROUP: runs.steps(GROUP)}
    return figures(beside_nothing, beside_delta, steps)


def figures(
    beside_nothing: Mapping[str, list[float]],
    beside_delta: Mapping[str, list[float]],
    steps: Mapping[str, Mapping[str, float]],
) -> list[Figure]:
    """Figures of OURS and WITH_GROUP, compared with "nothing" and "Delta"."""
    result = []
    for ours in (OURS, WITH_GROUP):
        result += [
            Comparison(NAME, "ms", beside_nothing, ours).at_most("nothing", 1.15, DOES_NOTHING),
            Comparison(NAME, "ms", beside_delta, ours).at_most("Delta", 0.4, "Delta to Delta"),
        ]
        result += [
            at_most(f"our code in {step} of such a micro-batch, {ours}", value, "ms", 10)
            for step, value in steps[ours].items()
        ]
    return result


def triggers_ms(micro_batches: list[Phases]) -> list[float]:
    """The duration of each micro-batch."""
    return [float(phases[TRIGGER]) for phases in micro_batches]


def fill(root: str, scale: Scale) -> None:
    """A topic and a Delta table with a commit of ROWS rows per micro-batch, without Spark."""
    cluster = Cluster.open(root, create=True)
    cluster.create_topic(SOURCE, partitions=TOPIC_PARTITIONS)
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [b"key-%d" % number for number in range(ROWS)],
            "value": [uuid.uuid4().bytes * 6 + b"...." for _ in range(ROWS)],
        }
    )
    for _ in range(scale.small_warm_up + scale.small_micro_batches):
        stager = Stager(cluster, topic=SOURCE, include_headers=False, target_size_bytes=1 << 20)
        commit_one_off(cluster, stager.write([rows]), Owner(run_id="bench"))
        write_deltalake(f"{root}/delta", pa.table(rows.to_pydict()), mode="append")


class LatencyRuns:
    """Each run is a new query that copies the whole source, 100 rows at a time.

    It returns the phases of each micro-batch in ms, by Spark's names.
    """

    def __init__(self, spark: SparkSession, root: Path, folder: Path, scale: Scale) -> None:
        self._spark = spark
        self._root = str(root)
        self._folder = folder
        self._warm_up = scale.small_warm_up
        self._batches = scale.small_warm_up + scale.small_micro_batches
        self._numbers = itertools.count()
        register_peers(spark)

    def delta(self) -> list[Phases]:
        """From one table, a version with one file at a time, to another table."""
        reader = self._spark.readStream.format("delta").option("startingVersion", 0)
        frame = reader.option("maxFilesPerTrigger", 1).load(f"{self._root}/delta")
        target = str(self._folder / f"delta{next(self._numbers)}")
        return self._run(frame.writeStream.format("delta").option("path", target))

    def nothing(self) -> list[Phases]:
        """Spark's own time for a micro-batch with Python at both ends."""
        return self._run(self._nothing().writeStream.format(NOTHING))

    def nothing_to_jvm(self) -> list[Phases]:
        """The same with Python at the source only."""
        return self._run(self._nothing().writeStream.format("noop"))

    def txnlog(self, group_id: str = "") -> list[Phases]:
        """From topic to topic."""
        return self._txnlog("txnlog", {"group.id": group_id} if group_id else {})

    def steps(self, group_id: str = "") -> dict[str, float]:
        """The median ms of each of our steps; in runs of their own, as writing takes time."""
        found: dict[str, list[float]] = {step: [] for step in STEPS}
        for _ in range(STEP_RUNS):
            path = self._folder / f"timings{next(self._numbers)}"
            group = {"group.id": group_id} if group_id else {}
            self._txnlog(TIMED, {**group, "timings": str(path)})
            for step, times_ms in steps_ms(path).items():
                found[step] += times_ms[self._warm_up :]
        return {step: median(times_ms) for step, times_ms in found.items()}

    def _txnlog(self, name: str, options: Mapping[str, str]) -> list[Phases]:
        topic = f"topic{next(self._numbers)}"
        Cluster.open(self._root).create_topic(topic, partitions=TOPIC_PARTITIONS)
        reader = (
            self._spark.readStream.format(name)
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS)
        )
        frame = reader.options(**options).load(self._root).drop("topic", "partition")
        writer = frame.writeStream.format(name).option("topic", topic).option("path", self._root)
        return self._run(writer.options(**options))

    def _nothing(self) -> DataFrame:
        reader = self._spark.readStream.format(NOTHING)
        return reader.option("batches", self._batches).option("rows", ROWS).load()

    def _run(self, writer: DataStreamWriter) -> list[Phases]:
        progress = run_query(writer, self._folder)
        assert len(progress) == self._batches
        return [found["durationMs"] for found in progress[self._warm_up :]]
