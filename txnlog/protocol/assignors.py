"""Partition assignment: the range, sticky and cooperative-sticky assignors, as in Kafka.

Pure and deterministic: the same members, topics and previous assignment give the same result in
every process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from txnlog.errors import InconsistentGroupProtocolError
from txnlog.protocol.cooperation import COOPERATIVE, held_of, is_cooperative, without_moves
from txnlog.protocol.group_metadata import Assignment

Subscriptions = Mapping[str, Sequence[str]]
"""Member id -> the topics it subscribes to."""

Counts = Mapping[str, int]
"""Topic -> its number of partitions; topics that do not exist are left out or have 0."""

_Partition = tuple[str, int]


def assign_range(members: Subscriptions, counts: Counts, former: Assignment) -> Assignment:
    """Each member gets a contiguous range per topic; the first members get one partition more.

    If all members read two topics, partition n of both goes to the same member.
    """
    owned: dict[str, list[_Partition]] = {member: [] for member in members}
    for topic, readers in _readers(members, counts).items():
        each, more = divmod(counts[topic], len(readers))
        start = 0
        for number, member in enumerate(readers):
            end = start + each + (number < more)
            owned[member] += [(topic, partition) for partition in range(start, end)]
            start = end
    return _by_topic(owned)


def assign_sticky(members: Subscriptions, counts: Counts, former: Assignment) -> Assignment:
    """As balanced as the subscriptions allow, with as few moves from `former` as that allows.

    Balanced: no member has two partitions more than another that could take one of them.
    """
    readers = _readers(members, counts)
    owned, free = _kept(members, readers, counts, former)
    for topic, partition in sorted(free, key=lambda p: (len(readers[p[0]]), p)):
        taker = min(readers[topic], key=lambda member: (len(owned[member]), member))
        owned[taker].append((topic, partition))
    kept = {
        (topic, partition)
        for member, topics in former.items()
        for topic, partitions in topics.items()
        for partition in partitions
        if (topic, partition) in owned.get(member, ())
    }
    # Terminates: every move decreases the sum of the squared loads.
    while (move := _next_move(owned, members, kept)) is not None:
        giver, taker, moved = move
        owned[giver].remove(moved)
        owned[taker].append(moved)
        kept.discard(moved)
    return _by_topic(owned)


def assign_cooperative(members: Subscriptions, counts: Counts, former: Assignment) -> Assignment:
    """As the sticky one, but what another member has is assigned to nobody, until it is revoked.

    A member has in `former` what it has not revoked, of the topics that it still subscribes to.
    """
    return without_moves(assign_sticky(members, counts, former), held_of(members, former))


ASSIGNORS: Mapping[str, Callable[[Subscriptions, Counts, Assignment], Assignment]] = {
    "range": assign_range,
    "sticky": assign_sticky,
    COOPERATIVE: assign_cooperative,
}


def choose_assignor(supported: Mapping[str, Sequence[str]]) -> str:
    """The assignor with most first votes among those that all members support.

    `supported`: member id -> names in order of preference. Raises InconsistentGroupProtocolError.
    """
    common = set.intersection(*(set(names) for names in supported.values())) & set(ASSIGNORS)
    if not common:
        strategies = {member: tuple(names) for member, names in sorted(supported.items())}
        mixed = ""
        if any(is_cooperative(names) for names in supported.values()):
            mixed = f" To change a group to or from {COOPERATIVE}, stop all of its members first."
        raise InconsistentGroupProtocolError(
            f"The group's members support no common assignor: {strategies}. Give all of them the "
            f"same partition.assignment.strategy, of {', '.join(ASSIGNORS)}.{mixed}",
        )
    votes = Counter(next(n for n in names if n in common) for names in supported.values())
    return min(votes, key=lambda name: (-votes[name], name))


def _readers(members: Subscriptions, counts: Counts) -> dict[str, list[str]]:
    """Topic -> the members that read it, for existing topics with a reader."""
    found: dict[str, list[str]] = {}
    for member in sorted(members):
        for topic in set(members[member]):
            if counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def _kept(
    members: Subscriptions,
    readers: Mapping[str, Sequence[str]],
    counts: Counts,
    former: Assignment,
) -> tuple[dict[str, list[_Partition]], set[_Partition]]:
    """The partitions each member can keep, and the unowned ones."""
    free = {(topic, partition) for topic in readers for partition in range(counts[topic])}
    owned: dict[str, list[_Partition]] = {member: [] for member in sorted(members)}
    for member in owned:
        for topic, partitions in former.get(member, {}).items():
            if topic not in members[member]:
                continue
            for partition in partitions:
                if (topic, partition) in free:
                    free.remove((topic, partition))
                    owned[member].append((topic, partition))
    return owned, free


def _next_move(
    owned: Mapping[str, Sequence[_Partition]], members: Subscriptions, kept: set[_Partition]
) -> tuple[str, str, _Partition] | None:
    """(giver, taker, partition) from the member with most to give; None when balanced."""
    by_load = sorted(owned, key=lambda member: (len(owned[member]), member))
    for giver in reversed(by_load):
        for taker in by_load:
            if len(owned[taker]) + 2 > len(owned[giver]):
                break
            able = [p for p in owned[giver] if p[0] in members[taker]]
            if able:
                return giver, taker, max(able, key=lambda p: (p not in kept, p))
    return None


def _by_topic(owned: Mapping[str, Sequence[_Partition]]) -> Assignment:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for member, partitions in sorted(owned.items()):
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            topics.setdefault(topic, []).append(partition)
        found[member] = {topic: tuple(numbers) for topic, numbers in topics.items()}
    return found
