"""Cooperative rebalances (KIP-429, D126): who owns a partition while a group rebalances.

In a group of cooperative members a rebalance revokes only what moves, in two generations:

    1. A member that sees a rebalance rejoins with all it has: it reads on, and commits.
    2. The last one to rejoin begins generation n + 1. A partition that moves is assigned to nobody
       in it: it is among those that its former owner is `revoking`.
    3. That one sees it, revokes the partition and rejoins, which is another rebalance.
    4. Generation n + 2 assigns it to its new owner.

No n + 2 begins before all have rejoined in n + 1, so a member is at most one generation late. A
generation that anything else began, or that began without the member, leaves it nothing.

Where the new owner has gone before n + 2, the former one gets the partition back in n + 3: in n + 2
what it has sent under n + 1 still counts, and it would read the same records again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from txnlog.protocol.group_metadata import Assignment, Group

COOPERATIVE = "cooperative-sticky"

Partitions = Mapping[str, Collection[int]]


def is_cooperative(assignors: Collection[str]) -> bool:
    """Whether a member with these assignors keeps its partitions during a rebalance."""
    return COOPERATIVE in assignors


def is_member_of(group: Group | None, member_id: str, *, after: int) -> bool:
    """Whether the member has an assignment in a generation later than `after`."""
    if group is None or group.generation <= after or member_id not in group.assignment:
        return False
    member = group.members.get(member_id)
    return member is not None and member.joined < group.generation


def keeps_partitions(group: Group | None, *, member_id: str, generation: int) -> bool:
    """Whether no other member can have got what this one was assigned in `generation`.

    A row of an older generation is outdated. A member that was expelled has lost all: joined again
    under its id it could get back at once what it has just revoked, and its commits would count. To
    be asked of each row that a member decides to rejoin by: later ones do not show what happened
    before.
    """
    if group is None or group.generation < generation:
        return True
    if group.generation == generation:
        return member_id in group.assignment and member_id in group.members
    is_next = group.generation == generation + 1
    return is_next and is_member_of(group, member_id, after=generation)


def current_generation(group: Group | None, *, member_id: str, generation: int) -> int:
    """The generation that a request of this one counts under.

    A cooperative member that keeps its partitions may not have seen yet that the next one began; or
    it has rejoined since, and the request is of before.
    """
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None or not is_cooperative(member.assignors):
        return generation
    is_next = group.generation == generation + 1
    return group.generation if is_next and member_id in group.assignment else generation


class Taken(NamedTuple):
    """A partition, and the member that it is assigned to."""

    topic: str
    partition: int
    member_id: str


def find_taken(group: Group, *, member_id: str, partitions: Partitions) -> Taken | None:
    """One of these partitions that another member has; only for a cooperative member.

    It adopts generations with what it keeps, so its generation alone proves nothing about what it
    has revoked.
    """
    member = group.members.get(member_id)
    if member is None or not is_cooperative(member.assignors):
        return None
    for other_id, topics in group.assignment.items():
        if other_id == member_id:
            continue
        # One that was expelled since has read them, and may have committed.
        other = group.members.get(other_id)
        revoking: Partitions = {} if other is None else other.revoking
        for topic, numbers in partitions.items():
            its = {*topics.get(topic, ()), *revoking.get(topic, ())}
            for partition in sorted(its.intersection(numbers)):
                return Taken(topic, partition, other_id)
    return None


def held_of(members: Mapping[str, Collection[str]], former: Assignment) -> Assignment:
    """What members that have rejoined hold: what they had, of the topics that they still want.

    `members`: member id -> topics; a member revokes those of other topics before it rejoins.
    """
    return {
        member_id: {t: numbers for t, numbers in former.get(member_id, {}).items() if t in topics}
        for member_id, topics in members.items()
    }


def to_revoke(held: Assignment, assigned: Assignment) -> Assignment:
    """What each member holds, and is no longer assigned."""
    found = {}
    for member_id, topics in held.items():
        mine = assigned.get(member_id, {})
        left = {
            t: tuple(n for n in numbers if n not in mine.get(t, ()))
            for t, numbers in topics.items()
        }
        found[member_id] = {topic: numbers for topic, numbers in left.items() if numbers}
    return found


def without_moves(wanted: Assignment, held: Assignment) -> Assignment:
    """What of the assignment `wanted` may begin at once.

    A partition that another member holds waits until that one has revoked it.
    """
    owners = {
        (topic, partition): member_id
        for member_id, topics in held.items()
        for topic, partitions in topics.items()
        for partition in partitions
    }
    found = {}
    for member_id, topics in wanted.items():
        free = {
            topic: tuple(n for n in numbers if owners.get((topic, n), member_id) == member_id)
            for topic, numbers in topics.items()
        }
        found[member_id] = {topic: numbers for topic, numbers in free.items() if numbers}
    return found


def without_returns(assigned: Assignment, revoked: Assignment) -> Assignment:
    """Without the partitions that each member has just revoked: they have no owner for now."""
    return {
        member_id: {
            topic: left
            for topic, numbers in topics.items()
            if (left := _without(numbers, revoked.get(member_id, {}).get(topic, ())))
        }
        for member_id, topics in assigned.items()
    }


def _without(numbers: Collection[int], gone: Collection[int]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number not in gone)


Key = tuple[str, int]


class Handover(NamedTuple):
    """What the assignment of a new generation changes for a member."""

    revoked: tuple[Key, ...]
    added: tuple[Key, ...]


def hand_over(held: Collection[Key], assigned: Partitions) -> Handover:
    """What a member that holds partitions must revoke, and then add."""
    wanted = {(topic, number) for topic, numbers in assigned.items() for number in numbers}
    return Handover(tuple(sorted(set(held) - wanted)), tuple(sorted(wanted - set(held))))
