"""A topic whose files have the times, sizes and writers a test wants; only headers matter."""

from __future__ import annotations

import itertools

from tests import world as worlds
from tests.staged_files import append_idempotent, append_ongoing, named_file_of
from tests.world import PLAIN
from txnlog.cluster import Cluster
from txnlog.housekeeping.retention import Retention
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import SharedMemory

TOPIC = "log"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
UNKNOWN_MS = 2**53
"""A time that no calendar has: statistics leave it out."""

_names = itertools.count()


def world(*, settings: LogSettings = PLAIN, **config: object) -> SharedMemory:
    """A cluster with one topic of two partitions; `retention_ms` is retention.ms."""
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    return worlds.world((TOPIC,), groups=(), settings=settings, config=given)


def staged(
    cluster: Cluster,
    *,
    age_ms: int = 0,
    time_ms: int | None = None,
    size_bytes: int = 100,
    partition: int = 0,
    records: int = 2,
) -> StagedBatch:
    """A file whose newest record has this age or time; its object exists and is empty."""
    now_ms = cluster.store.now_ms()
    newest_us = (now_ms - age_ms if time_ms is None else time_ms) * 1000
    path = f"part-{partition}-{next(_names)}.parquet"
    cluster.store.put(f"{TOPIC}/{path}", b"x")
    return named_file_of(
        cluster.topic(TOPIC),
        path,
        partition=partition,
        records=records,
        size_bytes=size_bytes,
        times_us=(newest_us, newest_us),
        staged_ms=now_ms,
    )


class Idempotent:
    """A producer without transactional.id; knows its batches with the offsets they were given."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.producer_id = cluster.next_producer_id()
        self.sent: dict[int, list[tuple[StagedBatch, int, int]]] = {}

    def send(self, batch: StagedBatch) -> int:
        """Append; the first offset."""
        before = self.sent.setdefault(batch.partition, [])
        sequence = before[-1][1] + before[-1][0].num_records if before else 0
        offset = self._append(batch, sequence)
        before.append((batch, sequence, offset))
        return offset

    def repeat(self, partition: int, back: int) -> tuple[int, int]:
        """Send the batch before the last `back` again; the offset it gets, and the one it had."""
        batch, sequence, offset = self.sent[partition][-1 - back]
        return self._append(batch, sequence), offset

    def _append(self, batch: StagedBatch, sequence: int) -> int:
        [offset] = append_idempotent(
            self.cluster, self.producer_id, [batch], {batch.partition: sequence}
        )
        return offset


def owned(cluster: Cluster, tid: str = "tx") -> TransactionMetadata:
    return cluster.coordinator.init_producer_id(tid, Owner(run_id="run"), timeout_ms=60_000)


def commit(cluster: Cluster, *batches: StagedBatch, tid: str = "tx") -> None:
    """One deferred transaction."""
    cluster.coordinator.commit(owned(cluster, tid), list(batches))


def open_eagerly(cluster: Cluster, *batches: StagedBatch, tid: str = "open") -> TransactionMetadata:
    """An eager transaction with these batches as `ongoing`, in this order."""
    row = owned(cluster, tid)
    sequences: dict[int, int] = {}
    for batch in batches:
        partitions = TopicPartitions(
            topic=TOPIC, topic_id=batch.topic_id, partitions=(batch.partition,)
        )
        row = cluster.coordinator.add_partitions(row, [partitions])
        first = sequences.get(batch.partition, 0)
        append_ongoing(cluster, row, [batch], {batch.partition: first})
        sequences[batch.partition] = first + batch.num_records
    return row


def enforce(cluster: Cluster, *, files_max: int = 10_000) -> int:
    """One check by a housekeeper of this process; how many files it removed."""
    return Retention(cluster, files_max=files_max).enforce_all()


def bounds(cluster: Cluster, partition: int = 0) -> tuple[int, int, int]:
    """(log start, LSO, end)."""
    view = cluster.topic(TOPIC).view
    return (
        view.log_start_offset(partition),
        view.last_stable_offset(partition),
        view.high_watermark(partition),
    )


def files(cluster: Cluster, partition: int = 0) -> list[int]:
    """Base offsets of the live files."""
    return [batch.base_offset for batch in topic(cluster).view.partitions[partition].batches]


def topic(cluster: Cluster) -> TopicLog:
    return cluster.topic(TOPIC)
