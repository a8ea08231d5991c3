"""A consumer's place in its group: joining and leaving, and a heartbeat on a thread of its own.

The consumer's thread joins, waits and leaves; the heart beats with its own handle of the logs,
shows the newest row it has seen in `seen`, and never touches what the consumer holds. What each of
them writes is decided in txnlog.protocol.membership; between two writes either may die:

    join        before: no member. After: a member that must be seen to beat, or is expelled.
    heartbeat   before or after: the counter stands still, and the others expel it.
    leave       before: as if it had died. After: the others go on at once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from txnlog.cluster import Cluster
from txnlog.errors import (
    FencedInstanceIdError,
    TxnLogError,
    UnknownMemberIdError,
)
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.membership import (
    Sightings,
    Standing,
    is_fenced,
    is_member_of,
    is_rebalancing,
    prepare_heartbeat,
    prepare_join,
    prepare_leave,
    standing,
    uncovered,
)
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.values import pattern

logger = logging.getLogger("txnlog")

PATTERN_PREFIX = "^"
_Watched = tuple[str, tuple[str, ...], tuple[str, ...]]
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What a member is configured with; see txnlog.settings.config."""

    group_id: str
    client_id: str = "txnlog"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 300_000
    assignors: tuple[str, ...] = ("range",)
    instance_id: str = ""


class Membership:
    """What the consumer's thread knows: its member id, generation and part of the assignment."""

    def __init__(self, cluster: Cluster, settings: MemberSettings) -> None:
        self._cluster = cluster
        self.settings = settings
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment: Mapping[str, tuple[int, ...]] = {}
        self._topics: tuple[str, ...] = ()
        self._released = NO_GENERATION
        self._has_joined = False
        self.is_waiting = False

    def join(self, topics: tuple[str, ...]) -> None:
        """Let go of the present part, if there is one, and want another; `take` writes it."""
        if not self.member_id:
            self.member_id = f"{self.settings.client_id}-{uuid.uuid4()}"
        if self.generation != NO_GENERATION:
            self._released = self.generation
        self._topics = topics
        self.generation, self.assignment, self.is_waiting = NO_GENERATION, {}, True

    def take(self) -> bool:
        """Whether a new generation has begun since `join`: then `assignment` is this member's.

        Writes that it joins, also again: it may have been expelled while it waited, or somebody who
        is no member has begun a generation. Raises InconsistentGroupProtocolError,
        FencedInstanceIdError.
        """
        group_id = self.settings.group_id
        group = self._cluster.groups.describe(group_id)
        self._check_instance(group)
        if not self._has_part(group) and not self._waits(group):
            self._write_join()
            self._has_joined = True
            group = self._cluster.offsets_log().view.rows.get(group_id)
        if group is None or not self._has_part(group):
            return False
        self.generation = group.generation
        self.assignment = group.assignment[self.member_id]
        self.is_waiting = False
        return True

    def _has_part(self, group: Group | None) -> bool:
        if group is None or not is_member_of(group, self.member_id, after=self._released):
            return False
        return group.members[self.member_id].topics == self._topics

    def _waits(self, group: Group | None) -> bool:
        known = None if group is None else group.members.get(self.member_id)
        if group is None or known is None:
            return False
        return known.joined == group.generation and known.topics == self._topics

    def leave(self) -> None:
        """Leave the group, so that the others need not wait for a time-out.

        With an instance id the place is kept, for a restart within session.timeout.ms.
        """
        member_id, self.member_id = self.member_id, ""
        self.generation, self.assignment, self.is_waiting = NO_GENERATION, {}, False
        self._released, self._has_joined = NO_GENERATION, False
        if member_id and not self.settings.instance_id:
            leave(self._cluster, self.settings.group_id, member_id)

    def standing(self, seen: Group | None) -> Standing:
        """Membership status from the heartbeat thread's last row. Raises FencedInstanceIdError."""
        self._check_instance(seen)
        return standing(seen, member_id=self.member_id, generation=self.generation)

    def _check_instance(self, group: Group | None) -> None:
        instance_id = self.settings.instance_id
        if self._has_joined and is_fenced(group, member_id=self.member_id, instance_id=instance_id):
            raise FencedInstanceIdError(
                f"A newer consumer with group.instance.id={instance_id!r} has taken this one's "
                f"place in group {self.settings.group_id!r}. Close this one; give every consumer "
                "of a group an instance id of its own.",
                group_id=self.settings.group_id,
                instance_id=instance_id,
            )

    def _write_join(self) -> None:
        settings, cluster = self.settings, self._cluster
        member = Member(
            topics=self._topics,
            assignors=settings.assignors,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            client_id=settings.client_id,
            instance_id=settings.instance_id,
            host=socket.gethostname(),
        )
        counts = Counts(cluster)
        cluster.offsets_log().change(
            lambda view, version: prepare_join(
                view.rows.get(settings.group_id),
                group_id=settings.group_id,
                member_id=self.member_id,
                member=member,
                released=self._released,
                counts=counts.of(view.rows.get(settings.group_id), self._topics),
                now_ms=cluster.store.clock.now_ms(),
            )
        )


class Heart:
    """Keeps a member alive, and expels those who are not; one `beat` each heartbeat.interval.ms.

    `polled_ms` is when the consumer polled last (boot clock): the consumer writes it.
    """

    def __init__(self, cluster: Cluster, settings: MemberSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = cluster.store.clock
        self._sightings = Sightings()
        self._counter = -1
        self._resolved_ms = self._clock.boot_ms()
        self._watched: _Watched = ("", (), ())
        self.polled_ms = self._resolved_ms
        self.seen: Group | None = None
        self.is_stale = False

    def watch(
        self, member_id: str, topics: tuple[str, ...] = (), subscription: tuple[str, ...] = ()
    ) -> None:
        """Beat for this member from now on ("": for nobody), that has joined with these topics."""
        self._watched = (member_id, topics, subscription)
        self.is_stale = False

    def beat(self) -> None:
        """One look at the group, and one write if it is time for one.

        Raises StorageError and the like; the next beat tries again.
        """
        watched = self._watched
        member_id, group_id = watched[0], self._settings.group_id
        if not member_id:
            return
        now_ms = self._clock.boot_ms()
        group = self._cluster.groups.describe(group_id)
        if group is None or member_id not in group.members:
            self._show(watched, group)
            return
        if now_ms - self.polled_ms >= self._settings.max_poll_interval_ms:
            logger.warning(
                "Consumer %s has not polled for max.poll.interval.ms=%d ms and leaves group %r; "
                "poll more often, or raise that setting.",
                member_id,
                self._settings.max_poll_interval_ms,
                group_id,
            )
            leave(self._cluster, group_id, member_id)
            self._show(watched, self._cluster.groups.describe(group_id))
            return
        sightings = self._sightings = self._sightings.look(group, now_ms=now_ms)
        # A commit since the last beat was a sign of life, too.
        is_due = group.members[member_id].heartbeat == self._counter
        counts = Counts(self._cluster)
        with_counts = counts.of(group, ())
        with contextlib.suppress(UnknownMemberIdError):
            self._cluster.offsets_log().change(
                lambda view, version: prepare_heartbeat(
                    view.rows.get(group_id),
                    group_id=group_id,
                    member_id=member_id,
                    beat=is_due,
                    sightings=sightings,
                    counts=counts.of(view.rows.get(group_id), ()),
                    now_ms=self._clock.now_ms(),
                )
            )
        after = self._cluster.offsets_log().view.rows.get(group_id)
        if after is not None and member_id in after.members:
            self._counter = after.members[member_id].heartbeat
        is_stale = not is_rebalancing(group) and (
            uncovered(group, with_counts) or self._is_resolved_anew(watched, now_ms)
        )
        self._show(watched, after, is_stale=is_stale)

    def _show(self, watched: _Watched, group: Group | None, *, is_stale: bool = False) -> None:
        # The consumer may have gone on in the meantime: then this is no news of it.
        if watched is self._watched:
            self.seen = group
            self.is_stale = is_stale

    def _is_resolved_anew(self, watched: _Watched, now_ms: int) -> bool:
        """Whether the patterns match other topics than when the consumer joined."""
        if now_ms - self._resolved_ms < self._settings.metadata_max_age_ms:
            return False
        self._resolved_ms = now_ms
        _, topics, subscription = watched
        return resolve(self._cluster, subscription) != topics


class Counts:
    """Numbers of partitions, looked up once for one write."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, int] = {}

    def of(self, group: Group | None, topics: Iterable[str]) -> Mapping[str, int]:
        """For all topics that the members read, and `topics`; those that are not there have 0."""
        members = () if group is None else group.members.values()
        wanted = {topic for member in members for topic in member.topics}.union(topics)
        for topic in sorted(wanted - set(self._known)):
            log = self._cluster.topic_log(topic)
            log.refresh()
            self._known[topic] = log.partitions if log.exists else 0
        return self._known


def resolve(cluster: Cluster, subscription: Iterable[str]) -> tuple[str, ...]:
    """The topics of names and of "^regex" patterns, sorted; a name need not be there yet."""
    names = set()
    patterns = []
    for entry in subscription:
        if entry.startswith(PATTERN_PREFIX):
            patterns.append(re.compile(entry))
        else:
            names.add(entry)
    if patterns:
        names.update(cluster.list_topics(lambda name: any(p.match(name) for p in patterns)))
    return tuple(sorted(names))


def check_subscription(topics: Iterable[str]) -> None:
    """Raise InvalidTopicError, or ConfigError for a pattern that is none."""
    for topic in topics:
        if not topic.startswith(PATTERN_PREFIX):
            check_topic_name(topic)
            continue
        pattern("topics", topic)


def leave(cluster: Cluster, group_id: str, member_id: str) -> None:
    """Take a member out of its group, if it is in it."""
    counts = Counts(cluster)
    cluster.offsets_log().change(
        lambda view, version: prepare_leave(
            view.rows.get(group_id),
            member_id=member_id,
            counts=counts.of(view.rows.get(group_id), ()),
            now_ms=cluster.store.clock.now_ms(),
        )
    )


class Background:
    """A daemon thread that beats, and does in order what it is given in between."""

    def __init__(self, name: str, heart: Heart, interval_ms: int) -> None:
        self._heart = heart
        self._interval_ms = interval_ms
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job; what it raises is only logged."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until all jobs given so far are done."""
        done = threading.Event()
        self._jobs.put(done.set)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """End the thread after the jobs given so far."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        interval_s = self._interval_ms / 1000
        due_s = time.monotonic() + interval_s
        while True:
            wait_s = due_s - time.monotonic()
            if wait_s <= 0:
                self._beat()
                due_s = time.monotonic() + interval_s
                continue
            try:
                job = self._jobs.get(timeout=wait_s)
            except queue.Empty:
                continue
            if job is None:
                return
            try:
                job()
            except Exception:
                # Without this thread there are no heartbeats, and the member would be expelled.
                logger.exception("A job of the consumer's thread failed; it goes on")

    def _beat(self) -> None:
        try:
            self._heart.beat()
        except TxnLogError as error:
            logger.warning("A heartbeat failed, the next one tries again: %s", error)
        except Exception:
            # Without this thread the member would be expelled, and nobody would know why.
            logger.exception("A heartbeat failed, the next one tries again")
