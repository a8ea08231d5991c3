"""A compacted topic with a long history: its cost for a process that opens it or reads its end.

Only the log is created: its data files do not exist, and no record is read.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median

from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.figures import Figure, at_most, reported
from benchmarks.folders import memory_folder
from benchmarks.opening import PARTITIONS, RECORDS, named, opening
from benchmarks.scale import Scale
from spark_source.schema import SPARK_COLUMNS
from spark_source.stream import open_reader
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction import commit_segment, settings_of
from txnlog.housekeeping.hygiene import Hygiene
from txnlog.protocol.compaction import CompactionGroup, Segment, plan
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.tables.topic_log import TopicLog

TOPIC = "long"
BATCHES_PER_TRANSACTION = 1_000
TRANSACTIONS_PER_COMPACTION = 20
# Log files are kept for a day, tombstones in checkpoints for a week: all of them are expired.
AGE_MS = 8 * 86_400_000
# One week of a year is younger.
YOUNG_SHARE = 50


def measure(scale: Scale) -> list[Figure]:
    """Medians of planning a micro-batch of 4 new batches, and of opening the topic."""
    name = f"a compacted topic of {scale.past_batches:,} batches"
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-", dir=memory_folder()) as root:
        _build(root, scale.past_batches)
        warm_ms, process_s = opening(root, TOPIC, end_offset=scale.past_batches * RECORDS)
        files = len(Cluster.open(root).topic(TOPIC).view.by_path)
        log_files = len(os.listdir(Path(root, TOPIC, "_delta_log")))
        planning_ms = _planning_ms(root, scale.tails)
        wait_for_background()
    return [
        at_most(f"{name}: planning a micro-batch", planning_ms, "ms", 10),
        at_most(f"{name}: opening, warm", warm_ms, "ms", 300),
        at_most(f"{name}: opening, new process", process_s, "s", 1.5),
        reported(f"{name}: files", files, ""),
        reported(f"{name}: files of its log", log_files, ""),
    ]


def _build(root: str, batches: int) -> None:
    """All but the last part is dated back by AGE_MS; at the end housekeeping cleans up the log."""
    cluster = Cluster.open(root, create=True)
    store_now_ms = cluster.store.now_ms
    cluster.store.now_ms = lambda: store_now_ms() - AGE_MS  # type: ignore[method-assign]
    topic = cluster.create_topic(TOPIC, partitions=PARTITIONS)
    row = cluster.coordinator.init_producer_id("bench", Owner(run_id="bench"))
    transactions = batches // BATCHES_PER_TRANSACTION
    young = max(1, transactions // YOUNG_SHARE)
    for number in range(1, transactions + 1):
        if number == transactions - young:
            wait_for_background()
            _age(root)
            cluster.store.now_ms = store_now_ms  # type: ignore[method-assign]
        row = cluster.coordinator.commit(row, named(cluster, topic, BATCHES_PER_TRANSACTION))
        if number % TRANSACTIONS_PER_COMPACTION == 0 or number == transactions:
            _compact(cluster, topic)
            print(f"\r{number:,} of {transactions:,} transactions", end="", flush=True)
    print("\r", end="")
    wait_for_background()
    create_checkpoint(cluster.store, topic.path, trust_ms=topic.log.settings.trust_ms)
    Hygiene(cluster).clean_logs()


def _compact(cluster: Cluster, topic: TopicLog) -> None:
    """Commit what compaction would merge now, with segments that do not exist."""
    topic.refresh()
    while groups := plan(topic.view, TOPIC, settings_of(topic.config)):
        for group in groups:
            commit_segment(cluster, group, _segment(cluster, group))


def _segment(cluster: Cluster, group: CompactionGroup) -> Segment:
    return Segment(
        path=f"part-{group.partition}-{uuid.uuid4()}.parquet",
        size_bytes=group.size_bytes,
        num_records=group.last_offset - group.base_offset + 1,
        timestamp_min_us=1_700_000_000_000_000,
        timestamp_max_us=1_700_000_000_000_000,
        staged_ms=cluster.store.now_ms(),
    )


def _age(root: str) -> None:
    """Set the modification times of all files back by AGE_MS."""
    then_s = time.time() - AGE_MS / 1000
    for folder, _, names in os.walk(root):
        for name in names:
            os.utime(os.path.join(folder, name), (then_s, then_s))


def _planning_ms(root: str, count: int) -> float:
    """The driver's Python work for a micro-batch: refresh, plan offsets, make tasks."""
    cluster = Cluster.open(root)
    topic = cluster.topic(TOPIC)
    row = cluster.coordinator.init_producer_id("late", Owner(run_id="late"))
    options = {"path": root, "subscribe": TOPIC, "startingOffsets": "latest"}
    reader = open_reader(options, SPARK_COLUMNS)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    times_ms = []
    for _ in range(count):
        row = cluster.coordinator.commit(row, named(cluster, topic, PARTITIONS))
        started = time.perf_counter()
        end = reader.latestOffset(start, ReadAllAvailable())
        tasks = reader.partitions(start, end)
        times_ms.append((time.perf_counter() - started) * 1000)
        assert tasks
        start = end
    return median(times_ms)
