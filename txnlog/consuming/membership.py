"""Group membership of a consumer: joining, leaving, and the heartbeat thread.

The consumer's thread joins, waits and leaves. The heartbeat thread has its own handle of the logs,
publishes the newest group row in `group`, and never changes the consumer's state. Their writes are
decided in txnlog.protocol.membership. If the process dies around a write:

    join        before: not a member. After: a member without heartbeats, which the others expel.
    heartbeat   before or after: the counter no longer changes, and the others expel the member.
    leave       before: as if it had died. After: the others rebalance at once.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.cluster import Cluster
from txnlog.consuming.subscriptions import PartitionCounts, resolve
from txnlog.errors import (
    ConfigError,
    FencedInstanceIdError,
    TxnLogError,
    UnknownMemberIdError,
)
from txnlog.protocol.cooperation import is_cooperative, is_member_of, keeps_partitions
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.groups import OffsetsCommit
from txnlog.protocol.membership import (
    BEATS_PER_SESSION,
    GroupObservation,
    MembershipStatus,
    is_assignment_outdated,
    is_fenced,
    is_rebalancing,
    membership_status,
    prepare_heartbeat,
    prepare_join,
    prepare_leave,
)
from txnlog.protocol.polling import poll_interval_ms
from txnlog.protocol.shards import offsets_table
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

_HeartbeatMember = tuple[str, tuple[str, ...], tuple[str, ...]]
NO_GENERATION = -1
AGAIN_MS = 30_000
"""When patterns are resolved again of which a topic could not be read."""
COUNT_POLLS = 10
"""How many poll intervals lie between two look-ups of the partitions of a group's topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a group member; see txnlog.settings.config."""

    group_id: str
    client_id: str = "txnlog"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 300_000
    assignors: tuple[str, ...] = ("range",)
    instance_id: str = ""


def member_settings(config: Config) -> MemberSettings:
    """Raises ConfigError without group.id."""
    get = config.get
    if get("group.id") is None:
        raise ConfigError("This call needs a consumer group: set group.id.", option="group.id")
    return MemberSettings(
        group_id=get("group.id"),
        client_id=get("client.id"),
        instance_id=get("group.instance.id") or "",
        session_timeout_ms=get("session.timeout.ms"),
        heartbeat_interval_ms=get("heartbeat.interval.ms"),
        max_poll_interval_ms=get("max.poll.interval.ms"),
        metadata_max_age_ms=get("metadata.max.age.ms"),
        assignors=get("partition.assignment.strategy"),
    )


class Membership:
    """The consumer thread's state: member id, generation and assignment.

    `unassigned_topics` are those that it wants and that no member has partitions of. A cooperative
    member has its generation and assignment while it waits for the next one; `has_lost` says that
    they belong to others by now, `must_rejoin` that it is to revoke some, and then to rejoin;
    `is_handing_over` that any member is, so that another generation follows soon.

    A cooperative member that has lost its partitions becomes another one. Its generation alone
    would not refuse what it has sent before: it may be late by one (D126).
    """

    def __init__(self, cluster: Cluster, settings: MemberSettings) -> None:
        self._cluster = cluster
        self.settings = settings
        self.member_id = ""
        self._former_id = ""
        self.generation = NO_GENERATION
        self.assignment: Mapping[str, tuple[int, ...]] = {}
        self.unassigned_topics: tuple[str, ...] = ()
        self._topics: tuple[str, ...] = ()
        self._released = NO_GENERATION
        self._has_joined = False
        self.is_waiting = self.has_lost = self.must_rejoin = self.is_handing_over = False
        self.is_cooperative = is_cooperative(settings.assignors)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the last `join`."""
        return self._topics

    def join(self, topics: tuple[str, ...]) -> None:
        """Request a new assignment; `complete_join` writes that. An eager one is given up."""
        if not self.member_id:
            self.member_id = self._new_id()
        if self.generation != NO_GENERATION:
            self._released = self.generation
        self._topics = topics
        self.is_waiting = True
        if not self.is_cooperative:
            self.generation, self.assignment = NO_GENERATION, {}

    def complete_join(self) -> bool:
        """Whether a generation has begun since `join`; if so, `assignment` is set.

        To be repeated until `accept`. Writes the join, if necessary again: the member may have been
        expelled while waiting, or a consumer outside the group has begun a generation. With
        `has_lost` nothing is written before `lose`. Raises InconsistentGroupProtocolError,
        FencedInstanceIdError.
        """
        group_id = self.settings.group_id
        group = self._cluster.groups.describe(group_id)
        self._check_instance(group)
        if self._note_loss(group):
            return False
        if group is not None and self.member_id in group.members:
            # Also after a write whose reply was lost.
            self._has_joined, self._former_id = True, ""
        if not self._has_assignment(group) and not self._is_join_written(group):
            self._write_join()
            if self.has_lost:
                return False
            self._has_joined, self._former_id = True, ""
            group = self._cluster.offsets_log(group_id).view.rows.get(group_id)
        if group is None or not self._has_assignment(group):
            if not self.is_cooperative:
                # A generation that was completed, but not accepted, is over.
                self.generation, self.assignment = NO_GENERATION, {}
            return False
        self.generation = group.generation
        self.must_rejoin = bool(group.members[self.member_id].revoking)
        self.is_handing_over = any(member.revoking for member in group.members.values())
        self.assignment = group.assignment[self.member_id]
        assigned = frozenset().union(*group.assignment.values())
        self.unassigned_topics = tuple(topic for topic in self._topics if topic not in assigned)
        return True

    def keeps(self, group: Group | None) -> bool:
        """Whether a cooperative member is one, by this row, and still has its partitions."""
        if self.generation == NO_GENERATION or group is None or self.member_id not in group.members:
            return False
        return keeps_partitions(group, member_id=self.member_id, generation=self.generation)

    def _note_loss(self, group: Group | None) -> bool:
        """Whether the row shows that a cooperative member's partitions belong to others.

        It stays so until `lose`: a later row need not show it.
        """
        if self.is_cooperative and self.generation != NO_GENERATION and not self.has_lost:
            self.has_lost = not keeps_partitions(
                group, member_id=self.member_id, generation=self.generation
            )
        return self.has_lost

    def lose(self) -> None:
        """The partitions belong to others: the next request claims none."""
        if self.generation != NO_GENERATION:
            self._released = self.generation
        if self.is_cooperative:
            if self.generation != NO_GENERATION:
                new_id = self._new_id()
                # In one statement: an interrupt would make it forget the former id.
                self._former_id, self.member_id, self.generation = (
                    self.member_id, new_id, NO_GENERATION
                )  # fmt: skip
            self.assignment = {}
        self.has_lost = False

    def _new_id(self) -> str:
        return f"{self.settings.client_id}-{uuid.uuid4()}"

    def accept(self) -> None:
        """The consumer has the partitions of `assignment`: it no longer waits for them."""
        self.is_waiting = False

    def _has_assignment(self, group: Group | None) -> bool:
        if group is None or not is_member_of(group, self.member_id, after=self._released):
            return False
        return group.members[self.member_id].topics == self._topics

    def _is_join_written(self, group: Group | None) -> bool:
        member = None if group is None else group.members.get(self.member_id)
        if group is None or member is None:
            return False
        return member.joined == group.generation and member.topics == self._topics

    def leave(self) -> None:
        """Leave the group, so that the others need not wait for the session time-out.

        A static member (with an instance id) stays, to restart within session.timeout.ms.
        """
        member_ids = [name for name in (self._former_id, self.member_id) if name]
        self.member_id = self._former_id = ""
        self.generation, self.assignment, self.is_waiting = NO_GENERATION, {}, False
        self._released, self._has_joined, self.has_lost = NO_GENERATION, False, False
        if not self.settings.instance_id:
            for member_id in member_ids:
                leave(self._cluster, self.settings.group_id, member_id)

    def status(self, group: Group | None) -> MembershipStatus:
        """Membership status from the heartbeat thread's last row. Raises FencedInstanceIdError."""
        self._check_instance(group)
        return membership_status(group, member_id=self.member_id, generation=self.generation)

    def _check_instance(self, group: Group | None) -> None:
        instance_id, mine = self.settings.instance_id, (self.member_id, self._former_id)
        if self._has_joined and all(
            is_fenced(group, member_id=member_id, instance_id=instance_id) for member_id in mine
        ):
            raise FencedInstanceIdError(
                f"A newer consumer with group.instance.id={instance_id!r} has replaced this one "
                f"in group {self.settings.group_id!r}. Close this one; give every consumer of a "
                "group a different instance id.",
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
        counts = PartitionCounts(cluster)

        def decide(group: Group | None) -> OffsetsCommit | None:
            # What this write follows on, later rows do not show.
            if self._note_loss(group):
                return None
            return prepare_join(
                group,
                group_id=settings.group_id,
                member_id=self.member_id,
                member=member,
                released=self._released,
                counts=counts.of(group, self._topics),
                now_ms=cluster.store.now_ms(),
                former=self._former_id,
            )

        cluster.groups.change_members(settings.group_id, decide, by=self.member_id)


class Heartbeat:
    """Heartbeats of a member; also expels dead members. One `send` per heartbeat.interval.ms.

    `polled_ms` is the time of the consumer's last poll (boot clock); the consumer sets it.
    `group` is the last row read.
    """

    def __init__(self, cluster: Cluster, settings: MemberSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = cluster.store.clock
        self._observation = GroupObservation()
        self._counter = -1
        self._beat_ms = self._clock.boot_ms()
        self._counted_ms: int | None = None
        self._resolved_ms = self._clock.boot_ms()
        self._member: _HeartbeatMember = ("", (), ())
        self._is_complete = True
        self.polled_ms = self._resolved_ms
        self.group: Group | None = None
        self.needs_rejoin = False

    def set_member(
        self,
        member_id: str,
        topics: tuple[str, ...] = (),
        subscription: tuple[str, ...] = (),
        *,
        is_complete: bool = True,
    ) -> None:
        """Send heartbeats for this member from now on ("": none), joined with these topics.

        `is_complete`: every topic that matches the subscription could be read.
        """
        if member_id != self._member[0]:
            # What was seen of it is of before this member.
            self.group = None
        self._member = (member_id, topics, subscription)
        self.needs_rejoin = False
        self._is_complete = is_complete

    def send(self) -> None:
        """One heartbeat: read the group, and write if necessary.

        Raises StorageError and similar errors; the next heartbeat retries.
        """
        member = self._member
        member_id, group_id = member[0], self._settings.group_id
        if not member_id:
            return
        now_ms = self._clock.boot_ms()
        group = self._cluster.groups.describe(group_id)
        if group is None or member_id not in group.members:
            self._publish(member, group)
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
            self._publish(member, self._cluster.groups.describe(group_id))
            return
        observation = self._observation = self._observation.observe(group, now_ms=now_ms)
        counts = PartitionCounts(self._cluster)
        is_due = self._is_beat_due(group.members[member_id].heartbeat, now_ms)
        with contextlib.suppress(UnknownMemberIdError):
            self._cluster.groups.change_members(
                group_id,
                lambda group: prepare_heartbeat(
                    group,
                    group_id=group_id,
                    member_id=member_id,
                    beat=is_due,
                    observation=observation,
                    counts=counts.of(group, ()),
                    now_ms=self._cluster.store.now_ms(),
                ),
                by=member_id,
            )
        after = self._cluster.offsets_log(group_id).view.rows.get(group_id)
        if after is not None and member_id in after.members:
            counter = after.members[member_id].heartbeat
            if counter != self._counter:
                self._counter, self._beat_ms = counter, now_ms
        # What was found stays found until the consumer has rejoined. The row is published first: a
        # topic that cannot be looked up does not hide from the member what its group does.
        needs_rejoin = self.needs_rejoin
        self._publish(member, after, needs_rejoin=needs_rejoin)
        if needs_rejoin or is_rebalancing(group):
            return
        if self._is_subscription_changed(member, now_ms) or self._is_assignment_outdated(
            group, counts, now_ms
        ):
            self._publish(member, after, needs_rejoin=True)

    def say_retried(self, error: TxnLogError) -> None:
        """Say that a heartbeat has failed, and is tried again."""
        settings = self._settings
        say_retried(
            self._cluster,
            settings.group_id,
            f"A heartbeat of {self._member[0]}",
            error,
            until=f"each {settings.heartbeat_interval_ms} ms, until the group expels the member "
            f"after session.timeout.ms={settings.session_timeout_ms}",
        )

    def _publish(
        self, member: _HeartbeatMember, group: Group | None, *, needs_rejoin: bool = False
    ) -> None:
        # If the consumer has rejoined or left in the meantime, this row is outdated.
        if member is self._member:
            self.group = group
            self.needs_rejoin = needs_rejoin

    def _is_beat_due(self, counter: int, now_ms: int) -> bool:
        """Whether to increase the counter: three times per session, a write each (D91).

        A commit may have done so already: observers read only the counter.
        """
        if counter != self._counter:
            return False
        settings = self._settings
        next_ms = now_ms + settings.heartbeat_interval_ms
        return next_ms - self._beat_ms > settings.session_timeout_ms // BEATS_PER_SESSION

    def _is_assignment_outdated(self, group: Group, counts: PartitionCounts, now_ms: int) -> bool:
        """Whether topics have other partitions than those assigned; each topic is a request."""
        count = len({topic for member in group.members.values() for topic in member.topics})
        interval_ms = COUNT_POLLS * poll_interval_ms(
            None, is_remote=self._cluster.store.is_remote, topics=count
        )
        if self._counted_ms is not None and now_ms - self._counted_ms < interval_ms:
            return False
        self._counted_ms = now_ms
        return is_assignment_outdated(group, counts.of(group, ()))

    def _is_subscription_changed(self, member: _HeartbeatMember, now_ms: int) -> bool:
        """Whether the subscription matches other topics than when the consumer joined."""
        age_ms = self._settings.metadata_max_age_ms
        if now_ms - self._resolved_ms < (age_ms if self._is_complete else min(age_ms, AGAIN_MS)):
            return False
        _, topics, subscription = member
        found, failed = resolve(self._cluster, subscription, topics)
        self._resolved_ms = now_ms
        if member is self._member:
            self._is_complete = failed is None
        return found != topics


def say_retried(
    cluster: Cluster, group_id: str, what: str, error: TxnLogError, *, until: str
) -> None:
    """Say that a write to the group's row has failed; the next one to its table says that it works
    again.
    """
    table = offsets_table(cluster.offsets_shard_of(group_id))
    cluster.store.retries.failed(table, f"{what} in group {group_id!r}", error, until=until)


def leave(cluster: Cluster, group_id: str, member_id: str) -> None:
    """Remove a member from its group, if it is a member."""
    counts = PartitionCounts(cluster)
    cluster.groups.change_members(
        group_id,
        lambda group: prepare_leave(
            group,
            member_id=member_id,
            counts=counts.of(group, ()),
            now_ms=cluster.store.now_ms(),
        ),
        by=member_id,
    )
