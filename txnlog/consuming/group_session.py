"""A consumer's session in its group: the generation it reads and commits under.

With a subscription this is the generation of its assignment. A consumer with manually assigned
partitions begins a generation first and reads offsets after: `start_generation` (D6).
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
from collections.abc import Callable, Collection, Mapping

from txnlog.cluster import Cluster
from txnlog.consuming.heartbeat_thread import HeartbeatThread
from txnlog.consuming.membership import (
    NO_GENERATION,
    Heartbeat,
    MemberSettings,
    Membership,
    leave,
    say_retried,
)
from txnlog.consuming.subscriptions import resolve
from txnlog.errors import (
    ClientStateError,
    RebalanceInProgressError,
    TxnLogError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from txnlog.messages import ConsumerGroupMetadata
from txnlog.process.client_events import ClientEvents
from txnlog.process.client_metrics import Times
from txnlog.process.failures import unexpected
from txnlog.protocol.group_metadata import Group, Positions
from txnlog.protocol.membership import MembershipStatus
from txnlog.protocol.watching import GAP_INTERVALS_MAX, Watch

logger = logging.getLogger("txnlog")

SETTLE_PATIENCE_MS = 10_000
"""How long to wait for open transactions with pending offsets of newly assigned partitions before
fencing them: they may be about to commit, and fencing ends their producers (D45)."""

LEAVE_S = 5.0
"""How long the end of a program waits for a consumer that was not closed to leave its group."""

FAILED_JOINS_MAX = 3
"""Joins in a row that raise the error of a topic that matches a pattern and cannot be read; the
next one joins without it."""

Notes = Mapping[str, Mapping[int, str]]
OnDone = Callable[[TxnLogError | None], None]


class GroupSession:
    """One consumer in one group. Heartbeats and asynchronous commits run on a background thread.

    `background=False`: no thread; asynchronous commits run at once, tests call `heartbeat.send`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: MemberSettings,
        events: ClientEvents,
        *,
        background: bool = True,
    ) -> None:
        self._cluster = cluster
        self._events = events
        self._pid = os.getpid()
        self.settings = settings
        self.membership = Membership(cluster, settings)
        # Logs are for one thread at a time: the background thread has its own.
        self._background_cluster = Cluster.open(cluster.store, settings=cluster.settings)
        self.heartbeat = Heartbeat(self._background_cluster, settings)
        self._with_thread = background
        self._background: HeartbeatThread | None = None
        self._manual_generation = NO_GENERATION
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._last_group: Group | None = None
        self._pending_watch: Watch | None = None
        self.commits = Times()
        self._failed_joins = 0

    # -- membership --------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The current generation, NO_GENERATION without one."""
        if self._manual_generation != NO_GENERATION:
            return self._manual_generation
        return self.membership.generation

    @property
    def has_generation(self) -> bool:
        """Whether this consumer has a generation to commit under."""
        return self.generation != NO_GENERATION

    def join(
        self,
        subscription: tuple[str, ...],
        keep_only: Callable[[tuple[str, ...]], object] = lambda topics: None,
    ) -> None:
        """Request an assignment, or a new one; `membership.complete_join` obtains it.

        `keep_only` is called before, with the topics that will be subscribed to. To be repeated if
        it raises.
        """
        topics, failed = resolve(self._cluster, subscription, self.membership.topics)
        if failed is not None and self._failed_joins < FAILED_JOINS_MAX:
            self._failed_joins += 1
            raise failed
        self._failed_joins = 0
        keep_only(topics)
        self._manual_generation = NO_GENERATION
        self._pending_watch = None
        self._start_thread()
        self.membership.join(topics)
        self.heartbeat.set_member(
            self.membership.member_id, topics, subscription, is_complete=failed is None
        )
        self._last_group = self.heartbeat.group

    def start_generation(self) -> None:
        """Begin a generation for manually assigned partitions."""
        self._pending_watch = None
        self._manual_generation = self._cluster.groups.start(self.settings.group_id)

    def leave(self) -> None:
        """Leave the group. Locally this takes effect even if it raises StorageError."""
        self._manual_generation = NO_GENERATION
        self.heartbeat.set_member("")
        self.membership.leave()

    def close(self) -> None:
        """Stop the thread after its queued commits."""
        _OPEN.discard(self)
        if self._background is not None:
            self._background.stop()
            self._background = None

    def abandon(self) -> None:
        """The consumer was dropped without close(): leave the group, soon and on the thread.

        Does nothing after close(), and in a child of a fork.
        """
        background, member_id = self._background, self.membership.member_id
        if self not in _OPEN or background is None or os.getpid() != self._pid:
            return
        if member_id and not self.settings.instance_id:
            logger.warning(
                "Consumer %s of group %r was dropped without close(): it leaves the group, and "
                "what it has not committed will be read again. Call close(), or use `with`.",
                member_id,
                self.settings.group_id,
            )
            self.heartbeat.set_member("")
            group_id = self.settings.group_id
            background.submit(lambda: leave(self._background_cluster, group_id, member_id))
        background.submit(lambda: _OPEN.discard(self))
        background.request_stop()

    @property
    def has_updates(self) -> bool:
        """Whether the group changed since the last `status`, or a queued commit has finished."""
        heartbeat = self.heartbeat
        return (
            heartbeat.group is not self._last_group
            or heartbeat.needs_rejoin
            or not self._done.empty()
        )

    def status(self, *, look: bool = False) -> MembershipStatus:
        """What this consumer must do with its assignment.

        By the heartbeat thread's last row; with `look` by the newest one.
        """
        self._last_group = group = self.heartbeat.group
        if look:
            group = self._cluster.groups.describe(self.settings.group_id)
        status = self.membership.status(group)
        if status is MembershipStatus.STABLE and self.heartbeat.needs_rejoin:
            return MembershipStatus.REBALANCING
        return status

    def has_lost(self) -> bool:
        """Whether a refused request means that the partitions belong to others.

        An eager member is refused for nothing else.
        """
        membership = self.membership
        if not membership.is_cooperative:
            return True
        try:
            group = self._cluster.groups.describe(self.settings.group_id)
        except TxnLogError:
            return True
        return not membership.keeps(group)

    def metadata(self) -> ConsumerGroupMetadata:
        """For Producer.send_offsets_to_transaction. Raises RebalanceInProgressError."""
        self.require_generation()
        return ConsumerGroupMetadata(
            self.settings.group_id, self.generation, self.membership.member_id
        )

    def require_generation(self) -> None:
        """Raise RebalanceInProgressError or ClientStateError without a generation."""
        if self.has_generation:
            return
        if self.membership.member_id:
            raise RebalanceInProgressError(
                f"Group {self.settings.group_id!r} is rebalancing and this consumer has no "
                "partitions: poll until it has some, then continue from there.",
                group_id=self.settings.group_id,
            )
        raise ClientStateError(
            "This consumer is not in its group: call subscribe or assign, then poll.",
            group_id=self.settings.group_id,
        )

    # -- offsets -----------------------------------------------------------------------------------

    def fetch(self, partitions: Mapping[str, Collection[int]]) -> Positions | None:
        """Committed positions under this generation; None if some are pending: try again (R46).

        Transactions whose offsets are pending for SETTLE_PATIENCE_MS are fenced or finished.
        Does not block, so that a poll keeps its time-out. Raises IllegalGenerationError,
        UnstableOffsetCommitError.
        """
        now_ms = self._cluster.store.clock.boot_ms()
        watch = self._pending_watch or Watch(now_ms)
        # After a suspend, the time away does not count against the transaction's holder.
        self._pending_watch = watch.observe(
            now_ms=now_ms, interval_ms=SETTLE_PATIENCE_MS // GAP_INTERVALS_MAX
        )
        is_patient = self._pending_watch.watched_ms < SETTLE_PATIENCE_MS
        try:
            positions = self._cluster.groups.fetch(
                self.settings.group_id,
                self.generation,
                member_id=self.membership.member_id,
                partitions=partitions,
                fence=not is_patient,
            )
        except UnstableOffsetCommitError:
            if is_patient:
                return None
            raise
        self._pending_watch = None
        return positions

    def committed(
        self, partitions: Mapping[str, Collection[int]], *, stable: bool, timeout_ms: int
    ) -> Positions:
        """Committed positions without a generation: waits for open transactions, fences none.

        Raises UnstableOffsetCommitError.
        """
        group_id = self.settings.group_id
        if not stable:
            group = self._cluster.groups.committed(group_id)
            return {} if group is None else group.positions()
        return self._cluster.groups.fetch(
            group_id, partitions=partitions, patience_ms=timeout_ms, fence=False
        )

    def commit(self, positions: Positions, notes: Notes, starts: Positions) -> None:
        """Commit now, after all queued commits (R48); `starts` as in `with_starts`.

        Raises IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError.
        """
        self.require_generation()
        self.drain()
        with self.commits.timing():
            self._cluster.groups.commit(
                self.settings.group_id,
                self.generation,
                positions,
                member_id=self.membership.member_id,
                metadata=notes,
                starts=starts,
            )

    def commit_without_assignment(self, positions: Positions, notes: Notes) -> None:
        """Commit in a group without members, under its present generation.

        Raises UnknownMemberIdError when it has members, IllegalGenerationError when it is used
        meanwhile.
        """
        group_id, groups = self.settings.group_id, self._cluster.groups
        group = groups.describe(group_id)
        if group is not None and group.members:
            raise UnknownMemberIdError(
                f"Group {group_id!r} has members, and this consumer is none of them: commit as a "
                "member (subscribe, then poll), or once the group is empty.",
                group_id=group_id,
            )
        generation = groups.start(group_id) if group is None else group.generation
        with self.commits.timing():
            groups.commit(group_id, generation, positions, metadata=notes)

    def commit_later(
        self, positions: Positions, notes: Notes, starts: Positions, on_done: OnDone
    ) -> None:
        """`commit` on the background thread, in order; a later `call_back` calls `on_done`."""
        self.require_generation()
        member_id, generation = self.membership.member_id, self.generation

        def job() -> None:
            error: TxnLogError | None = None
            try:
                with self.commits.timing():
                    self._background_cluster.groups.commit(
                        self.settings.group_id,
                        generation,
                        positions,
                        member_id=member_id,
                        metadata=notes,
                        starts=starts,
                    )
            except Exception as refused:
                error = unexpected(refused, "Committing offsets")
            self._done.put(lambda: on_done(error))

        self._start_thread()
        if self._background is None:
            job()
        else:
            self._background.submit(job)

    def say_retried(self, error: TxnLogError, *, until: str) -> None:
        """Say that an automatic commit has failed, and is tried again."""
        say_retried(self._cluster, self.settings.group_id, "Committing offsets", error, until=until)

    def drain(self) -> None:
        """Wait until all queued commits are done."""
        if self._background is not None:
            self._background.drain()

    def call_back(self) -> None:
        """Call the callbacks of finished commits."""
        while not self._done.empty():
            self._done.get()()

    def _start_thread(self) -> None:
        if self._with_thread and self._background is None:
            name = f"txnlog-consumer-{self.settings.group_id}"
            self._background = HeartbeatThread(
                name, self.heartbeat, self.settings.heartbeat_interval_ms, self._events
            )
            _OPEN.add(self)


def _leave_all() -> None:
    """At the end of the program: the consumers that were not closed leave their groups."""
    left = [session for session in _OPEN if session._pid == os.getpid()]
    for session in left:
        session.abandon()
    for session in left:
        if session._background is not None:
            session._background.join(LEAVE_S)


_OPEN: set[GroupSession] = set()
"""Sessions with a thread, in this process; a session does not refer to its consumer."""
atexit.register(_leave_all)
