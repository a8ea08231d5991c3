"""Opening a long topic from its checkpoint: the cost for every new process and worker."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

from benchmarks.figures import Figure, at_most
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner, StagedBatch
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.tables.topic_log import TopicLog

PROJECT = Path(__file__).resolve().parent.parent
TOPIC = "long"
PARTITIONS = 4
RECORDS = 10
BATCHES_PER_TRANSACTION = 100
WARM_REPEATS = 21
PROCESS_REPEATS = 5

_NEW_PROCESS = """
import sys
from txnlog.cluster import Cluster
topic = Cluster.open(sys.argv[1]).topic(sys.argv[2])
print(sum(topic.view.high_watermark(partition) for partition in range(topic.partitions)))
"""


def measure(scale: Scale) -> list[Figure]:
    """Medians of opening it with new objects, and in a new Python process."""
    root = new_folder()
    _build(root, scale.live_batches)
    assert len(Cluster.open(root).topic(TOPIC).view.by_path) == scale.live_batches
    warm_ms, process_s = opening(root, TOPIC, end_offset=scale.live_batches * RECORDS)
    name = "opening a topic of 10,000 batches from its checkpoint"
    return [
        at_most(f"{name}, warm", warm_ms, "ms", 30),
        at_most(f"{name}, new process", process_s, "s", 1),
    ]


def _build(root: str, batches: int) -> None:
    """A topic whose data files do not exist: opening reads none of them."""
    cluster = Cluster.open(root, create=True)
    topic = cluster.create_topic(TOPIC, partitions=PARTITIONS)
    row = cluster.coordinator.init_producer_id("bench", Owner(run_id="bench"))
    for _ in range(batches // BATCHES_PER_TRANSACTION):
        row = cluster.coordinator.commit(row, named(cluster, topic, BATCHES_PER_TRANSACTION))
    wait_for_background()
    create_checkpoint(cluster.store, topic.path, trust_ms=topic.log.settings.trust_ms)


def named(cluster: Cluster, topic: TopicLog, count: int) -> list[StagedBatch]:
    """Batches of RECORDS records in files that do not exist."""
    return [
        StagedBatch(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=number % PARTITIONS,
            path=f"part-{number % PARTITIONS}-{uuid.uuid4()}.parquet",
            size_bytes=2_000,
            num_records=RECORDS,
            timestamp_min_us=1_700_000_000_000_000,
            timestamp_max_us=1_700_000_000_000_000,
            staged_ms=cluster.store.now_ms(),
        )
        for number in range(count)
    ]


def opening(root: str, topic: str, *, end_offset: int) -> tuple[float, float]:
    """Medians: in this process (ms), and from start to end of a new Python process (s).

    `end_offset` is the expected sum of the end offsets of all partitions.
    """
    warm_ms = [_open_ms(root, topic) for _ in range(WARM_REPEATS)][1:]
    process_s = [_new_process_s(root, topic, end_offset) for _ in range(PROCESS_REPEATS)][1:]
    return statistics.median(warm_ms), statistics.median(process_s)


def _open_ms(root: str, topic: str) -> float:
    started = time.perf_counter()
    Cluster.open(root).topic(topic)
    return (time.perf_counter() - started) * 1000


def _new_process_s(root: str, topic: str, end_offset: int) -> float:
    command = [sys.executable, "-c", _NEW_PROCESS, root, topic]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - started
    assert int(done.stdout) == end_offset
    return took_s
