"""A consumer's offset commits: synchronous, asynchronous, automatic, and before a revocation.

A commit outside of transactions is one compare-and-swap on the group's row, under the consumer's
generation. If the process dies before it, the input is read again; after a lost reply the commit is
decided again, and finds the offsets in the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from txnlog.consuming.fetching import Key, PartitionReader
from txnlog.consuming.group_session import GroupSession
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    IllegalGenerationError,
    TxnLogError,
    UnknownMemberIdError,
)
from txnlog.messages import OFFSET_INVALID, Message, TopicPartition
from txnlog.process.clock import Clock
from txnlog.protocol.group_metadata import Positions
from txnlog.settings import arguments
from txnlog.settings.arguments import INT64_MAX
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

API_TIMEOUT_MS = 60_000
"""Maximum wait of a call without a time-out (Kafka's default.api.timeout.ms)."""

LOST = (IllegalGenerationError, UnknownMemberIdError)
"""Errors after which the partitions belong to another consumer."""


class Commits:
    """The commits of one consumer; `readers` are its partitions, `returned` their positions.

    `is_fenced`: the group has refused this consumer's generation, so its assignment is lost.
    With enable.auto.offset.store=false what `store` was given is committed, and not the positions.
    `starts` are those by auto.offset.reset: any commit has them, too, where the group has no
    offset.
    """

    def __init__(
        self,
        config: Config,
        readers: Mapping[Key, PartitionReader],
        returned: Callable[[PartitionReader], int | None],
        starts: Mapping[Key, int],
        clock: Clock,
    ) -> None:
        self._config = config
        self._readers = readers
        self._returned = returned
        self._starts = starts
        self._clock = clock
        self._due_ms = 0
        self._automatic: dict[Key, int] | None = None
        """The offsets of the last automatic commit, if no other commit followed, nor an error."""
        self.is_fenced = False
        self._stored: dict[Key, TopicPartition] | None = None
        self.start()

    def start(self, *, keeps: bool = False) -> None:
        """Reset for a new assignment; the next automatic commit is due after its interval.

        `keeps`: it has partitions of the former one, with what is stored of them.
        """
        self.is_fenced = False
        if keeps:
            return
        self._due_ms = self._clock.boot_ms() + self._config.get("auto.commit.interval.ms")
        self._automatic = None
        self._stored = None if self._config.get("enable.auto.offset.store") else {}

    def store(
        self,
        message: Message | None,
        offsets: Sequence[TopicPartition] | None,
        check: Callable[[Sequence[TopicPartition]], object],
    ) -> None:
        """Store offsets to be committed, after `check` of their partitions.

        Raises ConfigError, and what `check` raises.
        """
        if self._stored is None:
            raise ConfigError(
                "store_offsets() needs enable.auto.offset.store=false: else the positions of "
                "returned messages are committed.",
                option="enable.auto.offset.store",
            )
        if message is None and offsets is None:
            raise ConfigError("store_offsets takes a message or offsets.")
        wanted = self.wanted(message, offsets)
        check(wanted)
        self._stored.update({(p.topic, p.partition): p for p in wanted})

    def forget(self, key: Key) -> None:
        """The partition is no longer assigned."""
        if self._stored is not None:
            self._stored.pop(key, None)

    def stored(self, key: Key) -> int:
        """The offset that is to be committed for an assigned partition; OFFSET_INVALID: none."""
        if self._stored is None:
            position = self._returned(self._readers[key])
            return OFFSET_INVALID if position is None else position
        found = self._stored.get(key)
        return OFFSET_INVALID if found is None else found.offset

    def wanted(
        self, message: Message | None, offsets: Sequence[TopicPartition] | None
    ) -> list[TopicPartition]:
        """The offsets that Consumer.commit shall commit, validated.

        Raises TypeError, ConfigError, InvalidTopicError, OffsetMetadataTooLargeError,
        ClientStateError.
        """
        if message is not None and offsets is not None:
            raise ConfigError("commit takes a message or offsets, not both.")
        if message is not None:
            offsets = [_after(message)]
        if offsets is None:
            found = self._positions()
        else:
            found = arguments.topic_partitions(
                "offsets",
                offsets,
                partition_least=0,
                offset_least=0,
                metadata_bytes_max=self._config.get("offset.metadata.max.bytes"),
            )
        if not found:
            raise ClientStateError("There is no position to commit yet: poll first.")
        return found

    def commit(self, session: GroupSession, partitions: Sequence[TopicPartition]) -> None:
        """Commit now. Raises IllegalGenerationError, UnknownMemberIdError."""
        self._automatic = None
        try:
            session.commit(*by_topic(partitions), self._started())
        except LOST:
            self.is_fenced = session.has_lost()
            raise

    def commit_later(
        self, session: GroupSession, partitions: list[TopicPartition], *, is_automatic: bool = False
    ) -> None:
        """Commit on the background thread; a later poll reports the result."""
        self._automatic = None
        positions, notes = by_topic(partitions)
        session.commit_later(
            positions,
            notes,
            self._started(),
            lambda error: self._report(session, error, partitions, is_automatic=is_automatic),
        )

    def commit_if_due(self, session: GroupSession) -> None:
        """The automatic commit of the current positions, if it is due."""
        now_ms = self._clock.boot_ms()
        if now_ms < self._due_ms or not self._config.get("enable.auto.commit"):
            return
        self._due_ms = now_ms + self._config.get("auto.commit.interval.ms")
        partitions = self._positions()
        offsets = {(p.topic, p.partition): p.offset for p in partitions}
        # Unchanged since the last automatic commit: another would be a request for nothing.
        if partitions and offsets != self._automatic and session.has_generation:
            self.commit_later(session, partitions, is_automatic=True)
            self._automatic = offsets

    def commit_before_revoke(self, session: GroupSession) -> None:
        """The last commit of an assignment.

        Raises IllegalGenerationError, UnknownMemberIdError.
        """
        session.drain()
        partitions = self._positions()
        if partitions and session.has_generation and self._config.get("enable.auto.commit"):
            session.commit(*by_topic(partitions), self._started())
        session.call_back()

    def committed(
        self, session: GroupSession, partitions: Sequence[TopicPartition], timeout_ms: int
    ) -> list[TopicPartition]:
        """See Consumer.committed."""
        ask: dict[str, list[int]] = {}
        for p in partitions:
            ask.setdefault(p.topic, []).append(p.partition)
        found = session.committed(
            ask,
            stable=self._config.get("isolation.level") == "read_committed",
            timeout_ms=timeout_ms,
        )
        return [
            TopicPartition(
                p.topic, p.partition, found.get(p.topic, {}).get(p.partition, OFFSET_INVALID)
            )
            for p in partitions
        ]

    def _positions(self) -> list[TopicPartition]:
        found = sorted(self._readers.items())
        if self._stored is not None:
            return [self._stored[key] for key, _ in found if key in self._stored]
        ends = [(key, self._returned(reader)) for key, reader in found]
        return [TopicPartition(*key, end) for key, end in ends if end is not None]

    def _started(self) -> Positions:
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in self._starts.items():
            found.setdefault(topic, {})[partition] = offset
        return found

    def _report(
        self,
        session: GroupSession,
        error: TxnLogError | None,
        partitions: list[TopicPartition],
        *,
        is_automatic: bool,
    ) -> None:
        if error is not None:
            self._automatic = None
        if isinstance(error, LOST):
            self.is_fenced = session.has_lost()
        on_commit = self._config.get("on_commit")
        if on_commit is not None:
            on_commit(error, partitions)
        elif error is not None and is_automatic and not isinstance(error, LOST):
            interval_ms = self._config.get("auto.commit.interval.ms")
            session.say_retried(error, until=f"each auto.commit.interval.ms={interval_ms}")
        elif error is not None:
            logger.warning("Committing offsets failed: %s", error)


def _after(message: Message) -> TopicPartition:
    """The position after a message. Raises TypeError, ConfigError."""
    try:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        error = message.error()
    except Exception:
        raise TypeError(f"message must be a Message, not {arguments.shown(message)}.") from None
    if error is not None:
        raise ConfigError(
            f"The message of topic {topic!r} has an error and is no record: there is no position "
            f"after it to commit. Check message.error() first; it says: {error}"
        )
    if offset is None:
        raise ConfigError(
            f"The message of topic {topic!r} has no offset, so there is no position after it to "
            "commit. Give a message that poll() or consume() has returned."
        )
    offset = arguments.integer("message.offset()", offset, least=0, most=INT64_MAX - 1)
    return TopicPartition(topic, partition, offset + 1)


def by_topic(
    partitions: Sequence[TopicPartition],
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, str]]]:
    """The offsets and their metadata, by topic and partition."""
    positions: dict[str, dict[int, int]] = {}
    notes: dict[str, dict[int, str]] = {}
    for p in partitions:
        positions.setdefault(p.topic, {})[p.partition] = p.offset
        if p.metadata:
            notes.setdefault(p.topic, {})[p.partition] = p.metadata
    return positions, notes
