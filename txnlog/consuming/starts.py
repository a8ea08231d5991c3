"""Start positions of new partitions: as requested, committed, or by auto.offset.reset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Key, PartitionReader, out_of_range
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.subscriptions import selected_alike
from txnlog.errors import ConfigError
from txnlog.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TopicPartition,
)
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.groups import reads_already
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

_COMMITTED = (OFFSET_STORED, OFFSET_INVALID)
_EARLIEST = ("earliest", "smallest", "beginning")
_LATEST = ("latest", "largest", "end")


class Starts:
    """`wanted`: the requested offsets (or OFFSET_*) of partitions that have no position yet.

    `has_unplaced`: some partition has none. `by_reset`: where partitions without a committed offset
    started.
    """

    def __init__(self, config: Config) -> None:
        self._policy: str = config.get("auto.offset.reset")
        self.wanted: dict[Key, int] = {}
        self.by_reset: dict[Key, int] = {}
        self.has_unplaced = False

    def resolve(
        self, fetcher: Fetcher, session: GroupSession | None, subscription: Sequence[str]
    ) -> None:
        """Set the positions of new partitions whose logs could be read.

        Without a committed offset this is auto.offset.reset, but the log start where the group
        reads the topic already, or another one of the same pattern of `subscription` (D135).
        Raises OffsetOutOfRangeError, IllegalGenerationError, UnknownMemberIdError.
        """
        if not self.has_unplaced:
            return
        new = {key: reader for key, reader in fetcher.readers.items() if reader.position is None}
        readable = {key: reader for key, reader in new.items() if _can_place(fetcher, reader)}
        if not readable:
            self.has_unplaced = bool(new)
            return
        to_fetch: dict[str, list[int]] = {}
        for topic, partition in readable:
            if self.wanted.get((topic, partition), OFFSET_STORED) in _COMMITTED:
                to_fetch.setdefault(topic, []).append(partition)
        committed: Mapping[str, Mapping[int, int]] | None = {}
        if to_fetch and session is not None:
            committed = session.fetch(to_fetch)
        if committed is None:
            return
        known: Positions = {}
        missing = any(set(to_fetch[topic]) - set(committed.get(topic, ())) for topic in to_fetch)
        if missing and session is not None and self._policy not in _EARLIEST:
            # Also what a transaction has decided, of partitions that are not this consumer's.
            known = session.committed({}, stable=False, timeout_ms=0)

        @cache
        def is_read(topic: str) -> bool:
            return reads_already(known, topic, selected_alike(subscription, topic))

        for (topic, partition), reader in readable.items():
            offset = self.wanted.get((topic, partition), OFFSET_STORED)
            if partition in to_fetch.get(topic, ()):
                position = committed.get(topic, {}).get(partition)
                if position is not None:
                    offset = position
                elif is_read(topic):
                    offset = OFFSET_BEGINNING
                else:
                    offset = self.by_reset[topic, partition] = self.reset(reader)
            reader.seek(place(reader, offset))
            self.wanted.pop((topic, partition), None)
        fetcher.wake()
        self.has_unplaced = len(readable) < len(new)

    def forget(self, key: Key) -> None:
        """The partition is no longer assigned."""
        self.wanted.pop(key, None)
        self.by_reset.pop(key, None)

    def reset(self, reader: PartitionReader) -> int:
        """The position by auto.offset.reset. Raises OffsetOutOfRangeError."""
        policy = self._policy
        if policy not in _EARLIEST and policy not in _LATEST:
            raise out_of_range(reader)
        start = reader.start_offset if policy in _EARLIEST else reader.end_offset
        if reader.position is not None:
            logger.warning(
                "Offset %d of %s-%d is out of range; resetting to %d (auto.offset.reset=%s)",
                reader.position,
                reader.topic,
                reader.partition,
                start,
                policy,
            )
        return start


def check_position(partition: TopicPartition, allowed: Collection[int]) -> None:
    """Raise ConfigError for a negative offset that is not one of `allowed` (OFFSET_*)."""
    if partition.offset < 0 and partition.offset not in allowed:
        raise ConfigError(
            f"Offset {partition.offset} of {partition.topic}-{partition.partition} is not a valid "
            "position: give 0 or more, OFFSET_BEGINNING or OFFSET_END."
        )


def place(reader: PartitionReader, offset: int) -> int:
    """The offset itself; for OFFSET_BEGINNING and OFFSET_END, where that is now."""
    if offset == OFFSET_BEGINNING:
        return reader.start_offset
    return reader.end_offset if offset == OFFSET_END else offset


def _can_place(fetcher: Fetcher, reader: PartitionReader) -> bool:
    """Whether its log could be read, so that the ends of the partition are known."""
    return fetcher.can_read(reader.topic) and reader.partition < reader.log.partitions
