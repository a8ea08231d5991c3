"""A consumer's assignment, positions and per-poll duties.

Per poll: callbacks of finished commits, rebalances, start positions of new partitions, the
automatic commit, sweeping. Between these duties, messages come from `stream`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from txnlog.cluster import Cluster
from txnlog.consuming.commits import LOST, Commits, by_topic
from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Key, PartitionReader
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.lookups import check_partition
from txnlog.consuming.membership import member_settings
from txnlog.consuming.rebalances import LOOK_INTERVAL_MS, Callbacks, Rebalances
from txnlog.consuming.record_stream import RecordStream
from txnlog.consuming.starts import Starts, place
from txnlog.consuming.statistics import ConsumerStatistics
from txnlog.consuming.subscriptions import check_subscription
from txnlog.errors import (
    ClientStateError,
)
from txnlog.messages import OFFSET_INVALID, Message, TopicPartition
from txnlog.process.client_metrics import Metric
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


class Consumption:
    """The assigned partitions with their positions, and the consumer's group."""

    def __init__(self, cluster: Cluster, config: Config, *, background: bool, raises: bool) -> None:
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
        self.stream = RecordStream(
            self._fetcher, report_ends=config.get("enable.partition.eof"), raises=raises
        )
        self._mode = Mode.NOTHING
        self._session: GroupSession | None = None
        self._commits = Commits(
            config,
            self._fetcher.readers,
            self.stream.returned,
            self._starts.by_reset,
            self.clock,
        )
        self._rebalances = Rebalances(
            cluster, self._fetcher, self.stream, self._starts, self._commits
        )
        self._maintenance_due_ms = self.clock.boot_ms()
        self._events = client_events(config, self.clock.boot_ms)
        self._statistics = ConsumerStatistics(
            config,
            self.clock,
            self._fetcher.readers,
            self._fetcher.fetched,
            self._rebalances,
            self._commits.stored,
        )

    @property
    def readers(self) -> Mapping[Key, PartitionReader]:
        """The assigned partitions."""
        return self._fetcher.readers

    def metrics(self) -> list[Metric]:
        """See Consumer.metrics."""
        return self._statistics.metrics()

    @property
    def is_reading(self) -> bool:
        """Whether there is a subscription or an assignment."""
        return self._mode is not Mode.NOTHING

    @property
    def idle_ms(self) -> int:
        """How long a poll cannot find a record, unless the group changes; 0 or less: it may."""
        is_waiting = self._starts.has_unplaced or not self.readers
        return 0 if is_waiting else self._fetcher.idle_ms

    @property
    def member_id(self) -> str:
        return "" if self._session is None else self._session.membership.member_id

    @property
    def rebalance_protocol(self) -> str:
        """See Consumer.rebalance_protocol."""
        if self._session is None or not self.member_id:
            return "NONE"
        return "COOPERATIVE" if self._session.membership.is_cooperative else "EAGER"

    def require_session(self) -> GroupSession:
        """The session in the group. Raises ConfigError without group.id."""
        if self._session is None:
            settings = member_settings(self._config)
            self._session = self._statistics.session = session = GroupSession(
                self.cluster, settings, self._events, background=self._background
            )
            # Collection comes in any thread, with any lock held: it only queues the leave.
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
        rebalances = self._rebalances
        rebalances.needs_rejoin = self._mode is Mode.SUBSCRIBED
        self._mode = Mode.SUBSCRIBED
        rebalances.subscription = tuple(sorted(set(topics)))
        rebalances.callbacks = callbacks

    def unsubscribe(self) -> None:
        """See Consumer.unsubscribe."""
        session = self._session
        try:
            if self._mode is Mode.SUBSCRIBED and session is not None:
                try:
                    self._rebalances.revoke(session, sorted(self.readers))
                finally:
                    session.leave()
        finally:
            self._rebalances.clear()
            self._mode = Mode.NOTHING
            self._rebalances.subscription, self._rebalances.callbacks = (), Callbacks()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer.assign."""
        wanted = {(p.topic, p.partition): p.offset for p in partitions}
        if self._rebalances.is_assigning:
            self._start_at(wanted)
            return
        if self._rebalances.is_revoking and not wanted:
            # What unassign() in on_revoke asks for happens after the callback.
            return
        self._refuse_with_subscription("assign")
        logs = self._checked_logs(wanted)
        # What may fail comes first: then the former assignment stays.
        if wanted and self._config.get("group.id") is not None:
            self.require_session().start_generation()
        self._rebalances.clear()
        self._mode = Mode.ASSIGNED if wanted else Mode.NOTHING
        self._commits.start()
        self._add(wanted, logs)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer.incremental_assign."""
        wanted = {(p.topic, p.partition): p.offset for p in partitions}
        if self._rebalances.is_assigning:
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
        if self._rebalances.is_revoking:
            return
        self._assigned(partitions)
        self._refuse_with_subscription("incremental_unassign")
        self._rebalances.remove([(p.topic, p.partition) for p in partitions])
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
        if self.rebalance_protocol == "COOPERATIVE":
            raise ClientStateError(
                "With partition.assignment.strategy=cooperative-sticky on_assign gets only what is "
                "added: give start positions with incremental_assign, not with assign."
            )
        unassigned = sorted(set(wanted) - set(self.readers))
        if unassigned:
            raise ClientStateError(f"The group has not assigned {unassigned} to this consumer.")
        self._fetcher.remove([key for key in self.readers if key not in wanted])
        self._starts.wanted = dict(wanted)

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
                self._rebalances.update(session)
                if session.membership.is_waiting or session.membership.is_handing_over:
                    self._maintenance_due_ms = now_ms + LOOK_INTERVAL_MS
        self._resolve(session)
        if session is not None:
            self._commits.commit_if_due(session)
        self.cluster.sweeper.sweep_if_due()

    def _resolve(self, session: GroupSession | None) -> None:
        try:
            self._starts.resolve(self._fetcher, session, self._rebalances.subscription)
        except LOST:
            if self._mode is Mode.ASSIGNED:
                raise
            self._commits.is_fenced = session is None or session.has_lost()

    @property
    def _is_fenced(self) -> bool:
        return self._commits.is_fenced and self._mode is Mode.SUBSCRIBED

    # -- positions ---------------------------------------------------------------------------------

    def positions(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """See Consumer.position."""
        found = []
        for p in partitions:
            reader = self.readers.get((p.topic, p.partition))
            at = None if reader is None else self.stream.returned(reader)
            found.append(TopicPartition(p.topic, p.partition, OFFSET_INVALID if at is None else at))
        return found

    def seek(self, partition: TopicPartition) -> None:
        """See Consumer.seek."""
        reader = self._assigned([partition])[0]
        reader.log.refresh()
        self._starts.wanted.pop((reader.topic, reader.partition), None)
        reader.reported_end = None
        self.stream.seek(reader, place(reader, partition.offset))

    def pause(self, partitions: Sequence[TopicPartition], *, is_paused: bool) -> None:
        """See Consumer.pause and Consumer.resume."""
        readers = self._assigned(partitions)
        for reader in readers:
            reader.is_paused = is_paused
        self._fetcher.wake()
        if is_paused:
            self.stream.drop([(reader.topic, reader.partition) for reader in readers])

    def _assigned(self, partitions: Sequence[TopicPartition]) -> list[PartitionReader]:
        missing = [p for p in partitions if (p.topic, p.partition) not in self.readers]
        if missing:
            assigned = ", ".join(f"{topic}-{number}" for topic, number in sorted(self.readers))
            raise ClientStateError(
                f"{missing[0].topic}-{missing[0].partition} is not assigned to this consumer; it "
                f"has {assigned or 'no partitions'}. Call assign first, or after subscribe poll "
                "until on_assign has named the partition."
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
        self, partitions: Sequence[TopicPartition], timeout_ms: int
    ) -> list[TopicPartition]:
        """See Consumer.committed."""
        return self._commits.committed(self.require_session(), partitions, timeout_ms)

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
                self._rebalances.revoke(session, sorted(self.readers))
        finally:
            session.close()

    def store_offsets(
        self, message: Message | None, offsets: Sequence[TopicPartition] | None
    ) -> None:
        """See Consumer.store_offsets."""
        self._commits.store(message, offsets, self._assigned)
