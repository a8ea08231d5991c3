"""Producers over one shared memory store, and a reader that opens the files they wrote."""

from __future__ import annotations

import pytest

from tests.world import GROUP, PLAIN, TOPICS, process, world
from txnlog.cluster import Cluster
from txnlog.messages import ConsumerGroupMetadata, Message, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.batches import ABORTED, ONGOING
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.records import row_without_name
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import SharedMemory

__all__ = [
    "BOTH", "GROUP", "TOPICS", "Reports", "group", "input_at", "producer", "read", "started",
    "world",
]  # fmt: skip

BOTH = pytest.mark.parametrize("publish", ["deferred", "eager"])


def producer(
    shared: SharedMemory,
    name: str | None = None,
    publish: str = "deferred",
    *,
    settings: LogSettings = PLAIN,
    **config: object,
) -> Producer:
    """A producer in its own process, without a thread. `linger_ms` stands for linger.ms."""
    given: dict[str, object] = {key.replace("_", "."): value for key, value in config.items()}
    given["txnlog.root"] = "memory://"
    if name is not None:
        given["transactional.id"] = name
        given["transaction.publish"] = publish
    return Producer(given, cluster=process(shared, settings=settings), background=False)


def started(
    shared: SharedMemory, publish: str = "deferred", name: str = "tx", **config: object
) -> Producer:
    """A transactional producer that owns its id."""
    made = producer(shared, name, publish, **config)
    made.init_transactions()
    return made


def cluster_of(made: Producer) -> Cluster:
    """The cluster handle of the producer's process."""
    return made._outlet.cluster


def read(
    cluster: Cluster, topic: str, *, uncommitted: bool = False
) -> dict[int, list[tuple[int, bytes | None]]]:
    """partition -> (offset, value) of every record that a reader gets, from the data files."""
    log = cluster.topic(topic)
    found: dict[int, list[tuple[int, bytes | None]]] = {}
    for partition in range(log.partitions):
        view = log.view
        end = view.high_watermark(partition) if uncommitted else view.last_stable_offset(partition)
        records: list[tuple[int, bytes | None]] = []
        for header in view.batches(partition, 0, end, not uncommitted):
            assert uncommitted or header.status not in (ABORTED, ONGOING)
            span = FileSpan(f"{topic}/{header.path}", num_records=header.num_records)
            for batch in read_batch_file(cluster.store, span):
                assert row_without_name(batch.column("headers")) is None
                deltas = batch.column(0).to_pylist()
                values = batch.column(3).to_pylist()
                records += [
                    (header.base_offset + delta, value)
                    for delta, value in zip(deltas, values, strict=True)
                ]
        found[partition] = records
    return found


def values(cluster: Cluster, topic: str, *, uncommitted: bool = False) -> list[str]:
    """All values a reader gets, by partition and offset."""
    return [
        (value or b"").decode()
        for records in read(cluster, topic, uncommitted=uncommitted).values()
        for _, value in records
    ]


def input_at(offset: int) -> list[TopicPartition]:
    """Positions of one input partition."""
    return [TopicPartition("input", 0, offset)]


def group(generation: int = 1) -> ConsumerGroupMetadata:
    """A consumer outside of any assignment."""
    return ConsumerGroupMetadata(GROUP, generation)


class Reports:
    """A delivery callback that records its calls."""

    def __init__(self) -> None:
        self.received: list[tuple[Exception | None, Message]] = []

    def __call__(self, error: Exception | None, message: Message) -> None:
        self.received.append((error, message))

    @property
    def offsets(self) -> list[tuple[str, int, int | None]]:
        return [(m.topic(), m.partition(), m.offset()) for e, m in self.received if e is None]

    @property
    def errors(self) -> list[str]:
        return [type(error).__name__ for error, _ in self.received if error is not None]
