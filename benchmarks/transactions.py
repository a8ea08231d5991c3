"""One transaction after the other on a local disk: does the cost stay constant?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import pyarrow as pa

from benchmarks.figures import Figure, at_most, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner, StagedBatch
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import new_batch_name, write_batch_file
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.tables.topic_log import TopicLog

PARTITIONS = 4
RECORDS = 10
WINDOW_MAX = 100
TURNS = 10


def measure(scale: Scale) -> list[Figure]:
    """p50 of a transaction early and late in a topic's life, and of tailing one commit.

    A young and an old cluster take turns, since a machine's speed may change within seconds.
    """
    old, young = Writer.begin(), Writer.begin()
    window = min(WINDOW_MAX, scale.transactions // TURNS)
    old.write(scale.transactions, progress=True)
    young.write(window)
    wait_for_background()
    early_ms, late_ms = [], []
    for _ in range(TURNS):
        for writer, times_ms in ((young, early_ms), (old, late_ms)):
            times_ms += writer.write(window)
            wait_for_background()
    tail_ms = _tails(old.cluster, scale.tails)
    wait_for_background()
    durable = Writer.begin({"fsync": "true"})
    synced_ms = statistics.median(durable.write(scale.transactions // 20))
    wait_for_background()
    early, late = statistics.median(early_ms), statistics.median(late_ms)
    name = "transaction of 4 small batches, p50"
    return [
        at_most(f"{name} at number 100", early, "ms", 2),
        at_most(f"{name} at number {scale.transactions:,}", late, "ms", 2),
        at_most("the same, late / early", late / early, "x", 1.2, "transaction number 100"),
        reported(f"{name} with storage.fsync=true", synced_ms, "ms"),
        at_most("tailing one new commit of 4 batches, p50", tail_ms, "ms", 1),
    ]


class Writer:
    """One owner's transactions into a topic of a new cluster."""

    def __init__(self, cluster: Cluster, topic: TopicLog) -> None:
        self.cluster = cluster
        self._topic = topic
        self._row = cluster.coordinator.init_producer_id("bench", Owner(run_id="bench"))
        self._records = small_records()

    @classmethod
    def begin(cls, storage: Mapping[str, str] | None = None) -> Writer:
        cluster = Cluster.open(new_folder(), storage, create=True)
        return cls(cluster, cluster.create_topic("bench", partitions=PARTITIONS))

    def write(self, count: int, *, progress: bool = False) -> list[float]:
        """Stage 4 files, PREPARE, publish, COMPLETE; each in milliseconds."""
        times_ms = []
        for number in range(count):
            started = time.perf_counter()
            staged = stage(self.cluster, self._topic, self._records)
            self._row = self.cluster.coordinator.commit(self._row, staged)
            times_ms.append((time.perf_counter() - started) * 1000)
            if progress and number % 1_000 == 999:
                print(f"\r{number + 1:,} of {count:,} transactions", end="", flush=True)
        if progress:
            print("\r", end="")
        return times_ms


def _tails(cluster: Cluster, count: int) -> float:
    """In a second process: median duration of a refresh that reads one new commit."""
    reader = Cluster.open(cluster.root).topic("bench")
    writer = cluster.topic("bench")
    row = cluster.coordinator.init_producer_id("tail", Owner(run_id="tail"))
    records = small_records()
    times_ms = []
    for _ in range(count):
        row = cluster.coordinator.commit(row, stage(cluster, writer, records))
        started = time.perf_counter()
        reader.refresh()
        times_ms.append((time.perf_counter() - started) * 1000)
    assert reader.view.high_watermark(0) == writer.view.high_watermark(0)
    return statistics.median(times_ms)


def stage(cluster: Cluster, topic: TopicLog, records: pa.Table) -> list[StagedBatch]:
    """A file of the records for each partition."""
    staged = []
    for partition in range(PARTITIONS):
        name = new_batch_name(partition)
        written = write_batch_file(cluster.store, f"{topic.path}/{name}", records)
        staged.append(
            StagedBatch(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                path=name,
                size_bytes=written.size_bytes,
                num_records=written.num_records,
                timestamp_min_us=written.timestamp_min_us,
                timestamp_max_us=written.timestamp_max_us,
                staged_ms=cluster.store.now_ms(),
            )
        )
    return staged


def small_records(rows: int = RECORDS) -> pa.Table:
    """Records of 100 bytes."""
    columns = {
        "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
        "key": pa.array([b"key"] * rows, pa.binary()),
        "value": pa.array([b"v" * 100] * rows, pa.binary()),
    }
    return pa.table(
        [
            columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type)
            for field in RECORD_SCHEMA
        ],
        schema=RECORD_SCHEMA,
    )
