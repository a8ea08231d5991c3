"""A consumer's assignment, positions and per-poll duties.

Per poll: callbacks of finished commits, rebalances, start positions of new partitions, the
automatic commit, sweeping. Between these duties, messages come from `stream`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txnlog.cluster import Cluster
from txnlog.consuming.commits import LOST, Commits
from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Key, PartitionReader, out_of_range
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.lookups import check_partition
from txnlog.consuming.membership import MemberSettings, Membership
from txnlog.consuming.record_stream import RecordStream
from txnlog.consuming.subscriptions import check_subscription
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    FencedInstanceIdError,
    TxnLogError,
)
from txnlog.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    Message,
    TopicPartition,
)
from txnlog.protocol.membership import MembershipStatus
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

MAINTENANCE_INTERVAL_MS = 1_000
"""How often a busy consumer interrupts returning messages for its other duties."""

_COMMITTED = (OFFSET_STORED, OFFSET_INVALID)
_EARLIEST = ("earliest", "smallest", "beginning")
_LATEST = ("latest", "largest", "end")

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
        self._fetcher = Fetcher(
            read_committed=config.get("isolation.level") == "read_committed",
            reset=self._reset,
            now_ms=self.clock.boot_ms,
            tail_each=cluster.tail_each,
            configured_ms=config.get("metadata.poll.interval.ms"),
        )
        self.stream = RecordStream(self._fetcher)
        self._mode = Mode.NOTHING
        self._session: GroupSession | None = None
        self._subscription: tuple[str, ...] = ()
        self._callbacks = Callbacks()
        self._starts: dict[Key, int] = {}
        self._commits = Commits(config, self._fetcher.readers, self.clock)
        self._needs_rejoin = self._is_assigning = self._has_unplaced = False
        self._maintenance_due_ms = self.clock.boot_ms()

    @property
    def readers(self) -> Mapping[Key, PartitionReader]:
        """The assigned partitions."""
        return self._fetcher.readers

    @property
    def idle_ms(self) -> int:
        """How long a poll cannot find a record, unless the group changes; 0 or less: it may."""
        is_waiting = self._has_unplaced or not self.readers
        return 0 if is_waiting else self._fetcher.idle_ms

    @property
    def member_id(self) -> str:
        return "" if self._session is None else self._session.membership.member_id

    def require_session(self) -> GroupSession:
        """The session in the group. Raises ConfigError without group.id."""
        if self._session is None:
            get = self._config.get
            if get("group.id") is None:
                raise ConfigError(
                    "This call needs a consumer group: set group.id.", option="group.id"
                )
            settings = MemberSettings(
                group_id=get("group.id"),
                client_id=get("client.id"),
                instance_id=get("group.instance.id") or "",
                session_timeout_ms=get("session.timeout.ms"),
                heartbeat_interval_ms=get("heartbeat.interval.ms"),
                max_poll_interval_ms=get("max.poll.interval.ms"),
                metadata_max_age_ms=get("metadata.max.age.ms"),
                assignors=get("partition.assignment.strategy"),
            )
            self._session = GroupSession(self.cluster, settings, background=self._background)
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
        if self._mode is Mode.SUBSCRIBED:
            raise ClientStateError(
                "This consumer has a subscription, so its group assigns the partitions: call "
                "unsubscribe, then assign."
            )
        logs = self.cluster.topics(topic for topic, _ in wanted)
        for topic, partition in wanted:
            check_partition(logs[topic], partition)
        # What may fail comes first: then the former assignment stays.
        if wanted and self._config.get("group.id") is not None:
            self.require_session().start_generation()
        self._clear_assignment()
        self._mode = Mode.ASSIGNED if wanted else Mode.NOTHING
        self._commits.start()
        self._has_unplaced = True
        self._starts = dict(wanted)
        for topic, partition in wanted:
            self._fetcher.add(logs[topic], partition)

    def _start_at(self, wanted: Mapping[Key, int]) -> None:
        """`assign` inside of on_assign: choose partitions of the assignment and their offsets."""
        unassigned = sorted(set(wanted) - set(self.readers))
        if unassigned:
            raise ClientStateError(f"The group has not assigned {unassigned} to this consumer.")
        self._fetcher.remove([key for key in self.readers if key not in wanted])
        self._starts = dict(wanted)

    def _clear_assignment(self) -> None:
        keys = list(self.readers)
        self.stream.drop(keys)
        self._fetcher.remove(keys)
        self._starts = {}

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
        if session is not None:
            session.heartbeat.polled_ms = now_ms
            session.call_back()
            if self._mode is Mode.SUBSCRIBED:
                self._update_membership(session)
        self._resolve()
        if session is not None:
            self._commits.commit_if_due(session)
        self.cluster.sweeper.sweep_if_due()

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
        self._has_unplaced = True
        self._commits.start()
        membership.accept()
        self._is_assigning = True
        try:
            self._notify(self._callbacks.on_assign, sorted(self.readers))
        finally:
            self._is_assigning = False

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
            if keys:
                self._notify(callback, keys)
        finally:
            self._clear_assignment()

    def _lose_assignment(self) -> None:
        keys = sorted(self.readers)
        self._commits.is_fenced = False
        self._clear_assignment()
        if keys:
            self._notify(self._callbacks.on_lost or self._callbacks.on_revoke, keys)

    def _notify(self, callback: Callback, keys: Sequence[Key]) -> None:
        if callback is not None:
            callback(self._callbacks.consumer, [TopicPartition(*key) for key in keys])

    # -- positions ---------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Set the positions of new partitions: as requested, committed, or auto.offset.reset's."""
        if not self._has_unplaced:
            return
        new = {key: reader for key, reader in self.readers.items() if reader.position is None}
        readable = {key: reader for key, reader in new.items() if self._can_place(reader)}
        if not readable:
            self._has_unplaced = bool(new)
            return
        to_fetch: dict[str, list[int]] = {}
        for topic, partition in readable:
            if self._starts.get((topic, partition), OFFSET_STORED) in _COMMITTED:
                to_fetch.setdefault(topic, []).append(partition)
        committed: Mapping[str, Mapping[int, int]] | None = {}
        if to_fetch and self._session is not None:
            try:
                committed = self._session.fetch(to_fetch)
            except LOST:
                if self._mode is Mode.ASSIGNED:
                    raise
                self._commits.is_fenced = True
                return
        if committed is None:
            return
        for (topic, partition), reader in readable.items():
            offset = self._starts.get((topic, partition), OFFSET_STORED)
            if partition in to_fetch.get(topic, ()):
                position = committed.get(topic, {}).get(partition)
                offset = self._reset(reader) if position is None else position
            reader.seek(_offset(reader, offset))
            self._starts.pop((topic, partition), None)
        self._fetcher.wake()
        self._has_unplaced = len(readable) < len(new)

    def _can_place(self, reader: PartitionReader) -> bool:
        """Whether its log could be read, so that the ends of the partition are known."""
        return self._fetcher.can_read(reader.topic) and reader.partition < reader.log.partitions

    def _reset(self, reader: PartitionReader) -> int:
        """The position by auto.offset.reset. Raises OffsetOutOfRangeError."""
        policy = self._config.get("auto.offset.reset")
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

    def seek(self, partition: TopicPartition) -> None:
        """See Consumer.seek."""
        reader = self._assigned([partition])[0]
        reader.log.refresh()
        self._starts.pop((reader.topic, reader.partition), None)
        reader.position = _offset(reader, partition.offset)
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
        session.require_generation()
        wanted = self._commits.wanted(message, offsets)
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


def check_position(partition: TopicPartition, allowed: Collection[int]) -> None:
    """Raise ConfigError for a negative offset that is not one of `allowed` (OFFSET_*)."""
    if partition.offset < 0 and partition.offset not in allowed:
        raise ConfigError(
            f"Offset {partition.offset} of {partition.topic}-{partition.partition} is not a valid "
            "position: give 0 or more, OFFSET_BEGINNING or OFFSET_END."
        )


def _offset(reader: PartitionReader, offset: int) -> int:
    if offset == OFFSET_BEGINNING:
        return reader.start_offset
    return reader.end_offset if offset == OFFSET_END else offset
