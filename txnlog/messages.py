"""Arguments and results of the clients: confluent-kafka's Message, TopicPartition and metadata.

The names and calls are the same (`message.value()`, `partition.offset`), so that code can migrate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000
OFFSET_INVALID = -1001

PARTITION_UA = -1
"""Partition unassigned: the partitioner chooses."""

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_CREATE_TIME = 1

Headers = Sequence[tuple[str, bytes | None]]


class Message(Struct, eq=False):
    """A consumed or delivered record. Timestamps are milliseconds since the epoch, UTC.

    In a delivery callback the message has its offset, or its error. Its arguments are given by
    position.
    """

    _topic: str
    _partition: int
    _offset: int | None
    _key: bytes | None
    _value: bytes | None
    _timestamp_ms: int | None
    _headers: list[tuple[str, bytes | None]] | None = None
    _error: Exception | None = None
    _latency_s: float | None = None

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        """None for a record that was not written."""
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """(name, value) in order; None when the record has none."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """(type, ms): TIMESTAMP_CREATE_TIME, or TIMESTAMP_NOT_AVAILABLE with 0."""
        if self._timestamp_ms is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, self._timestamp_ms

    def error(self) -> Exception | None:
        """Why the record was not written, or what a consumer reports; None for a record."""
        return self._error

    def latency(self) -> float | None:
        """Seconds from produce() until the record was acknowledged, to the millisecond.

        None for a record that was not written, and for one of a consumer.
        """
        return self._latency_s

    def leader_epoch(self) -> None:
        """None: there are no leaders."""

    def set_topic(self, value: str) -> None:
        self._topic = value

    def set_key(self, value: Any) -> None:
        """Replace the key, for example by the object that it was decoded to."""
        self._key = value

    def set_value(self, value: Any) -> None:
        """Replace the value, for example by the object that it was decoded to."""
        self._value = value

    def set_headers(self, value: list[tuple[str, bytes | None]] | None) -> None:
        self._headers = value

    def set_error(self, value: Any) -> None:
        self._error = value

    def __len__(self) -> int:
        """Bytes of the value."""
        return len(self._value or b"")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Message({self._topic}[{self._partition}]@{self._offset})"


@dataclass(slots=True, order=True)
class TopicPartition:
    """A partition, and a position in it: the next offset to read, or one of OFFSET_*."""

    topic: str
    partition: int = PARTITION_UA
    offset: int = field(default=OFFSET_INVALID, compare=False)
    metadata: str | None = field(default=None, compare=False)
    error: Exception | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition))


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer's identity in its group, for `Producer.send_offsets_to_transaction` (KIP-447)."""

    group_id: str
    generation: int
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition. There are no brokers: no leader, no replicas."""

    id: int
    leader: int = -1
    replicas: tuple[int, ...] = ()
    isrs: tuple[int, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by number; `error` if it does not exist or is unreadable."""

    topic: str
    partitions: Mapping[int, PartitionMetadata]
    error: Exception | None = None

    def __str__(self) -> str:
        return self.topic


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The topics of a cluster by name."""

    cluster_id: str
    topics: Mapping[str, TopicMetadata]
    brokers: Mapping[int, object] = field(default_factory=dict)
    controller_id: int = -1
    orig_broker_id: int = -1
    orig_broker_name: str = ""
