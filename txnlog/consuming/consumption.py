"""A consumer's assignment, positions and per-poll duties.

Per poll: callbacks of finished commits, rebalances, start positions of new partitions, the
automatic commit, sweeping. Between these duties, messages come from `stream`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txnlog.cluster import Cluster
from txnlog.consuming.commits import LOST, Commits, by_topic
from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Key, PartitionReader
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.lookups import check_partition
from txnlog.consuming.membership import Membership, member_settings
from txnlog.consuming.record_stream import RecordStream
from txnlog.consuming.starts import Starts, place
from txnlog.consuming.statistics import ConsumerStatistics
from txnlog.consuming.subscriptions import check_subscription, missing_topics
from txnlog.errors import (
    ClientStateError,
    FencedInstanceIdError,
    TxnLogError,
)
from txnlog.messages import PARTITION_UA, Message, TopicPartition
from txnlog.protocol.membership import MembershipStatus
from txnlog.settings.config import Config, client_events
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

MAINTENANCE_INTERVAL_MS = 1_000
"""How often a busy consumer interrupts returning messages for its other duties."""

Callback = Callable[..., Any] | None


class Mode(Enum):
    """How the partitions were chosen."""

    NOTHING = 0
    SUBSCRIBED = 1
    ASSIGNED = 2


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's rebalance callbacks."""

    consumer: object = None
    on_assign: Callback = None
    on_revoke: Callback = None
    on_lost: Callback = None


class Consumption:
    """The assigned partitions with their positions, and the consumer's group."""

    def __init__(self, cluster: Cluster, config: Config, *, background: bool) -> None:
        self.cluster = cluster
        self.clock = cluster.store.clock
        self._config = config
        self._background = background
        self._starts = Starts(config)
        self._fetcher = Fetcher(
            read_committed=config.get("isolation.level") == "read_committed",
            reset=self._starts.reset,
            now_ms=self.clock.boot_ms,
            tail_each=cluster.tail_each,
            configured_ms=config.get("metadata.poll.interval.ms"),
        )
        self.stream = RecordStream(self._fetcher, report_ends=config.get("enable.partition.eof"))
        self._mode = Mode.NOTHING
        self._session: GroupSession | None = None
        self._subscription: tuple[str, ...] = ()
        self._callbacks = Callbacks()
        self._missing: set[str] = set()
        self._commits = Commits(config, self._fetcher.readers, self.clock)
        self._needs_rejoin = self._is_assigning = self._is_revoking = False
        self._maintenance_due_ms = self.clock.boot_ms()
        self._events = client_events(config, self.clock.boot_ms)
        self._statistics = ConsumerStatistics(
            config, self.clock, self._fetcher.readers, self._commits.stored
        )

    @property
    def readers(self) -> Mapping[Key, PartitionReader]:
        """The assigned partitions."""
        return self._fetcher.readers

    @property
    def idle_ms(self) -> int:
        """How long a poll cannot find a record, unless the group changes; 0 or less: it may."""
        is_waiting = self._starts.has_unplaced or not self.readers
        return 0 if is_waiting else self._fetcher.idle_ms

    @property
    def member_id(self) -> str:
        return "" if self._session is None else self._session.membership.member_id

    def require_session(self) -> GroupSession:
        """The session in the group. Raises ConfigError without group.id."""
        if self._session is None:
            settings = member_settings(self._config)
            self._session = self._statistics.session = session = GroupSession(
                self.cluster, settings, self._events, background=self._background
            )
            weakref.finalize(self, session.abandon).atexit = False
        return self._session

    # -- which partitions --------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], callbacks: Callbacks) -> None:
        """See Consumer.subscribe."""
        if self._mode is Mode.ASSIGNED:
            raise ClientStateError(
                "This consumer has partitions from assign(): call unassign, then subscribe."
            )
        self.require_session()
        check_subscription(topics)
        if not topics:
            self.unsubscribe()
            return
        self._needs_rejoin = self._mode is Mode.SUBSCRIBED
        self._mode = Mode.SUBSCRIBED
        self._subscription = tuple(sorted(set(topics)))
        self._callbacks = callbacks

    def unsubscribe(self) -> None:
        """See Consumer.unsubscribe."""
        session = self._session
        try:
            if self._mode is Mode.SUBSCRIBED and session is not None:
                try:
                    self._revoke(session)
                finally:
                    session.leave()
        finally:
            self._clear_assignment()
            self._mode, self._subscription, self._callbacks = Mode.NOTHING, (), Callbacks()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer.assign."""
        wanted = {(p.topic, p.partition): p.offset for p in partitions}
        if self._is_assigning:
            self._start_at(wanted)
            return
        if self._is_revoking and not wanted:
            # What unassign() in on_revoke asks for happens after the callback.
            return
        self._refuse_with_subscription("assign")
        logs = self._checked_logs(wanted)
        # What may fail comes first: then the former assignment stays.
        if wanted and self._config.get("group.id") is not None:
            self.require_session().start_generation()
        self._clear_assignment()
        self._mode = Mode.ASSIGNED if wanted else Mode.NOTHING
        self._commits.start()
        self._add(wanted, logs)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer.incremental_assign."""
        wanted = {(p.topic, p.partition): p.offset for p in partitions}
        if self._is_assigning:
            self._assigned(partitions)
            self._starts.wanted.update(wanted)
            return
        if self._mode is Mode.NOTHING:
            self.assign(partitions)
            return
        self._refuse_with_subscription("incremental_assign")
        owned = sorted(set(wanted) & set(self.readers))
        if owned:
            raise ClientStateError(f"{owned} are assigned to this consumer already.")
        self._add(wanted, self._checked_logs(wanted))

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer.incremental_unassign."""
        if self._is_revoking:
            return
        self._assigned(partitions)
        self._refuse_with_subscription("incremental_unassign")
        keys = [(p.topic, p.partition) for p in partitions]
        self.stream.drop(keys)
        self._fetcher.remove(keys)
        for key in keys:
            self._starts.wanted.pop(key, None)
            self._commits.forget(key)
        self._mode = Mode.ASSIGNED if self.readers else Mode.NOTHING

    def _add(self, wanted: Mapping[Key, int], logs: Mapping[str, TopicLog]) -> None:
        self._starts.has_unplaced = True
        self._starts.wanted.update(wanted)
        for topic, partition in wanted:
            self._fetcher.add(logs[topic], partition)

    def _checked_logs(self, wanted: Iterable[Key]) -> Mapping[str, TopicLog]:
        """The topics' logs. Raises UnknownTopicOrPartitionError."""
        logs = self.cluster.topics(topic for topic, _ in wanted)
        for topic, partition in wanted:
            check_partition(logs[topic], partition)
        return logs

    def _refuse_with_subscription(self, call: str) -> None:
        if self._mode is Mode.SUBSCRIBED:
            raise ClientStateError(
                "This consumer has a subscription, so its group assigns the partitions: call "
                f"unsubscribe, then {call}."
            )

    def _start_at(self, wanted: Mapping[Key, int]) -> None:
        """`assign` inside of on_assign: choose partitions of the assignment and their offsets."""
        unassigned = sorted(set(wanted) - set(self.readers))
        if unassigned:
            raise ClientStateError(f"The group has not assigned {unassigned} to this consumer.")
        self._fetcher.remove([key for key in self.readers if key not in wanted])
        self._starts.wanted = dict(wanted)

    def _clear_assignment(self) -> None:
        keys = list(self.readers)
        self.stream.drop(keys)
        self._fetcher.remove(keys)
        self._starts.wanted = {}

    # -- between two polls -------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether `maintain` must be called before another message is returned."""
        now_ms = self.clock.boot_ms()
        session = self._session
        if session is not None:
            session.heartbeat.polled_ms = now_ms
            if session.has_updates or self._is_fenced:
                return True
        return now_ms >= self._maintenance_due_ms

    def maintain(self) -> None:
        """The duties of a poll. Raises ClientStateError before subscribe or assign."""
        if self._mode is Mode.NOTHING:
            raise ClientStateError("This consumer reads nothing: call subscribe or assign first.")
        now_ms = self.clock.boot_ms()
        commit_interval_ms = self._config.get("auto.commit.interval.ms")
        self._maintenance_due_ms = now_ms + min(MAINTENANCE_INTERVAL_MS, commit_interval_ms)
        session = self._session
        self._events.serve(self._statistics)
        if session is not None:
            session.heartbeat.polled_ms = now_ms
            session.call_back()
            if self._mode is Mode.SUBSCRIBED:
                self._update_membership(session)
        self._resolve(session)
        if session is not None:
            self._commits.commit_if_due(session)
        self.cluster.sweeper.sweep_if_due()

    def _resolve(self, session: GroupSession | None) -> None:
        try:
            self._starts.resolve(self._fetcher, session)
        except LOST:
            if self._mode is Mode.ASSIGNED:
                raise
            self._commits.is_fenced = True

    @property
    def _is_fenced(self) -> bool:
        return self._commits.is_fenced and self._mode is Mode.SUBSCRIBED

    def _update_membership(self, session: GroupSession) -> None:
        """Follow the group's row: join, revoke, or accept a new assignment."""
        try:
            status = session.status()
        except FencedInstanceIdError:
            self._clear_assignment()
            raise
        membership = session.membership
        if not self.member_id:
            self._needs_rejoin = True
        elif not membership.is_waiting:
            self._give_up_assignment(session, status)
        if self._needs_rejoin:
            session.join(self._subscription)
            self._needs_rejoin = False
        if membership.is_waiting:
            # Left by an acceptance that was interrupted.
            self._clear_assignment()
            if membership.complete_join():
                self._accept_assignment(membership)

    def _give_up_assignment(self, session: GroupSession, status: MembershipStatus) -> None:
        """Revoke or lose the assignment, if the group or a new subscription says so.

        `_needs_rejoin` is set first, so that the next poll continues where this one fails.
        """
        if self._is_fenced or status is MembershipStatus.LOST:
            self._needs_rejoin = True
            self._lose_assignment()
        elif self._needs_rejoin or status is MembershipStatus.REBALANCING:
            self._needs_rejoin = True
            logger.info("Consumer %s rejoins: its group rebalances", self.member_id)
            self._revoke(session)

    def _accept_assignment(self, membership: Membership) -> None:
        """Add the assigned partitions. If this fails, the next poll does it again."""
        assignment = membership.assignment
        logs = {topic: self.cluster.topic_log(topic) for topic in assignment}
        self._fetcher.tail(list(logs.values()))
        for topic, log in logs.items():
            for number in assignment[topic]:
                # A topic deleted since then has no log to read; the group rebalances soon.
                if number < log.partitions or not self._fetcher.can_read(topic):
                    self._fetcher.add(log, number)
        self._starts.has_unplaced = True
        self._commits.start()
        membership.accept()
        text = "Consumer %s is in generation %d of group %r and reads %s"
        found = (membership.member_id, membership.generation, membership.settings.group_id)
        logger.info(text, *found, _named(sorted(self.readers)))
        self._report_missing(membership)
        self._is_assigning = True
        try:
            self._notify(self._callbacks.on_assign, sorted(self.readers))
        finally:
            self._is_assigning = False

    def _report_missing(self, membership: Membership) -> None:
        """Report subscribed topics that do not exist, once each, in a message with an error."""
        missing = missing_topics(self.cluster, membership.unassigned_topics)
        for topic in sorted(missing.keys() - self._missing):
            logger.warning("Subscribed topic not available: %s", missing[topic])
            self.stream.notify(
                Message(topic, PARTITION_UA, None, None, None, None, error=missing[topic])
            )
        self._missing = set(missing)

    def _revoke(self, session: GroupSession) -> None:
        """Commit, call on_revoke (or on_lost), and remove all partitions."""
        keys = sorted(self.readers)
        callback = self._callbacks.on_revoke
        try:
            self._commits.commit_before_revoke(session)
        except LOST:
            callback = self._callbacks.on_lost or callback
        except TxnLogError as error:
            logger.warning("Committing offsets failed; records will be read again: %s", error)
        try:
            self._notify_revoked(callback, keys)
        finally:
            self._clear_assignment()

    def _lose_assignment(self) -> None:
        keys = sorted(self.readers)
        self._commits.is_fenced = False
        self._clear_assignment()
        logger.info("Consumer %s has lost its partitions: %s", self.member_id, _named(keys))
        self._notify_revoked(self._callbacks.on_lost or self._callbacks.on_revoke, keys)

    def _notify_revoked(self, callback: Callback, keys: Sequence[Key]) -> None:
        self._is_revoking = True
        try:
            if keys:
                self._notify(callback, keys)
        finally:
            self._is_revoking = False

    def _notify(self, callback: Callback, keys: Sequence[Key]) -> None:
        if callback is not None:
            callback(self._callbacks.consumer, [TopicPartition(*key) for key in keys])

    # -- positions ---------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """See Consumer.seek."""
        reader = self._assigned([partition])[0]
        reader.log.refresh()
        self._starts.wanted.pop((reader.topic, reader.partition), None)
        reader.position = place(reader, partition.offset)
        reader.reported_end = None
        self.stream.drop([(reader.topic, reader.partition)])

    def pause(self, partitions: Sequence[TopicPartition], *, is_paused: bool) -> None:
        """See Consumer.pause and Consumer.resume."""
        readers = self._assigned(partitions)
        for reader in readers:
            reader.is_paused = is_paused
        self._fetcher.wake()
        if is_paused:
            self.stream.drop([(reader.topic, reader.partition) for reader in readers])

    def _assigned(self, partitions: Sequence[TopicPartition]) -> list[PartitionReader]:
        missing = [(p.topic, p.partition) not in self.readers for p in partitions]
        if any(missing):
            raise ClientStateError(
                f"{partitions[missing.index(True)]} is not assigned to this consumer; it has "
                f"{sorted(self.readers)}."
            )
        return [self.readers[p.topic, p.partition] for p in partitions]

    # -- commits -----------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None,
        offsets: Sequence[TopicPartition] | None,
        *,
        asynchronous: bool,
    ) -> list[TopicPartition] | None:
        """See Consumer.commit."""
        session = self.require_session()
        if self._mode is not Mode.NOTHING or (message is None and offsets is None):
            session.require_generation()
        wanted = self._commits.wanted(message, offsets)
        if self._mode is Mode.NOTHING:
            session.commit_without_assignment(*by_topic(wanted))
            return wanted
        if asynchronous:
            self._commits.commit_later(session, wanted)
            return None
        self._commits.commit(session, wanted)
        return wanted

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> list[TopicPartition]:
        """See Consumer.committed."""
        return self._commits.committed(self.require_session(), partitions, timeout_s)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit, revoke, leave, and stop the thread."""
        session = self._session
        if session is None:
            return
        try:
            if self._mode is Mode.SUBSCRIBED:
                self.unsubscribe()
            elif self._mode is Mode.ASSIGNED:
                self._revoke(session)
        finally:
            session.close()

    def store_offsets(
        self, message: Message | None, offsets: Sequence[TopicPartition] | None
    ) -> None:
        """See Consumer.store_offsets."""
        self._commits.store(message, offsets, self._assigned)


def _named(keys: Iterable[Key]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) or "none"
