"""Range and sticky assignment: complete, balanced, and without unnecessary moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.errors import InconsistentGroupProtocolError
from txnlog.protocol.assignors import (
    ASSIGNORS,
    assign_cooperative,
    assign_range,
    assign_sticky,
    choose_assignor,
)
from txnlog.protocol.group_metadata import Assignment

TOPICS = ("a", "b", "c")
MEMBERS = ("m0", "m1", "m2", "m3", "m4")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), min_size=1)
subscriptions = st.dictionaries(
    st.sampled_from(MEMBERS),
    st.sets(st.sampled_from(TOPICS), min_size=1).map(tuple),
    min_size=1,
)


def owners(assignment: Assignment) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for member, topics in assignment.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                found.setdefault((topic, partition), []).append(member)
    return found


def loads(assignment: Assignment) -> dict[str, int]:
    return {m: sum(len(p) for p in topics.values()) for m, topics in assignment.items()}


def test_range_assigns_contiguous_ranges_and_the_rest_to_the_first_members() -> None:
    """Joins of two topics by partition need equal partition numbers in one member (R48)."""
    found = assign_range({"x": ("a", "b"), "y": ("a", "b"), "z": ("b",)}, {"a": 5, "b": 4}, {})
    assert found == {
        "x": {"a": (0, 1, 2), "b": (0, 1)},
        "y": {"a": (3, 4), "b": (2,)},
        "z": {"b": (3,)},
    }


def test_sticky_moves_only_the_partitions_of_a_new_member() -> None:
    """A member that keeps a partition keeps its position and its caches (R48)."""
    first = assign_sticky({"x": ("a",), "y": ("a",)}, {"a": 6}, {})
    second = assign_sticky({"x": ("a",), "y": ("a",), "z": ("a",)}, {"a": 6}, first)
    for member in ("x", "y"):
        assert set(second[member]["a"]) < set(first[member]["a"])
    assert loads(second) == {"x": 2, "y": 2, "z": 2}
    third = assign_sticky({"x": ("a",), "z": ("a",)}, {"a": 6}, second)
    for member in ("x", "z"):
        assert set(second[member]["a"]) < set(third[member]["a"])


@pytest.mark.parametrize("name", ["range", "sticky"])
@given(members=subscriptions, counts=counts, data=st.data())
def test_every_subscribed_partition_has_one_subscribed_owner(
    name: str, members: dict[str, tuple[str, ...]], counts: dict[str, int], data: st.DataObject
) -> None:
    """For any former assignment: not two owners, and not none (R48)."""
    former = data.draw(formers())
    found = ASSIGNORS[name](members, counts, former)
    assert set(found) == set(members)
    read = {topic for topics in members.values() for topic in topics}
    wanted = {(t, p) for t in read for p in range(counts.get(t, 0))}
    held = owners(found)
    assert set(held) == wanted
    for (topic, _), names in held.items():
        assert len(names) == 1
        assert topic in members[names[0]]


def formers() -> st.SearchStrategy[Assignment]:
    """Any assignment, also invalid ones: members that left, partitions that do not exist."""
    numbers = st.sets(st.integers(0, 9), max_size=5).map(lambda s: tuple(sorted(s)))
    topics = st.dictionaries(st.sampled_from((*TOPICS, "gone")), numbers)
    return st.dictionaries(st.sampled_from((*MEMBERS, "left")), topics)


@given(members=subscriptions, counts=counts, former=formers())
def test_sticky_is_as_balanced_as_subscriptions_allow(
    members: dict[str, tuple[str, ...]], counts: dict[str, int], former: Assignment
) -> None:
    """No member has two partitions more than another that could take one (R48)."""
    found = assign_sticky(members, counts, former)
    count = loads(found)
    for giver, topics in found.items():
        for taker in members:
            movable = any(topics.get(topic) for topic in members[taker])
            assert not (movable and count[giver] >= count[taker] + 2)


@given(
    before=st.sets(st.sampled_from(MEMBERS), min_size=1),
    after=st.sets(st.sampled_from(MEMBERS), min_size=1),
    partitions=st.integers(0, 23),
)
def test_sticky_moves_no_more_than_the_balance_needs(
    before: set[str], after: set[str], partitions: int
) -> None:
    """Every moved partition is read again from its last commit (R48)."""
    counts = {"a": partitions}
    first = assign_sticky(dict.fromkeys(before, ("a",)), counts, {})
    second = assign_sticky(dict.fromkeys(after, ("a",)), counts, first)
    kept = sum(
        len(set(first[m].get("a", ())) & set(second[m].get("a", ()))) for m in before & after
    )
    each, more = divmod(partitions, len(after))
    had = sorted((len(first[m].get("a", ())) for m in before & after), reverse=True)
    room = [each + (number < more) for number in range(len(had))]
    assert kept == sum(map(min, had, room))


@given(members=subscriptions, counts=counts)
def test_sticky_changes_nothing_without_a_change_of_members(
    members: dict[str, tuple[str, ...]], counts: dict[str, int]
) -> None:
    """A rebalance without a cause must not move partitions (R48)."""
    first = assign_sticky(members, counts, {})
    assert assign_sticky(members, counts, first) == first


# --- cooperative-sticky ---------------------------------------------------------------------------


def rounds_of(
    members: dict[str, tuple[str, ...]], counts: dict[str, int], former: Assignment
) -> list[Assignment]:
    """The generations that follow, each after what moves has been revoked, until nothing moves."""
    found = [assign_cooperative(members, counts, former)]
    while len(found) < 10:
        after = assign_cooperative(members, counts, found[-1])
        if after == found[-1]:
            return found
        found.append(after)
    raise AssertionError(f"no end of {found}")


@given(before=subscriptions, members=subscriptions, counts=counts)
def test_cooperative_takes_no_partition_from_who_has_it(
    before: dict[str, tuple[str, ...]],
    members: dict[str, tuple[str, ...]],
    counts: dict[str, int],
) -> None:
    """A partition has a new owner only when the former one does not have it any more (R48)."""
    former = assign_sticky(before, counts, {})
    for found in rounds_of(members, counts, former):
        had = {key: names[0] for key, names in owners(former).items()}
        for (topic, number), names in owners(found).items():
            owner = had.get((topic, number), names[0])
            is_reader = topic in members.get(owner, ())
            assert names == [owner] or not is_reader
        former = found


@given(before=subscriptions, members=subscriptions, counts=counts)
def test_cooperative_ends_balanced_with_every_partition_assigned(
    before: dict[str, tuple[str, ...]],
    members: dict[str, tuple[str, ...]],
    counts: dict[str, int],
) -> None:
    """A group that never came to rest would revoke for ever; a partition left out is not read."""
    last = rounds_of(members, counts, assign_sticky(before, counts, {}))[-1]
    read = {topic for topics in members.values() for topic in topics}
    assert set(owners(last)) == {(t, p) for t in read for p in range(counts.get(t, 0))}
    assert assign_sticky(members, counts, last) == last


def test_cooperative_needs_two_generations_for_a_new_member() -> None:
    """In the first one nobody has what moves; the others keep what they have (R48)."""
    first = {"x": {"a": (0, 1)}, "y": {"a": (2, 3)}}
    members = dict.fromkeys("xyz", ("a",))
    second = assign_cooperative(members, {"a": 4}, first)
    assert second == {"x": {"a": (0, 1)}, "y": {"a": (2,)}, "z": {}}
    third = assign_cooperative(members, {"a": 4}, second)
    assert third == {"x": {"a": (0, 1)}, "y": {"a": (2,)}, "z": {"a": (3,)}}


def test_group_uses_the_common_assignor_with_most_votes() -> None:
    """Two processes that choose differently would give a partition two owners (R48)."""
    both, sticky, other = ("range", "sticky"), ("sticky", "range"), ("sticky",)
    assert choose_assignor({"x": both, "y": both, "z": sticky}) == "range"
    assert choose_assignor({"x": both, "y": both, "z": other}) == "sticky"
    with pytest.raises(InconsistentGroupProtocolError, match="'x': \\('range',\\)"):
        choose_assignor({"x": ("range",), "y": other})
    with pytest.raises(InconsistentGroupProtocolError, match="cooperative-sticky"):
        choose_assignor({"x": ("cooperative-sticky",), "y": other})
    assert set(ASSIGNORS) == {"range", "sticky", "cooperative-sticky"}
