"""Topics with real records in a shared memory store, and consumers of them on a virtual clock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from tests import world as worlds
from tests.staged_files import append_ongoing, record_columns, written_file
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.one_off import commit_one_off
from txnlog.messages import Message, TopicPartition
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.testing.faults import SharedMemory

TIME_MS = 1_700_000_000_000
SESSION_MS = 45_000
BEAT_MS = 3_000


def world(partitions: int = 2, topic: str = "t") -> SharedMemory:
    """A store with a cluster and one topic."""
    return worlds.world((topic,), partitions=partitions, groups=())


def staged(
    cluster: Cluster,
    values: Sequence[bytes | None],
    *,
    topic: str = "t",
    partition: int = 0,
    time_ms: int = TIME_MS,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[object] | None = None,
) -> StagedBatch:
    """A data file of these records, one millisecond apart."""
    records = record_columns(
        timestamp=[(time_ms + number) * 1000 for number in range(len(values))],
        key=list(keys or []),
        value=list(values),
        headers=list(headers or []),
    )
    return written_file(cluster, topic, records, partition=partition)


def put(cluster: Cluster, *values: bytes, **where: Any) -> None:
    """Append records outside of transactions."""
    commit_one_off(cluster, [staged(cluster, values, **where)], Owner(run_id="put"))


class Writer:
    """A minimal transactional producer with eager publication."""

    def __init__(self, cluster: Cluster, name: str = "writer") -> None:
        self.cluster = cluster
        self.row = cluster.coordinator.init_producer_id(name, Owner(run_id=str(uuid.uuid4())))
        self._sequences: dict[int, int] = {}

    def append(self, *values: bytes, **where: Any) -> None:
        batch = staged(self.cluster, values, **where)
        touched = TopicPartitions(
            topic=batch.topic, topic_id=batch.topic_id, partitions=(batch.partition,)
        )
        self.row = self.cluster.coordinator.add_partitions(self.row, [touched])
        sequence = self._sequences.get(batch.partition, 0)
        append_ongoing(self.cluster, self.row, [batch], {batch.partition: sequence})
        self._sequences[batch.partition] = sequence + len(values)

    def commit(self) -> TransactionMetadata:
        self._sequences.clear()
        self.row = self.cluster.coordinator.commit(self.row)
        return self.row

    def abort(self) -> None:
        self._sequences.clear()
        self.row = self.cluster.coordinator.abort(self.row)


def consumer(cluster: Cluster, **config: Any) -> Consumer:
    """A consumer without a thread, from the earliest offset; `_` in a name stands for `.`."""
    settings = {
        name if name.endswith("_cb") else name.replace("_", "."): value
        for name, value in config.items()
    }
    return Consumer(
        {"auto.offset.reset": "earliest", **settings}, cluster=cluster, background=False
    )


def member(shared: SharedMemory, topics: Sequence[str] = ("t",), **config: Any) -> Consumer:
    """A subscribed consumer of group g in a separate process."""
    callbacks = {name: config.pop(name) for name in list(config) if name.startswith("on_")}
    made = consumer(process(shared), **{"group_id": "g", **config})
    made.subscribe(list(topics), **callbacks)
    return made


def read(reader: Consumer, timeout: float = 0) -> list[bytes | None]:
    """Values of all available messages."""
    return [message.value() for message in messages(reader, timeout)]


def messages(reader: Consumer, timeout: float = 0) -> list[Message]:
    return reader.consume(100_000, timeout)


def beat(*members: Consumer) -> None:
    """One heartbeat of each member, as from its thread."""
    for one in members:
        one._consumption().require_session().heartbeat.send()


def turn(shared: SharedMemory, *members: Consumer, rounds: int = 4) -> None:
    """Some rounds of heartbeats and polls that return no messages."""
    for _ in range(rounds):
        shared.clock.advance_ms(BEAT_MS)
        beat(*members)
        for one in members:
            one._consumption().maintain()


def parts(one: Consumer) -> list[int]:
    return [p.partition for p in one.assignment()]


def group_row(shared: SharedMemory) -> Group:
    found = process(shared).groups.describe("g")
    assert found is not None
    return found


def committed(reader: Consumer, partition: int = 0, timeout: float = 0) -> int:
    return reader.committed([TopicPartition("t", partition)], timeout)[0].offset


def sent(reader: Consumer, *, topic: str = "t") -> GroupOffsets:
    """A consumer's positions as send_offsets_to_transaction writes them (KIP-447)."""
    who = reader.consumer_group_metadata()
    held = reader.position(reader.assignment())
    return GroupOffsets(
        group_id=who.group_id,
        generation=who.generation,
        member_id=who.member_id,
        start={},
        end={topic: {p.partition: p.offset for p in held if p.offset >= 0}},
    )


class Told:
    """Records the calls of a consumer's callbacks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        def note(consumer: object, partitions: list[TopicPartition]) -> None:
            self.calls.append((name, [p.partition for p in partitions]))

        return note

    def callbacks(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("on_assign", "on_revoke", "on_lost")}


def reader_of(cluster: Cluster, partitions: int = 1, **config: object) -> Consumer:
    made = consumer(cluster, **config)
    made.assign([TopicPartition("t", number) for number in range(partitions)])
    return made


def at(reader: Consumer, partition: int = 0) -> int:
    return reader.position([TopicPartition("t", partition)])[0].offset
