"""Opening a long topic from its checkpoint: what every new process and every new worker pays."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from benchmarks.figures import Figure, at_most
from benchmarks.scale import Scale
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner, StagedBatch
from txnlog.storage.checkpoints import create_checkpoint, wait_for_background
from txnlog.storage.topic_log import TopicLog

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
    """The median of opening it with new objects, and of a new Python that does nothing else."""
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as root:
        _build(root, scale.live_batches)
        warm_ms = [_open_ms(root, scale) for _ in range(WARM_REPEATS)][1:]
        process_s = [_new_process_s(root, scale) for _ in range(PROCESS_REPEATS)][1:]
    name = "opening a topic of 10,000 batches from its checkpoint"
    return [
        at_most(f"{name}, warm", statistics.median(warm_ms), "ms", 30),
        at_most(f"{name}, new process", statistics.median(process_s), "s", 1),
    ]


def _build(root: str, batches: int) -> None:
    """A topic whose log names data files that are not there: opening reads none of them."""
    cluster = Cluster.open(root, create=True)
    topic = cluster.create_topic(TOPIC, partitions=PARTITIONS)
    row = cluster.coordinator.init_producer_id("bench", Owner(run_id="bench"))
    for _ in range(batches // BATCHES_PER_TRANSACTION):
        row = cluster.coordinator.commit(row, _batches(cluster, topic))
    wait_for_background()
    create_checkpoint(cluster.store, topic.path, trust_ms=topic.log.settings.trust_ms)


def _batches(cluster: Cluster, topic: TopicLog) -> list[StagedBatch]:
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
        for number in range(BATCHES_PER_TRANSACTION)
    ]


def _open_ms(root: str, scale: Scale) -> float:
    started = time.perf_counter()
    topic = Cluster.open(root).topic(TOPIC)
    took_ms = (time.perf_counter() - started) * 1000
    assert len(topic.view.by_path) == scale.live_batches
    return took_ms


def _new_process_s(root: str, scale: Scale) -> float:
    """From the start of Python to its end, imports and all."""
    command = [sys.executable, "-c", _NEW_PROCESS, root, TOPIC]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - started
    assert int(done.stdout) == scale.live_batches * RECORDS
    return took_s
