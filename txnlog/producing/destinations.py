"""The topics a producer writes to: looked up, looked up again when old, made if need be."""

from __future__ import annotations

import random

from txnlog.cluster import Cluster
from txnlog.errors import (
    ForkedProcessError,
    InvalidRecordError,
    RecordTooLargeError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.producing.accumulator import Destination
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.config import Config
from txnlog.settings.topic_configs import is_compacted, message_bytes_max

CHUNK_BYTES = 1 << 20
"""Records of a deferred transaction that gather before they become Arrow columns."""


class Destinations:
    """Callers of `look_up` hold the producer's io lock; `known` is for anybody."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._is_deferred = (
            config.get("transactional.id") is not None
            and config.get("transaction.publish") == "deferred"
        )
        self._batch_bytes: int = config.get("batch.size")
        self._request_bytes_max: int = config.get("max.request.size")
        self._age_ms_max: int = config.get("metadata.max.age.ms")
        self._auto_create: bool = config.get("auto.create.topics.enable")
        self._partitions_of_new: int = config.get("num.partitions")
        self._found: dict[str, Destination] = {}

    def known(self, topic: str) -> Destination | None:
        """What was looked up, unless it is too old."""
        found = self._found.get(topic)
        if found is None or self._clock.boot_ms() - found.looked_up_ms > self._age_ms_max:
            return None
        return found

    def look_up(self, topic: str) -> Destination:
        """The topic as it is now.

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
        batches = CHUNK_BYTES if self._is_deferred else self._batch_bytes * log.partitions
        before = self._found.get(topic)
        found = Destination(
            topic=topic,
            topic_id=log.topic_id,
            partitions=log.partitions,
            record_bytes_max=min(message_bytes_max(log.config), self._request_bytes_max),
            needs_key=is_compacted(log.config),
            wake_bytes=batches,
            looked_up_ms=self._clock.boot_ms(),
            sticky_seed=random.randrange(1 << 30) if before is None else before.sticky_seed,
            sticky_bytes=0 if before is None else before.sticky_bytes,
        )
        self._found[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Look the topic up at the next record."""
        self._found.pop(topic, None)

    def forget_all(self) -> None:
        """Look every topic up again."""
        self._found = {}


def check_record(
    destination: Destination, key: bytes | None, partition: int, size_bytes: int
) -> None:
    """Raises RecordTooLargeError (R65), InvalidRecordError, UnknownTopicOrPartitionError."""
    if key is None and destination.needs_key:
        raise InvalidRecordError(
            f"A record for topic {destination.topic!r} has no key, and the topic keeps the newest "
            "record of each key (cleanup.policy=compact). It was not taken; give it a key.",
            topic=destination.topic,
        )
    if size_bytes > destination.record_bytes_max:
        raise RecordTooLargeError(
            f"A record of {size_bytes} bytes for topic {destination.topic!r} is larger than "
            f"{destination.record_bytes_max}, the smaller of the topic's max.message.bytes and the "
            "producer's max.request.size. It was not taken; split it, or raise both.",
            topic=destination.topic,
            size_bytes=size_bytes,
            size_bytes_max=destination.record_bytes_max,
        )
    if not -1 <= partition < destination.partitions:
        raise UnknownTopicOrPartitionError(
            f"Topic {destination.topic!r} has partitions 0 to {destination.partitions - 1}, not "
            f"{partition}; -1 lets the partitioner choose. The record was not taken.",
            topic=destination.topic,
            partition=partition,
        )
