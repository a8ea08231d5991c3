"""partition.assignment.strategy=cooperative-sticky: a rebalance revokes only what moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.consumer.records import (
    Told,
    at,
    beat,
    committed,
    group_row,
    member,
    parts,
    put,
    read,
    turn,
    world,
)
from tests.world import process
from txnlog.admin.topics import create_partitions
from txnlog.consumer import Consumer
from txnlog.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
)
from txnlog.messages import TopicPartition
from txnlog.testing.faults import SharedMemory

COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


def cooperative(shared: SharedMemory, topics: Sequence[str] = ("t",), **config: Any) -> Consumer:
    return member(shared, topics, **COOPERATIVE, **config)


def filled(partitions: int = 4, records: int = 3) -> SharedMemory:
    """Topic t with some records in each partition, "<partition>.<number>"."""
    shared = world(partitions)
    for number in range(partitions):
        put(
            process(shared),
            *[f"{number}.{n}".encode() for n in range(records)],
            partition=number,
        )
    return shared


def taken(*calls: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
    return list(calls)


# --- Who reads what -------------------------------------------------------------------------------


def test_new_member_gets_what_the_others_revoke_and_nothing_else_is_revoked() -> None:
    shared = filled()
    told, told_other = Told(), Told()
    first = cooperative(shared, **told.callbacks())
    turn(shared, first)
    second = cooperative(shared, **told_other.callbacks())
    turn(shared, first, second)
    assert (parts(first), parts(second)) == ([0, 1], [2, 3])
    assert told.calls == [
        ("on_assign", [0, 1, 2, 3]),
        ("on_revoke", [2, 3]),
        ("on_assign", []),
        ("on_assign", []),
    ]
    assert told_other.calls == [("on_assign", []), ("on_assign", [2, 3])]
    row = group_row(shared)
    assert row.generation == 3
    assert not any(one.revoking for one in row.members.values())


def test_kept_partitions_keep_their_position_and_what_was_fetched() -> None:
    """Also without a commit: nothing is read twice, or asked of the store again."""
    shared = filled()
    first = cooperative(shared, enable_auto_commit=False)
    before = [first.poll(0) for _ in range(2)]
    assert all(message is not None for message in before)
    reader = first._consumption().readers["t", 0]
    position = at(first)
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert parts(first) == [0, 1]
    assert first._consumption().readers["t", 0] is reader
    assert at(first) == position
    values = [m.value() for m in before if m is not None] + read(first)
    kept = sorted(v for v in values if v is not None and v[:1] in (b"0", b"1"))
    assert kept == sorted(f"{p}.{n}".encode() for p in (0, 1) for n in range(3))


def test_member_reads_on_and_commits_while_its_group_rebalances() -> None:
    """One that does not rejoin holds up the others, and takes nothing from them."""
    shared = filled()
    first, slow = cooperative(shared), cooperative(shared)
    turn(shared, first, slow)
    held = parts(first)
    read(first)
    third = cooperative(shared)
    third.poll(0)
    beat(first)
    first._consumption().maintain()
    row = group_row(shared)
    assert row.members[first.memberid()].joined == row.generation
    for number in held:
        put(process(shared), b"new", partition=number)
    assert read(first) == [b"new"] * 2
    first.commit(asynchronous=False)
    assert [committed(first, number) for number in held] == [4, 4]
    assert first.consumer_group_metadata().generation == row.generation
    assert parts(first) == held


def test_commit_before_the_member_has_seen_its_generation_is_accepted() -> None:
    """The last one to rejoin began it; this one's next poll may be far away."""
    shared = filled()
    first, second = cooperative(shared), cooperative(shared)
    turn(shared, first, second)
    third = cooperative(shared)
    third.poll(0)
    for one in (first, second):
        beat(one)
        one._consumption().maintain()
    assert group_row(shared).generation == first.consumer_group_metadata().generation + 1
    held = parts(first)
    values = read(first)
    assert len(values) == 6
    first.commit(asynchronous=False)
    assert [committed(first, number) for number in held] == [3, 3]
    turn(shared, first, second, third)
    assert sorted(parts(first) + parts(second) + parts(third)) == [0, 1, 2, 3]


def test_revoked_partitions_are_committed_before_they_move() -> None:
    shared = filled()
    first = cooperative(shared)
    assert len(read(first)) == 12
    second = cooperative(shared)
    turn(shared, first, second)
    assert parts(second) == [2, 3]
    assert read(second) == []
    assert [committed(second, number) for number in (2, 3)] == [3, 3]


def test_on_revoke_can_commit_what_moves() -> None:
    """As an application without automatic commits does it (R48)."""
    shared = filled()
    found: list[list[int]] = []

    def on_revoke(one: Consumer, partitions: list[TopicPartition]) -> None:
        found.append([p.offset for p in one.position(partitions)])
        one.commit(offsets=one.position(partitions), asynchronous=False)

    first = cooperative(shared, enable_auto_commit=False, on_revoke=on_revoke)
    read(first)
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert found == [[3, 3]]
    # With the offsets go the places where it started in its other partitions (D135).
    assert [committed(second, number) for number in range(4)] == [0, 0, 3, 3]
    assert read(second) == []


def test_member_that_leaves_hands_over_to_who_keeps_the_rest() -> None:
    shared = filled()
    told = Told()
    first, second = cooperative(shared, **told.callbacks()), cooperative(shared)
    turn(shared, first, second)
    told.calls.clear()
    second.close()
    turn(shared, first)
    assert parts(first) == [0, 1, 2, 3]
    assert told.calls == [("on_assign", [2, 3])]


def test_dead_member_is_expelled_and_its_partitions_go_to_the_others() -> None:
    shared = filled()
    told = Told()
    first, dead = cooperative(shared, **told.callbacks()), cooperative(shared)
    turn(shared, first, dead)
    read(dead)
    told.calls.clear()
    turn(shared, first, rounds=20)
    assert parts(first) == [0, 1, 2, 3]
    assert told.calls == [("on_assign", [2, 3])]
    with pytest.raises(IllegalGenerationError):
        dead.commit(asynchronous=False)


def test_member_that_wakes_up_after_its_expulsion_has_lost_everything() -> None:
    shared = filled()
    told = Told()
    first, sleepy = cooperative(shared), cooperative(shared, **told.callbacks())
    turn(shared, first, sleepy)
    turn(shared, first, rounds=20)
    told.calls.clear()
    turn(shared, first, sleepy)
    assert told.calls[0] == ("on_lost", [2, 3])
    assert sorted(parts(first) + parts(sleepy)) == [0, 1, 2, 3]
    assert len(parts(sleepy)) == 2


def test_member_that_slept_while_it_waited_has_lost_everything() -> None:
    """It had rejoined with all it has; the others went on without it, and it rejoins twice."""
    shared = filled()
    told = Told()
    first, sleepy = cooperative(shared), cooperative(shared, **told.callbacks())
    turn(shared, first, sleepy)
    third = cooperative(shared)
    third.poll(0)
    beat(sleepy)
    sleepy._consumption().maintain()
    told.calls.clear()
    for _ in range(20):
        turn(shared, first, third, rounds=1)
    assert sorted(parts(first) + parts(third)) == [0, 1, 2, 3]
    turn(shared, first, third, sleepy, rounds=8)
    assert told.calls[0][0] == "on_lost"
    owned = parts(first) + parts(third) + parts(sleepy)
    assert sorted(owned) == [0, 1, 2, 3]


def test_generation_from_outside_loses_everything() -> None:
    """An offset reset, or a Spark query in the same group (R48)."""
    shared = filled()
    told = Told()
    first = cooperative(shared, **told.callbacks())
    turn(shared, first)
    read(first)
    told.calls.clear()
    process(shared).groups.reset("g", {"t": {0: 1}})
    turn(shared, first)
    assert told.calls == taken(("on_lost", [0, 1, 2, 3]), ("on_assign", [0, 1, 2, 3]))
    assert at(first, 0) == 1


# --- Subscriptions --------------------------------------------------------------------------------


def two_topics() -> SharedMemory:
    shared = world(2)
    process(shared).create_topic("u", partitions=2)
    return shared


def keys(one: Consumer) -> list[str]:
    return [f"{p.topic}{p.partition}" for p in one.assignment()]


def test_new_subscription_revokes_only_topics_that_it_has_not() -> None:
    shared = two_topics()
    calls: list[tuple[str, list[str]]] = []

    def noted(name: str) -> Any:
        return lambda _, given: calls.append((name, [f"{p.topic}{p.partition}" for p in given]))

    callbacks = {name: noted(name) for name in ("on_assign", "on_revoke", "on_lost")}
    first = cooperative(shared, ["t"], **callbacks)
    turn(shared, first)
    first.subscribe(["t", "u"], **callbacks)
    turn(shared, first)
    first.subscribe(["u"], **callbacks)
    turn(shared, first)
    assert keys(first) == ["u0", "u1"]
    assert calls == [
        ("on_assign", ["t0", "t1"]),
        ("on_assign", ["u0", "u1"]),
        ("on_revoke", ["t0", "t1"]),
        ("on_assign", []),
    ]


def test_pattern_adds_a_topic_without_touching_the_others() -> None:
    shared = two_topics()
    first = cooperative(shared, ["^[tuv]$"], metadata_max_age_ms=1_000)
    turn(shared, first)
    reader = first._consumption().readers["t", 0]
    process(shared).create_topic("v", partitions=1)
    turn(shared, first)
    assert keys(first) == ["t0", "t1", "u0", "u1", "v0"]
    assert first._consumption().readers["t", 0] is reader


def test_partitions_that_are_added_to_a_topic_are_added() -> None:
    shared = filled(2)
    told = Told()
    first = cooperative(shared, **told.callbacks())
    turn(shared, first)
    create_partitions(process(shared), "t", 3)
    turn(shared, first, rounds=12)
    assert told.calls == [("on_assign", [0, 1]), ("on_assign", [2])]


def test_unsubscribe_revokes_all_and_leaves() -> None:
    shared = filled()
    told = Told()
    first, second = cooperative(shared, **told.callbacks()), cooperative(shared)
    turn(shared, first, second)
    told.calls.clear()
    first.unsubscribe()
    assert told.calls == [("on_revoke", [0, 1])]
    turn(shared, second)
    assert parts(second) == [0, 1, 2, 3]
    assert first.rebalance_protocol() == "NONE"


# --- Static members -------------------------------------------------------------------------------


def test_restarted_static_member_takes_over_without_a_rebalance() -> None:
    shared = filled()
    told = Told()
    first = cooperative(shared, group_instance_id="one", **told.callbacks())
    second = cooperative(shared, group_instance_id="two")
    turn(shared, first, second)
    generation, held = group_row(shared).generation, parts(second)
    told.calls.clear()
    again = cooperative(shared, group_instance_id="two")
    turn(shared, first, again)
    assert parts(again) == held
    assert group_row(shared).generation == generation
    assert told.calls == []
    with pytest.raises(FencedInstanceIdError):
        turn(shared, second)
    assert parts(second) == []


def test_static_member_that_restarts_before_it_has_revoked_revokes_nothing_and_rejoins() -> None:
    """What its predecessor was to hand over must not stay with nobody."""
    shared = filled()

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    first = cooperative(shared, group_instance_id="one", on_revoke=fails)
    turn(shared, first)
    second = cooperative(shared)
    second.poll(0)
    beat(first)
    with pytest.raises(ZeroDivisionError):
        first.poll(0)
    assert group_row(shared).generation == 2
    assert group_row(shared).members[first.memberid()].revoking == {"t": (2, 3)}
    again = cooperative(shared, group_instance_id="one")
    turn(shared, again, second)
    assert (parts(again), parts(second)) == ([0, 1], [2, 3])
