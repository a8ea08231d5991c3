"""Who is in a group, and when a new generation begins: decisions without a broker.

All state is in the group's row, every write is one compare-and-swap, and any member may do any of
it. A rebalance goes as in Kafka's classic protocol:

    1. Somebody joins, leaves, is expelled or wants other topics: the row says so.
    2. Each member sees it at its next heartbeat, lets go of its partitions (commits, calls
       on_revoke) and joins again: `Member.joined` is the generation it has let go of.
    3. The write after which all have let go also begins generation + 1 with a new assignment.

So whoever does what it should commits before its partitions are another's; whoever does not is
expelled, and refused from then on by its generation (R48). Mirrors the states of
org.apache.kafka.coordinator.group.classic.ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from txnlog.protocol.assignors import ASSIGNORS, Counts, choose_assignor
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.groups import OffsetsCommit, check_member
from txnlog.protocol.watching import LOOKS_MAX, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What one observer has seen of a group, by its own clock; nobody's clock is compared (R34).

    `heartbeats`: member id -> (counter, how long it was watched at that); `rebalance`:
    (generation, how long it was watched to be ending).
    """

    heartbeats: Mapping[str, tuple[int, Watch]] = field(default_factory=dict)
    rebalance: tuple[int, Watch] | None = None

    def look(self, group: Group, *, now_ms: int) -> Sightings:
        """The sightings after another look.

        A gap of more than half a session is not watched time: the observer may have been suspended,
        and the member with it. A member that beats three times in a session is never expelled for
        one such gap.
        """
        heartbeats = {}
        for member_id, member in group.members.items():
            counter, watch = self.heartbeats.get(member_id, (-1, Watch(now_ms)))
            if counter == member.heartbeat:
                watch = watch.look(now_ms=now_ms, interval_ms=_interval_ms(member))
            else:
                watch = Watch(now_ms)
            heartbeats[member_id] = (member.heartbeat, watch)
        rebalance = None
        if is_rebalancing(group):
            known = self.rebalance
            watch = Watch(now_ms)
            if known is not None and known[0] == group.generation:
                shortest_ms = min(map(_interval_ms, group.members.values()), default=0)
                watch = known[1].look(now_ms=now_ms, interval_ms=shortest_ms)
            rebalance = (group.generation, watch)
        return Sightings(heartbeats=heartbeats, rebalance=rebalance)

    def overdue(self, group: Group) -> set[str]:
        """Members of the group, as it is now, that were silent or let the others wait too long."""
        gone = set()
        for member_id, member in group.members.items():
            counter, watch = self.heartbeats.get(member_id, (-1, Watch(0)))
            if counter == member.heartbeat and watch.watched_ms >= member.session_timeout_ms:
                gone.add(member_id)
            if self.rebalance is None or member.joined == group.generation:
                continue
            generation, watch = self.rebalance
            is_late = watch.watched_ms >= member.rebalance_timeout_ms
            if generation == group.generation and is_late:
                gone.add(member_id)
        return gone


def _interval_ms(member: Member) -> int:
    """How often a member must be looked at for the looks to count."""
    return member.session_timeout_ms // (2 * LOOKS_MAX)


def is_rebalancing(group: Group) -> bool:
    """Whether members should let go of what they have, and join again."""
    if set(group.members) != set(group.assignment):
        return True
    return any(member.joined == group.generation for member in group.members.values())


def is_fenced(group: Group | None, *, member_id: str, instance_id: str) -> bool:
    """Whether a newer consumer has taken the place of this one, which has joined before."""
    if group is None or not instance_id or member_id in group.members:
        return False
    return any(member.instance_id == instance_id for member in group.members.values())


class Standing(Enum):
    """What a member that holds the assignment of a generation should do."""

    STABLE = "go on"
    REBALANCING = "let go of it and join again"
    LOST = "it is another's by now: throw away what was read, and join again"


def standing(group: Group | None, *, member_id: str, generation: int) -> Standing:
    """How a member stands that holds a part of `generation`, by the newest row it knows.

    A row of an older generation says nothing: the member was given its part by a newer one.
    """
    if group is None or group.generation < generation:
        return Standing.STABLE
    if group.generation > generation or member_id not in group.members:
        return Standing.LOST
    return Standing.REBALANCING if is_rebalancing(group) else Standing.STABLE


def is_member_of(group: Group | None, member_id: str, *, after: int) -> bool:
    """Whether the member has its part in a generation later than `after`."""
    if group is None or group.generation <= after or member_id not in group.assignment:
        return False
    member = group.members.get(member_id)
    return member is not None and member.joined < group.generation


def uncovered(group: Group, counts: Counts) -> bool:
    """Whether the assignment misses a partition of a topic that is read, or has one too many."""
    wanted = {
        (topic, partition)
        for member in group.members.values()
        for topic in member.topics
        for partition in range(counts.get(topic, 0))
    }
    assigned = {
        (topic, partition)
        for topics in group.assignment.values()
        for topic, partitions in topics.items()
        for partition in partitions
    }
    return wanted != assigned


def prepare_join(
    group: Group | None,
    *,
    group_id: str,
    member_id: str,
    member: Member,
    released: int,
    counts: Counts,
    now_ms: int,
) -> OffsetsCommit | None:
    """Join, or join again, having let go of everything up to generation `released` (-1: nothing).

    A restarted consumer with the `instance_id` of a member takes its place: in a stable group it
    gets its part under the same generation, and the others notice nothing (KIP-345).
    None when that is written already. Raises InconsistentGroupProtocolError.
    """
    row = group if group is not None else Group(group_id=group_id)
    former = _instance(row, member)
    if former is not None and former != member_id:
        return _replace(row, former, member_id, member, counts, now_ms)
    known = row.members.get(member_id)
    if known is not None and known.topics == member.topics:
        waits = known.joined == row.generation
        if waits or is_member_of(row, member_id, after=released):
            return None
    beats = 0 if known is None else known.heartbeat + 1
    joined = replace(member, heartbeat=beats, joined=row.generation)
    members = {**row.members, member_id: joined}
    choose_assignor({name: m.assignors for name, m in members.items()})
    return _write("JOIN GROUP", replace(row, members=members), counts, now_ms)


def prepare_leave(
    group: Group | None, *, member_id: str, counts: Counts, now_ms: int
) -> OffsetsCommit | None:
    """Leave; None when it is no member."""
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
    sightings: Sightings,
    counts: Counts,
    now_ms: int,
) -> OffsetsCommit | None:
    """A sign of life, if `beat`, and the expulsion of those whom `sightings` says are due.

    Raises UnknownMemberIdError for somebody who has been expelled, or has left.
    """
    generation = 0 if group is None else group.generation
    row = check_member(group, group_id=group_id, generation=generation, member_id=member_id)
    gone = sightings.overdue(row) - {member_id}
    if not beat and not gone:
        return None
    members = {name: m for name, m in row.members.items() if name not in gone}
    mine = members[member_id]
    members[member_id] = replace(mine, heartbeat=mine.heartbeat + 1)
    put = replace(row, members=members)
    if gone:
        return _write("EXPEL MEMBERS", put, counts, now_ms)
    return OffsetsCommit(operation="HEARTBEAT", groups=(replace(put, updated_ms=now_ms),))


def _instance(group: Group, member: Member) -> str | None:
    """The id of the member with this one's instance id."""
    for member_id, known in group.members.items():
        if member.instance_id and known.instance_id == member.instance_id:
            return member_id
    return None


def _replace(
    row: Group, former: str, member_id: str, member: Member, counts: Counts, now_ms: int
) -> OffsetsCommit:
    known = row.members[former]
    is_stable = not is_rebalancing(row) and known.topics == member.topics
    joined = known.joined if is_stable else row.generation
    heir = replace(member, heartbeat=known.heartbeat + 1, joined=joined)
    members = {name: m for name, m in row.members.items() if name != former}
    members[member_id] = heir
    choose_assignor({name: m.assignors for name, m in members.items()})
    assignment = dict(row.assignment)
    if former in assignment:
        assignment[member_id] = assignment.pop(former)
    put = replace(row, members=members, assignment=assignment)
    return _write("JOIN GROUP", put, counts, now_ms)


def _write(operation: str, row: Group, counts: Counts, now_ms: int) -> OffsetsCommit:
    """The row; with generation + 1 and a new assignment when all members have let go."""
    if all(member.joined == row.generation for member in row.members.values()):
        row = replace(row, generation=row.generation + 1, assignment=_assign(row, counts))
    return OffsetsCommit(operation=operation, groups=(replace(row, updated_ms=now_ms),))


def _assign(row: Group, counts: Counts) -> dict[str, dict[str, tuple[int, ...]]]:
    if not row.members:
        return {}
    name = choose_assignor({member_id: m.assignors for member_id, m in row.members.items()})
    topics = {member_id: m.topics for member_id, m in row.members.items()}
    assigned = ASSIGNORS[name](topics, counts, row.assignment)
    return {member_id: dict(found) for member_id, found in assigned.items()}
