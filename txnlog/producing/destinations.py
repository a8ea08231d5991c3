"""Metadata of the topics a producer writes to: cached, refreshed when old, created if missing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from txnlog.cluster import Cluster
from txnlog.errors import (
    ForkedProcessError,
    InvalidRecordError,
    RecordTooLargeError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.producing.producer_config import is_deferred
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.config import Config
from txnlog.settings.topic_configs import config_value, is_compacted

CHUNK_BYTES = 1 << 20
"""Bytes of a deferred transaction's records per topic before they become Arrow columns."""


@dataclass(slots=True)
class Destination:
    """A topic as the producer last read it.

    Records of `wake_bytes` are sent without waiting for more. `sticky_bytes` counts the bytes of
    records without a key: they select the sticky partition.
    """

    topic: str
    topic_id: str
    partitions: int
    record_bytes_max: int
    needs_key: bool
    wake_bytes: int
    read_ms: int
    sticky_seed: int
    sticky_bytes: int = 0


class Destinations:
    """Callers of `look_up` hold the producer's io lock; any thread may call `cached`."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._is_deferred = is_deferred(config)
        self._batch_bytes: int = config.get("batch.size")
        self._request_bytes_max: int = config.get("max.request.size")
        self._age_ms_max: int = config.get("metadata.max.age.ms")
        self._auto_create: bool = config.get("auto.create.topics.enable")
        self._partitions_of_new: int = config.get("num.partitions")
        self._cached: dict[str, Destination] = {}

    def cached(self, topic: str) -> Destination | None:
        """The topic as last read; None if that is missing, or older than metadata.max.age.ms."""
        cached = self._cached.get(topic)
        if cached is None or self._clock.boot_ms() - cached.read_ms > self._age_ms_max:
            return None
        return cached

    def look_up(self, topic: str) -> Destination:
        """Read the topic, or create it, and cache it.

        Raises InvalidTopicError, UnknownTopicOrPartitionError, TopicAuthorizationError,
        StorageError.
        """
        check_topic_name(topic)
        try:
            log = self._cluster.find_or_create_topic(
                topic, auto_create=self._auto_create, partitions=self._partitions_of_new
            )
        except ForkedProcessError:
            raise
        except TxnLogError as error:
            if not error.fatal:
                raise
            # No record was taken, and other topics can be written.
            raise error.replace(fatal=False) from error
        before = self._cached.get(topic)
        destination = Destination(
            topic=topic,
            topic_id=log.topic_id,
            partitions=log.partitions,
            record_bytes_max=min(
                config_value(log.config, "max.message.bytes"), self._request_bytes_max
            ),
            needs_key=is_compacted(log.config),
            wake_bytes=(CHUNK_BYTES if self._is_deferred else self._batch_bytes * log.partitions),
            read_ms=self._clock.boot_ms(),
            sticky_seed=random.randrange(1 << 30) if before is None else before.sticky_seed,
            sticky_bytes=0 if before is None else before.sticky_bytes,
        )
        self._cached[topic] = destination
        return destination

    def forget(self, topic: str) -> None:
        """Read the topic again at the next record."""
        self._cached.pop(topic, None)

    def forget_all(self) -> None:
        """Read every topic again."""
        self._cached = {}


def check_record(
    to: Destination,
    key: bytes | None,
    partition: int,
    size_bytes: int,
    row: int | None = None,
) -> None:
    """Refuse what the topic does not accept; `row` is that of a record in a batch.

    Raises RecordTooLargeError (R65), InvalidRecordError, UnknownTopicOrPartitionError.
    """
    what, left = f"A record for topic {to.topic!r}", "It was not taken"
    if row is not None:
        what = f"Row {row} of a batch for topic {to.topic!r}"
        left = "Nothing of the batch from there on was taken"
    if size_bytes > to.record_bytes_max:
        raise RecordTooLargeError(
            f"{what}, of {size_bytes} bytes, is larger than {to.record_bytes_max}, the smaller of "
            f"the topic's max.message.bytes and the producer's max.request.size. {left}; split it, "
            "or raise both.",
            topic=to.topic,
            size_bytes=size_bytes,
            size_bytes_max=to.record_bytes_max,
        )
    if not -1 <= partition < to.partitions:
        raise UnknownTopicOrPartitionError(
            f"{what} has partition {partition}; the topic has 0 to {to.partitions - 1}, and -1 "
            f"lets the partitioner choose. {left}.",
            topic=to.topic,
            partition=partition,
        )
    if key is None and to.needs_key:
        raise InvalidRecordError(
            f"{what} has no key, and the topic keeps the newest record of each key "
            f"(cleanup.policy=compact). {left}; give it a key.",
            topic=to.topic,
        )
