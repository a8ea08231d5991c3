"""`txnlog verify` of a topic of a million batches: the whole log, two checkpoints, every file.

The data files are hard links of a few: without `--deep` only their sizes are checked.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
import uuid
from multiprocessing import get_context
from pathlib import Path

from benchmarks.figures import Figure, at_most, reported
from benchmarks.folders import memory_folder
from benchmarks.scale import Scale
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.protocol.batches import COMMITTED, BatchHeader, encode_stats
from txnlog.protocol.topics import TopicCommit, marker_app_id
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.tables.topic_log import TopicLog

TOPIC = "long"
PARTITIONS = 4
RECORDS = 10
COMMITS = 100
CHECKPOINTS = (COMMITS // 2, COMMITS - 1)
"""One is compared with the commits before it, the other with all of them."""
FILE = b"a data file" * 100
TIME_US = 1_700_000_000_000_000
LINKS_MAX = 50_000


def measure(scale: Scale) -> list[Figure]:
    """Seconds for the whole verification, and peak memory of the process."""
    name = f"verifying a topic of {scale.verified_batches:,} batches"
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-", dir=memory_folder()) as root:
        # In its own process: its memory must not count.
        builder = get_context("spawn").Process(target=_build, args=(root, scale.verified_batches))
        builder.start()
        builder.join()
        assert builder.exitcode == 0
        before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        started, worked = time.perf_counter(), time.process_time()
        found = AdminClient({"txnlog.root": root}).verify().result()
        took_s, worked_s = time.perf_counter() - started, time.process_time() - worked
        after_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        assert found.batches == scale.verified_batches
        assert found.is_complete, found.errors
        assert not len(found.findings), found.findings.kept
    return [
        at_most(name, took_s, "s", 60),
        reported(f"{name}: processor time", worked_s, "s"),
        reported(f"{name}: memory", after_mib - before_mib, "MiB"),
    ]


def _build(root: str, batches: int) -> None:
    settings = LogSettings(checkpoint_mode="off")
    cluster = Cluster.open(root, create=True, settings=settings)
    topic = cluster.create_topic(TOPIC, partitions=PARTITIONS)
    topic.refresh()
    producer_id = cluster.next_producer_id()
    each = batches // COMMITS
    for epoch in range(COMMITS):
        adds = _adds(topic, producer_id, epoch, each)
        _link(Path(root, TOPIC), [add.path for add in adds])
        txns = {marker_app_id(producer_id): epoch}
        topic.transact(lambda state, adds=adds, txns=txns: _written(adds, txns))  # type: ignore[misc]
        if epoch in CHECKPOINTS:
            create_checkpoint(cluster.store, TOPIC, trust_ms=settings.trust_ms)


def _written(adds: tuple[BatchHeader, ...], txns: dict[str, int]) -> TopicCommit:
    return TopicCommit(operation="WRITE TXN MARKERS", adds=adds, txns=txns)


def _adds(topic: TopicLog, producer_id: int, epoch: int, count: int) -> tuple[BatchHeader, ...]:
    found = []
    for number in range(count):
        partition, place = number % PARTITIONS, number // PARTITIONS
        base = topic.view.high_watermark(partition) + place * RECORDS
        found.append(
            BatchHeader(
                f"part-{partition}-{uuid.uuid4()}.parquet",
                partition,
                base,
                base + RECORDS - 1,
                producer_id,
                epoch,
                place * RECORDS,
                COMMITTED,
                len(FILE),
                encode_stats(RECORDS, TIME_US, TIME_US),
            )
        )
    return tuple(found)


def _link(folder: Path, names: list[str]) -> None:
    """Hard links: a million take seconds and little memory."""
    for start in range(0, len(names), LINKS_MAX):
        first, *others = names[start : start + LINKS_MAX]
        (folder / first).write_bytes(FILE)
        for name in others:
            os.link(folder / first, folder / name)
