"""Whether housekeeping keeps up on an object store: small files merged and deleted per second.

`python -m benchmarks.upkeep [topics] [files per topic]`; every request takes 25 ms.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import partial

from benchmarks.slow_store import REQUEST_S, SlowStore
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.protocol.batches import NONE, BatchHeader, encode_stats
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.delta.delta_log import LogSettings

TIME_US = 1_700_000_000_000_000
RECORDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Files handled, and how long that took."""

    files: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.files / self.seconds


def merging(topics: int, files: int, partitions: int = 4) -> Rate:
    """Merge small files of several topics, as `txnlog housekeeping` does."""
    store = SlowStore(0)
    cluster = Cluster.open(store, create=True, settings=LogSettings(checkpoint_mode="off"))
    for number in range(topics):
        _fill(cluster, f"t{number}", partitions, files)
    store.request_s = REQUEST_S
    fresh = Cluster.open(store, settings=LogSettings(checkpoint_mode="off"))
    compactor = Compactor(fresh)
    begun_s = time.monotonic()
    merged = compactor.step()
    while compactor.is_busy():
        merged += compactor.step()
    return Rate(files=merged, seconds=time.monotonic() - begun_s)


def deleting(files: int) -> Rate:
    """Delete files as vacuum does."""
    store = SlowStore(0)
    paths = [f"t/{number}" for number in range(files)]
    store.together([partial(store.put, path, b"1") for path in paths])
    store.request_s = REQUEST_S
    begun_s = time.monotonic()
    store.delete(paths)
    return Rate(files=files, seconds=time.monotonic() - begun_s)


def _fill(cluster: Cluster, topic: str, partitions: int, files: int) -> None:
    log = cluster.create_topic(topic, partitions=partitions)
    value = b"x" * 100
    adds = []
    for number in range(files):
        partition, place = number % partitions, number // partitions
        path = f"part-{partition}-{os.urandom(16).hex()}.parquet"
        records = RecordLists([TIME_US] * RECORDS, [None] * RECORDS, [value] * RECORDS)
        file = write_batch_file(cluster.store, f"{topic}/{path}", records)
        base = place * RECORDS
        stats = encode_stats(RECORDS, TIME_US, TIME_US)
        last = base + RECORDS - 1
        header = BatchHeader(path, partition, base, last, -1, -1, -1, NONE, file.size_bytes, stats)
        adds.append(header)

    def decide(state: TopicState) -> TopicCommit | None:
        if state.by_path:
            return None
        return TopicCommit(operation="APPEND", adds=tuple(adds))

    log.transact(decide)


def main() -> None:
    """Print both rates."""
    topics, files = (int(text) for text in (*sys.argv[1:], "8", "2000")[:2])
    merged = merging(topics, files)
    print(f"merged {merged.files} files in {merged.seconds:.2f} s: {merged.per_s:.0f} per second")
    deleted = deleting(100_000)
    print(f"deleted {deleted.files} in {deleted.seconds:.2f} s: {deleted.per_s:.0f} per second")


if __name__ == "__main__":
    main()
