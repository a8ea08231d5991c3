"""Topics with real records on a memory store, and what a reader sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tests import world as worlds
from tests.staged_files import append_idempotent, append_ongoing, record_columns, written_file
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.protocol.sequences import ProducerStateEntry
from txnlog.protocol.topics import TopicState
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import SharedMemory

TOPIC = "orders"
OWNER = Owner(run_id="test")


class Record(NamedTuple):
    """A record to write. `headers` is a list of (name, value)."""

    key: bytes | None
    value: bytes | None
    timestamp_us: int = 1_000_000
    headers: list[tuple[str, bytes | None]] | None = None


class Seen(NamedTuple):
    """A record that was read."""

    offset: int
    record: Record


def world(*, partitions: int = 1, config: Mapping[str, str] | None = None) -> SharedMemory:
    """A store with one topic."""
    return worlds.world((TOPIC,), partitions=partitions, groups=(), config=config)


def stage(cluster: Cluster, records: Sequence[Record], *, partition: int = 0) -> StagedBatch:
    """Write a file that no commit refers to yet."""
    columns = {name: [getattr(r, name) for r in records] for name in ("key", "value", "headers")}
    times_us = [record.timestamp_us for record in records]
    return written_file(
        cluster, TOPIC, record_columns(timestamp=times_us, **columns), partition=partition
    )


@dataclass
class Idempotent:
    """An idempotent producer, with the sequences it has come to."""

    cluster: Cluster
    producer_id: int
    sequences: dict[int, int]
    sent: list[tuple[StagedBatch, int]]

    @classmethod
    def start(cls, cluster: Cluster) -> Idempotent:
        return cls(cluster, cluster.next_producer_id(), {}, [])

    def send(self, records: Sequence[Record], *, partition: int = 0) -> int:
        """The first offset."""
        sequence = self.sequences.get(partition, 0)
        batch = stage(self.cluster, records, partition=partition)
        offset = self.repeat(batch, sequence)
        self.sequences[partition] = sequence + len(records)
        self.sent.append((batch, sequence))
        return offset

    def repeat(self, batch: StagedBatch, sequence: int) -> int:
        (offset,) = append_idempotent(
            self.cluster, self.producer_id, [batch], {batch.partition: sequence}
        )
        return offset


def begin(cluster: Cluster, tid: str = "tx") -> TransactionMetadata:
    return cluster.coordinator.init_producer_id(tid, OWNER, timeout_ms=60_000)


def commit(
    cluster: Cluster, row: TransactionMetadata, records: Sequence[Record], *, partition: int = 0
) -> TransactionMetadata:
    """A deferred transaction of one batch."""
    return cluster.coordinator.commit(row, [stage(cluster, records, partition=partition)])


def append(
    cluster: Cluster,
    row: TransactionMetadata,
    records: Sequence[Record],
    *,
    partition: int = 0,
    sequence: int = 0,
) -> TransactionMetadata:
    """One batch of an eager transaction, which stays open."""
    log = cluster.topic(TOPIC)
    touched = TopicPartitions(topic=TOPIC, topic_id=log.topic_id, partitions=(partition,))
    row = cluster.coordinator.add_partitions(row, [touched])
    append_ongoing(
        cluster, row, [stage(cluster, records, partition=partition)], {partition: sequence}
    )
    return row


def records_of(log: TopicLog, partition: int = 0, *, read_committed: bool = True) -> list[Seen]:
    """What a reader gets from the log start to its end, file by file."""
    state = log.view
    end = state.last_stable_offset(partition) if read_committed else state.high_watermark(partition)
    start = state.log_start_offset(partition)
    found = []
    for header in state.batches(partition, start, end, read_committed):
        span = FileSpan(
            f"{log.path}/{header.path}",
            first_delta=max(0, start - header.base_offset),
            end_delta=min(end, header.last_offset + 1) - header.base_offset,
            num_records=header.num_records,
            size_bytes=header.size_bytes,
        )
        for batch in read_batch_file(log.store, span):
            columns = [batch.column(name) for name in ("key", "value", "timestamp", "headers")]
            columns[2] = columns[2].cast(pa.int64())
            for delta, *fields in zip(
                batch.column("offset_delta").to_pylist(),
                *(column.to_pylist() for column in columns),
                strict=True,
            ):
                headers = fields.pop()
                pairs = headers and [(pair["key"], pair["value"]) for pair in headers]
                found.append(Seen(header.base_offset + delta, Record(*fields, pairs)))
    return found


Bounds = tuple[int, int, int]


def bounds(state: TopicState) -> list[Bounds]:
    """(log start, last stable offset, end) of each partition."""
    return [
        (state.log_start_offset(n), state.last_stable_offset(n), state.high_watermark(n))
        for n in range(len(state.partitions))
    ]


def remembered(state: TopicState) -> dict[tuple[int, int], ProducerStateEntry]:
    """What a topic knows of each producer."""
    return dict(state.sequences)


def live(state: TopicState, partition: int = 0) -> list[tuple[int, int, str]]:
    """(first offset, last offset, status) of each file."""
    return [
        (batch.base_offset, batch.last_offset, batch.status)
        for batch in state.partitions[partition].batches
    ]


Snapshot = tuple[object, ...]


def snapshot(log: TopicLog) -> Snapshot:
    """All that compaction must leave as it is (R22)."""
    log.refresh()
    state = log.view
    visible = [records_of(log, number) for number in range(log.partitions)]
    return visible, bounds(state), remembered(state), dict(state.last_sequences)
