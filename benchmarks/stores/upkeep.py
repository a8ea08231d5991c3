"""Whether housekeeping keeps up on S3: small files merged and files deleted per second."""

from __future__ import annotations

import os
import time
from functools import partial

from benchmarks.figures import Figure, at_least
from benchmarks.scale import Scale
from benchmarks.stores.server import S3, s3_server
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.protocol.batches import NONE, BatchHeader, encode_stats
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.writer import write_batch_file

TOPICS = 8
PARTITIONS = 4
RECORDS = 10
TIME_US = 1_700_000_000_000_000
MERGED_MIN, DELETED_MIN = 2_000, 5_000


def measure(scale: Scale) -> list[Figure]:
    """Files are written from near, and merged and deleted from far."""
    with s3_server() as server:
        merged = _merging(server.near, server.far, scale.store_files)
        deleted = _deleting(server.near, server.far, scale.store_files)
    return [
        at_least(f"small files merged, of {scale.store_files:,}", merged, "1/s", MERGED_MIN),
        at_least(f"files deleted, of {scale.store_files:,}", deleted, "1/s", DELETED_MIN),
    ]


def _merging(near: S3, far: S3, files: int) -> float:
    """Small files of several topics merged per second, as `txnlog housekeeping` does."""
    cluster = Cluster.open(near.root("merging"), near.storage, create=True)
    for number in range(TOPICS):
        _fill(cluster, f"topic-{number}", files // TOPICS)
    compactor = Compactor(Cluster.open(far.root("merging"), far.storage))
    started = time.perf_counter()
    merged = compactor.step()
    while compactor.is_busy():
        merged += compactor.step()
    took_s = time.perf_counter() - started
    assert merged == files, f"{merged} of {files} files were merged"
    return merged / took_s


def _deleting(near: S3, far: S3, files: int) -> float:
    """Files deleted per second, as vacuum does."""
    cluster = Cluster.open(near.root("deleting"), near.storage, create=True)
    paths = [f"topic/{number}" for number in range(files)]
    cluster.store.together([partial(cluster.store.put, path, b"1") for path in paths])
    store = Cluster.open(far.root("deleting"), far.storage).store
    started = time.perf_counter()
    store.delete(paths)
    took_s = time.perf_counter() - started
    assert not store.list("topic")
    return files / took_s


def _fill(cluster: Cluster, topic: str, files: int) -> None:
    """A topic of small files, committed at once."""
    log = cluster.create_topic(topic, partitions=PARTITIONS)
    records = RecordLists([TIME_US] * RECORDS, [None] * RECORDS, [b"x" * 100] * RECORDS)
    stats = encode_stats(RECORDS, TIME_US, TIME_US)

    def write(number: int) -> BatchHeader:
        partition, first = number % PARTITIONS, number // PARTITIONS * RECORDS
        path = f"part-{partition}-{os.urandom(16).hex()}.parquet"
        file = write_batch_file(cluster.store, f"{topic}/{path}", records)
        last = first + RECORDS - 1
        return BatchHeader(
            path, partition, first, last, -1, -1, -1, NONE, file.size_bytes, stats
        )  # fmt: skip

    adds = tuple(cluster.store.together([partial(write, number) for number in range(files)]))

    def decide(state: TopicState) -> TopicCommit | None:
        return None if state.by_path else TopicCommit(operation="APPEND", adds=adds)

    log.transact(decide)
