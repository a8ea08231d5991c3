"""Group membership and rebalances, without a broker.

All state is in the group's row, every write is one compare-and-swap, and any member may make any of
these writes. A rebalance follows Kafka's classic protocol:

    1. A member joins, leaves, is expelled or changes its subscription: the row records it.
    2. Each member sees this at its next heartbeat, revokes its partitions (commits, calls
       on_revoke) and rejoins: `Member.joined` is the generation it has revoked.
    3. The write that records the last revocation begins generation + 1 with a new assignment.

So a member that follows the protocol commits before its partitions are reassigned. One that does
not is expelled, and from then on its commits fail by their generation (R48). Cooperative members
revoke less in step 2, see txnlog.protocol.cooperation. Mirrors the states of
org.apache.kafka.coordinator.group.classic.ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from txnlog.protocol.assignors import ASSIGNORS, Counts, choose_assignor
from txnlog.protocol.cooperation import (
    held_of,
    is_cooperative,
    is_member_of,
    to_revoke,
    without_returns,
)
from txnlog.protocol.group_metadata import Assignment, Group, Member
from txnlog.protocol.groups import OffsetsCommit, check_member
from txnlog.protocol.watching import GAP_INTERVALS_MAX, Watch

BEATS_PER_SESSION = 3
"""How often a live member raises its heartbeat counter in session.timeout.ms, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """How long one process has seen a group unchanged, by its own clock (R34).

    No clocks of two processes are compared. `heartbeats`: member id -> (heartbeat counter, time
    watched at that value); `rebalance`: (generation, time watched in this rebalance).
    """

    heartbeats: Mapping[str, tuple[int, Watch]] = field(default_factory=dict)
    rebalance: tuple[int, Watch] | None = None

    def observe(self, group: Group, *, now_ms: int) -> GroupObservation:
        """The observation after reading the group once more.

        A gap of more than half a session does not count: the observer may have been suspended, and
        the member with it. A member with three heartbeats per session is never expelled for one
        such gap.
        """
        heartbeats = {}
        for member_id, member in group.members.items():
            counter, watch = self.heartbeats.get(member_id, (-1, Watch(now_ms)))
            if counter == member.heartbeat:
                watch = watch.observe(now_ms=now_ms, interval_ms=_interval_ms(member))
            else:
                watch = Watch(now_ms)
            heartbeats[member_id] = (member.heartbeat, watch)
        rebalance = None
        if is_rebalancing(group):
            before = self.rebalance
            watch = Watch(now_ms)
            if before is not None and before[0] == group.generation:
                shortest_ms = min(map(_interval_ms, group.members.values()), default=0)
                watch = before[1].observe(now_ms=now_ms, interval_ms=shortest_ms)
            rebalance = (group.generation, watch)
        return GroupObservation(heartbeats=heartbeats, rebalance=rebalance)

    @classmethod
    def of_silent(cls, group: Group) -> GroupObservation:
        """That of an observer who knows that all members were silent for their sessions."""
        sessions_ms = {name: one.session_timeout_ms for name, one in group.members.items()}
        return cls(
            heartbeats={
                name: (one.heartbeat, Watch(0, watched_ms=sessions_ms[name]))
                for name, one in group.members.items()
            }
        )

    def expired_members(self, group: Group) -> set[str]:
        """Current members past session.timeout.ms, or past the rebalance time-out."""
        expired = set()
        for member_id, member in group.members.items():
            counter, watch = self.heartbeats.get(member_id, (-1, Watch(0)))
            if counter == member.heartbeat and watch.watched_ms >= member.session_timeout_ms:
                expired.add(member_id)
            if self.rebalance is None or member.joined == group.generation:
                continue
            generation, watch = self.rebalance
            is_late = watch.watched_ms >= member.rebalance_timeout_ms
            if generation == group.generation and is_late:
                expired.add(member_id)
        return expired


def _interval_ms(member: Member) -> int:
    """The longest interval between two observations of a member that counts as watched."""
    return member.session_timeout_ms // (2 * GAP_INTERVALS_MAX)


def is_rebalancing(group: Group) -> bool:
    """Whether the members must revoke their assignments and rejoin."""
    if set(group.members) != set(group.assignment):
        return True
    return any(member.joined == group.generation for member in group.members.values())


def is_fenced(group: Group | None, *, member_id: str, instance_id: str) -> bool:
    """Whether a newer consumer with this instance id has replaced a member that has joined."""
    if group is None or not instance_id or member_id in group.members:
        return False
    return any(member.instance_id == instance_id for member in group.members.values())


class MembershipStatus(Enum):
    """What a member with an assignment must do."""

    STABLE = "continue"
    REBALANCING = "revoke the assignment and rejoin"
    LOST = "the partitions are reassigned: discard fetched records and rejoin"


def membership_status(group: Group | None, *, member_id: str, generation: int) -> MembershipStatus:
    """The status of a member with an assignment of `generation`, by the newest row it has read.

    A row of an older generation is outdated: the member's assignment is from a newer row.
    """
    if group is None or group.generation < generation:
        return MembershipStatus.STABLE
    if group.generation > generation or member_id not in group.members:
        return MembershipStatus.LOST
    return MembershipStatus.REBALANCING if is_rebalancing(group) else MembershipStatus.STABLE


def is_assignment_outdated(group: Group, counts: Counts) -> bool:
    """Whether the assigned partitions differ from those of the subscribed topics.

    What a member has still to revoke counts as assigned: then it rejoins.
    """
    wanted = {
        (topic, partition)
        for member in group.members.values()
        for topic in member.topics
        for partition in range(counts.get(topic, 0))
    }
    found = [*group.assignment.values(), *(one.revoking for one in group.members.values())]
    assigned = {
        (topic, partition)
        for topics in found
        for topic, partitions in topics.items()
        for partition in partitions
    }
    return wanted != assigned


def assigned_count(group: Group | None, topic: str) -> int:
    """How many partitions a topic has at least, by the group's assignment."""
    assignment = {} if group is None else group.assignment
    found = (topics.get(topic, ()) for topics in assignment.values())
    return 1 + max((number for numbers in found for number in numbers), default=-1)


def prepare_join(
    group: Group | None,
    *,
    group_id: str,
    member_id: str,
    member: Member,
    released: int,
    counts: Counts,
    now_ms: int,
    former: str = "",
) -> OffsetsCommit | None:
    """Join or rejoin; all generations up to `released` are revoked (-1: none).

    `former` is the id of this member before it lost its partitions, which the same write removes.
    `now_ms`, by the store's clock, is where the heartbeats of a new member begin, to differ from
    those of an earlier one.
    A restarted consumer with the `instance_id` of a member replaces it: in a stable group it gets
    that member's assignment under the same generation, without a rebalance (KIP-345).
    None when that is written already. Raises InconsistentGroupProtocolError.
    """
    row = group if group is not None else Group(group_id=group_id)
    if former in row.members:
        left = {name: m for name, m in row.members.items() if name != former}
        row = replace(row, members=left)
    restarted = _static_member_id(row, member)
    if restarted is not None and restarted != member_id:
        return _replace(row, restarted, member_id, member, counts, now_ms)
    current = row.members.get(member_id)
    if current is not None and current.topics == member.topics:
        is_waiting = current.joined == row.generation
        if is_waiting or is_member_of(row, member_id, after=released):
            return None
    # Not from 0: the process that expelled this member may have seen that, and would do it again.
    beats = now_ms if current is None else current.heartbeat + 1
    revoking = {} if current is None else current.revoking
    joined = replace(
        member, heartbeat=beats, heartbeat_ms=now_ms, joined=row.generation, revoking=revoking
    )
    members = {**row.members, member_id: joined}
    choose_assignor({name: m.assignors for name, m in members.items()})
    return _write("JOIN GROUP", replace(row, members=members), counts, now_ms)


def prepare_leave(
    group: Group | None, *, member_id: str, counts: Counts, now_ms: int
) -> OffsetsCommit | None:
    """Leave the group; None if it is not a member."""
    if group is None or member_id not in group.members:
        return None
    members = {name: m for name, m in group.members.items() if name != member_id}
    return _write("LEAVE GROUP", replace(group, members=members), counts, now_ms)


def prepare_heartbeat(
    group: Group | None,
    *,
    group_id: str,
    member_id: str,
    beat: bool,
    observation: GroupObservation,
    counts: Counts,
    now_ms: int,
) -> OffsetsCommit | None:
    """Increment the heartbeat counter if `beat`, and expel members that `observation` has expired.

    `now_ms` is by the store's clock.
    Raises UnknownMemberIdError if this member was expelled or has left.
    """
    generation = 0 if group is None else group.generation
    row = check_member(group, group_id=group_id, generation=generation, member_id=member_id)
    expired = observation.expired_members(row) - {member_id}
    if not beat and not expired:
        return None
    members = {name: m for name, m in row.members.items() if name not in expired}
    own = members[member_id]
    members[member_id] = replace(own, heartbeat=own.heartbeat + 1, heartbeat_ms=now_ms)
    put = replace(row, members=members)
    if expired:
        return _write("EXPEL MEMBERS", put, counts, now_ms)
    return OffsetsCommit(operation="HEARTBEAT", groups=(replace(put, updated_ms=now_ms),))


def _static_member_id(group: Group, member: Member) -> str | None:
    """The id of the member with the same instance id."""
    for member_id, other in group.members.items():
        if member.instance_id and other.instance_id == member.instance_id:
            return member_id
    return None


def _replace(
    row: Group, former: str, member_id: str, member: Member, counts: Counts, now_ms: int
) -> OffsetsCommit:
    replaced = row.members[former]
    is_stable = not is_rebalancing(row) and replaced.topics == member.topics
    joined = replaced.joined if is_stable else row.generation
    members = {name: m for name, m in row.members.items() if name != former}
    beats, revoking = replaced.heartbeat + 1, replaced.revoking if is_stable else {}
    members[member_id] = replace(
        member, heartbeat=beats, heartbeat_ms=now_ms, joined=joined, revoking=revoking
    )
    choose_assignor({name: m.assignors for name, m in members.items()})
    assignment = dict(row.assignment)
    if former in assignment:
        assignment[member_id] = assignment.pop(former)
    put = replace(row, members=members, assignment=assignment)
    return _write("JOIN GROUP", put, counts, now_ms)


def _write(operation: str, row: Group, counts: Counts, now_ms: int) -> OffsetsCommit:
    """The row; with generation + 1 and a new assignment when all members have revoked theirs."""
    if all(member.joined == row.generation for member in row.members.values()):
        row = _begin(row, counts)
    return OffsetsCommit(operation=operation, groups=(replace(row, updated_ms=now_ms),))


def _begin(row: Group, counts: Counts) -> Group:
    """Generation + 1, of the members that there are."""
    begun = replace(row, generation=row.generation + 1, assignment={})
    if not row.members:
        return begun
    name = choose_assignor({member_id: m.assignors for member_id, m in row.members.items()})
    topics = {member_id: m.topics for member_id, m in row.members.items()}
    assigned = ASSIGNORS[name](topics, counts, row.assignment)
    left: Assignment = {}
    if is_cooperative({name}):
        revoked = {member_id: member.revoking for member_id, member in row.members.items()}
        assigned = without_returns(assigned, revoked)
        left = to_revoke(held_of(topics, row.assignment), assigned)
    return replace(
        begun,
        assignment={member_id: dict(found) for member_id, found in assigned.items()},
        members={
            member_id: replace(member, revoking=dict(left.get(member_id, {})))
            for member_id, member in row.members.items()
        },
    )
