"""Micro-batches of 100 records into a topic, a Delta table, both; beside Spark's own Delta sink."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from benchmarks.figures import Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.latency import ROWS, SOURCE, fill
from benchmarks.scale import TOPIC_PARTITIONS, Scale
from benchmarks.session import run_query, take_turns, triggers_ms
from spark_sink import transactional
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_sink import Transaction

NAME = "micro-batch of 100 records from a topic"
BOTH, TABLE, TOPIC = "into a topic and a table", "into a table", "into a topic"
DELTA = "into a table, by Spark's Delta sink"
GROUP = "bench"


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Medians of triggerExecution, in turns, in one session."""
    root = new_folder()
    fill(root, scale)
    runs = _Runs(spark, root, scale)
    found = take_turns(
        {
            DELTA: runs.delta,
            TOPIC: lambda: runs.transactions(topic=True, table=False),
            TABLE: lambda: runs.transactions(topic=False, table=True),
            BOTH: lambda: runs.transactions(topic=True, table=True),
        },
        scale.rounds,
        warm_ups=scale.latency_warm_ups // 2,
    )
    comparison = Comparison(NAME, "ms", found, BOTH)
    return [*comparison.each(), *(comparison.ratio(peer) for peer in (TOPIC, TABLE, DELTA))]


class _Runs:
    """Each run is a new query that reads the whole source, 100 rows at a time."""

    def __init__(self, spark: SparkSession, root: str, scale: Scale) -> None:
        self._spark = spark
        self._root = root
        self._admin = AdminClient({"txnlog.root": root})
        self._warm_up = scale.small_warm_up
        self._batches = scale.small_warm_up + scale.small_micro_batches
        self._numbers = itertools.count()

    def delta(self) -> list[float]:
        """A table alone, exactly once while the checkpoint lives."""
        url = f"{self._root}-delta{next(self._numbers)}"
        folder = Path(new_folder())
        writer = self._source("").writeStream.format("delta").option("path", url)
        return self._times(run_query(writer, folder))

    def transactions(self, *, topic: bool, table: bool) -> list[float]:
        """By `transactional`, with the group's offsets."""
        number = next(self._numbers)
        name, group = f"made{number}", f"{GROUP}{number}"
        Cluster.open(self._root).create_topic(name, partitions=TOPIC_PARTITIONS)
        url = f"{self._root}-table{number}"
        source = self._source(group)
        self._spark.createDataFrame([], source.schema).write.format("delta").save(url)
        for made in self._admin.enlist_tables({name: url}).values():
            made.result()
        folder = Path(new_folder())
        checkpoint = folder / "checkpoint"

        @transactional(self._root, group_id=group, checkpoint=str(checkpoint))
        def process(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
            if topic:
                tx.write(frame.selectExpr("key", "value", f"'{name}' AS topic"))
            if table:
                tx.append(name, frame)

        query = (
            source.writeStream.foreachBatch(process)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
        if table:
            assert DeltaTable(url).version() == self._batches
        return self._times(found)

    def _source(self, group: str) -> DataFrame:
        reader = self._spark.readStream.format("txnlog").option("subscribe", SOURCE)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS)
        options = {"group.id": group} if group else {}
        return reader.options(**options).load(self._root).drop("topic")

    def _times(self, progress: list[dict[str, Any]]) -> list[float]:
        assert len(progress) == self._batches
        return [float(took_ms) for took_ms in triggers_ms(progress[self._warm_up :])]
