"""Values that confluent-kafka's calls take or return, and that txnlog itself has not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from txnlog.process.version import VERSION

TIMESTAMP_LOG_APPEND_TIME = 2
"""Never returned: a record keeps the time that its producer gave it."""


def version() -> str:
    """The version of txnlog."""
    return VERSION


def libversion() -> tuple[str, int]:
    """The version of txnlog, also as a number, one byte for each of its parts."""
    number = 0
    for part in VERSION.split(".")[:3]:
        number = number << 8 | int("".join(filter(str.isdigit, part)) or 0)
    return VERSION, number << 8


@dataclass(frozen=True, slots=True)
class Node:
    """A broker. There are none: `describe_cluster()` returns one, for the root itself."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def id_string(self) -> str:
        return str(self.id)


@dataclass(frozen=True, slots=True)
class TopicPartitionInfo:
    """A partition of a topic that is described."""

    id: int
    leader: Node
    replicas: Sequence[Node]
    isr: Sequence[Node]


class ConsumerGroupType(Enum):
    """The protocol of a group: CLASSIC, always."""

    UNKNOWN = 0
    CONSUMER = 1
    CLASSIC = 2


class ElectionType(Enum):
    """Which replica shall lead; there are none."""

    PREFERRED = 0
    UNCLEAN = 1


class TopicCollection:
    """The names of topics to describe."""

    def __init__(self, topic_names: Iterable[str]) -> None:
        self.topic_names = list(topic_names)
