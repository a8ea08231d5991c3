"""A subscribed consumer's part in its group: joining, revoking, accepting, losing partitions.

An eager member gives up all partitions before it rejoins. A cooperative one rejoins with all it
has, reads on, and revokes what the next generation no longer assigns to it (D126).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

from txnlog.cluster import Cluster
from txnlog.consuming.commits import LOST, Commits
from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import Key
from txnlog.consuming.group_session import GroupSession
from txnlog.consuming.membership import Membership
from txnlog.consuming.record_stream import RecordStream
from txnlog.consuming.starts import Starts
from txnlog.consuming.subscriptions import missing_topics
from txnlog.errors import FencedInstanceIdError, TxnLogError
from txnlog.messages import PARTITION_UA, Message, TopicPartition
from txnlog.protocol.cooperation import hand_over
from txnlog.protocol.membership import MembershipStatus

logger = logging.getLogger("txnlog")

LOOK_INTERVAL_MS = 100
"""How often a member that reads on looks for the generation that it waits for."""

_REVOKING: ContextVar[object] = ContextVar("revoking", default=None)

Callback = Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's rebalance callbacks."""

    consumer: object = None
    on_assign: Callback = None
    on_revoke: Callback = None
    on_lost: Callback = None


class Rebalances:
    """Follows the group of one consumer; `subscription` and `callbacks` are those of subscribe().

    `needs_rejoin`: an assignment is to be requested at the next `update`. `is_assigning`:
    on_assign is under way.
    """

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        stream: RecordStream,
        starts: Starts,
        commits: Commits,
    ) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._fetcher = fetcher
        self._stream = stream
        self._starts = starts
        self._commits = commits
        self._missing: set[str] = set()
        self._announced: set[Key] = set()
        self._look_due_ms = 0
        self.subscription: tuple[str, ...] = ()
        self.callbacks = Callbacks()
        self.count = 0
        self.needs_rejoin = self.is_assigning = False

    # -- between two polls -------------------------------------------------------------------------

    def update(self, session: GroupSession) -> None:
        """Follow the group's row: join, revoke, or accept a new assignment."""
        if self.is_revoking:
            # A poll in on_revoke: what called that goes on afterwards.
            return
        membership = session.membership
        has_news = session.has_updates
        try:
            # Somebody else's heartbeat may be far away.
            is_near = not membership.is_waiting and membership.is_handing_over
            status = session.status(look=is_near and self._is_look_due())
        except FencedInstanceIdError:
            self.clear()
            raise
        if not membership.member_id:
            self.needs_rejoin = True
        elif not membership.is_waiting:
            self._give_up_assignment(session, status)
            if not self.subscription:
                # on_revoke has unsubscribed, or closed the consumer.
                return
        elif membership.is_cooperative and self._commits.is_fenced:
            self._lose_assignment(membership)
        if self._must_look(membership) or has_news:
            self._join(session)
            if membership.is_cooperative and self.needs_rejoin:
                # What moves is revoked: its new owner waits for this.
                self._join(session)

    def _must_look(self, membership: Membership) -> bool:
        """False: the last look at the row was a moment ago, and there are partitions to read."""
        if self.needs_rejoin or not (membership.is_cooperative and self._fetcher.readers):
            return True
        return self._is_look_due()

    def _is_look_due(self) -> bool:
        now_ms = self._clock.boot_ms()
        if now_ms < self._look_due_ms:
            return False
        self._look_due_ms = now_ms + LOOK_INTERVAL_MS
        return True

    def _join(self, session: GroupSession) -> None:
        """Request an assignment, if it is to be requested, and accept one that there is."""
        membership = session.membership
        if self.needs_rejoin:
            session.join(self.subscription, lambda topics: self._keep_only(session, topics))
            self.needs_rejoin = False
        if not membership.is_waiting:
            return
        if not membership.is_cooperative:
            # Left by an acceptance that was interrupted.
            self.clear()
        if membership.complete_join():
            self._accept_assignment(session)
        elif membership.has_lost:
            self._lose_assignment(membership)

    def _give_up_assignment(self, session: GroupSession, status: MembershipStatus) -> None:
        """Revoke or lose the assignment, if the group or a new subscription says so.

        `needs_rejoin` is set first, so that the next poll continues where this one fails. A
        cooperative member revokes nothing yet.
        """
        membership = session.membership
        if self._commits.is_fenced or status is MembershipStatus.LOST:
            self._lose_assignment(membership)
        elif self.needs_rejoin or status is MembershipStatus.REBALANCING:
            self.needs_rejoin = True
            logger.info("Consumer %s rejoins: its group rebalances", membership.member_id)
            if not membership.is_cooperative:
                self.revoke(session, sorted(self._fetcher.readers))

    def _keep_only(self, session: GroupSession, topics: Sequence[str]) -> None:
        """Before a cooperative member rejoins: revoke what it may not claim any more."""
        membership = session.membership
        if membership.is_cooperative:
            assigned = {t: numbers for t, numbers in membership.assignment.items() if t in topics}
            revoked = hand_over(self._fetcher.readers, assigned).revoked
            if revoked:
                self.revoke(session, revoked)

    def _accept_assignment(self, session: GroupSession) -> None:
        """Add the assigned partitions. If this fails, the next poll does it again."""
        membership = session.membership
        assignment = membership.assignment
        if membership.is_cooperative:
            revoked = hand_over(self._fetcher.readers, assignment).revoked
            if revoked:
                self.revoke(session, revoked)
        logs = {topic: self._cluster.topic_log(topic) for topic in assignment}
        self._fetcher.tail(list(logs.values()))
        for topic, log in logs.items():
            for number in assignment[topic]:
                # A topic deleted since then has no log to read; the group rebalances soon.
                if number < log.partitions or not self._fetcher.can_read(topic):
                    self._fetcher.add(log, number)
        self._starts.has_unplaced = True
        self._commits.start(keeps=bool(self._announced))
        self.needs_rejoin = membership.must_rejoin
        self._report_missing(membership)
        text = "Consumer %s is in generation %d of group %r and reads %s"
        found = (membership.member_id, membership.generation, membership.settings.group_id)
        logger.info(text, *found, _named(sorted(self._fetcher.readers)))
        added = sorted(set(self._fetcher.readers) - self._announced)
        # From here to the callback as little as can be: an interrupt there leaves it out.
        membership.accept()
        self.count += 1
        self._announced = set(self._fetcher.readers)
        self.is_assigning = True
        try:
            self._notify(self.callbacks.on_assign, added)
        finally:
            self.is_assigning = False

    def _report_missing(self, membership: Membership) -> None:
        """Report subscribed topics that do not exist, once each, in a message with an error."""
        missing = missing_topics(self._cluster, membership.unassigned_topics)
        for topic in sorted(missing.keys() - self._missing):
            logger.warning("Subscribed topic not available: %s", missing[topic])
            self._stream.notify(
                Message(topic, PARTITION_UA, None, None, None, None, None, missing[topic])
            )
        self._missing = set(missing)

    # -- giving up partitions ----------------------------------------------------------------------

    def revoke(self, session: GroupSession, keys: Sequence[Key]) -> None:
        """Commit, call on_revoke (or on_lost), and remove these partitions; not in on_revoke."""
        if self.is_revoking:
            return
        callback = self.callbacks.on_revoke
        try:
            self._commits.commit_before_revoke(session)
        except LOST:
            callback = self.callbacks.on_lost or callback
        except TxnLogError as error:
            logger.warning("Committing offsets failed; records will be read again: %s", error)
        try:
            self._notify_revoked(callback, keys)
        finally:
            self.remove(keys)

    def _lose_assignment(self, membership: Membership) -> None:
        # Also in the midst of a join: heartbeats of the new id begin with the next one.
        self.needs_rejoin = True
        keys = sorted(self._fetcher.readers)
        self._commits.is_fenced = False
        membership.lose()
        self.clear()
        logger.info("Consumer %s has lost its partitions: %s", membership.member_id, _named(keys))
        self._notify_revoked(self.callbacks.on_lost or self.callbacks.on_revoke, keys)

    def clear(self) -> None:
        """Remove all partitions, without a word to the application."""
        self.remove(list(self._fetcher.readers))
        self._starts.wanted = {}
        self._announced = set()

    def remove(self, keys: Sequence[Key]) -> None:
        """Remove partitions, with what is fetched, wanted or stored of them."""
        self._stream.drop(keys)
        self._fetcher.remove(keys)
        for key in keys:
            self._starts.forget(key)
            self._commits.forget(key)
        self._announced.difference_update(keys)

    @property
    def is_revoking(self) -> bool:
        """Whether this is called in on_revoke, or on_lost."""
        return _REVOKING.get() is self

    def _notify_revoked(self, callback: Callback, keys: Sequence[Key]) -> None:
        def notify() -> None:
            _REVOKING.set(self)
            self._notify(callback, keys)

        if keys:
            # A context ends with its call, wherever an interrupt comes.
            copy_context().run(notify)

    def _notify(self, callback: Callback, keys: Sequence[Key]) -> None:
        if callback is not None:
            callback(self.callbacks.consumer, [TopicPartition(*key) for key in keys])


def _named(keys: Iterable[Key]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) or "none"
