"""Members of a group without a broker: who holds what, who is expelled, who may commit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import REBALANCE_MS, SESSION_MS, Row, a_member, partitions_of
from txnlog.errors import IllegalGenerationError, UnknownMemberIdError
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_assignment_outdated,
    is_fenced,
    is_member_of,
    is_rebalancing,
    membership_status,
)


def test_first_member_gets_everything_at_once() -> None:
    """A lone consumer should wait for nobody (R48)."""
    row = Row()
    row.join("a", member=a_member("t", "u"))
    assert row.now.generation == 1
    assert is_member_of(row.group, "a", after=-1)
    assert len(partitions_of(row.now, "a")) == 5


def test_newcomer_waits_until_the_others_have_let_go() -> None:
    """Whoever commits as it lets go must still be heard (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    assert row.now.generation == 1
    assert membership_status(row.group, member_id="a", generation=1) is MembershipStatus.REBALANCING
    assert not is_member_of(row.group, "b", after=-1)
    row.commit("a", 1, "t", 0, 5)
    row.join("a", released=1)
    assert row.now.generation == 2
    assert {len(partitions_of(row.now, m)) for m in "ab"} == {1, 2}
    assert membership_status(row.group, member_id="a", generation=1) is MembershipStatus.LOST
    with pytest.raises(IllegalGenerationError):
        row.commit("a", 1, "t", 0, 6)


def test_join_whose_reply_was_lost_is_not_written_again() -> None:
    """Each join of a stable member would make all the others let go (R28, R48)."""
    row = Row()
    row.join("a")
    assert not row.join("a")
    row.join("b")
    assert not row.join("b")
    row.join("a", released=1)
    assert not row.join("a", released=1)
    assert not row.join("b")
    assert row.now.generation == 2


def test_leaver_is_not_waited_for() -> None:
    """A consumer that closed must not hold up the others for a time-out (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    row.leave("a")
    assert row.now.generation == 2
    assert len(partitions_of(row.now, "b")) == 3
    row.leave("b")
    assert (row.now.members, row.now.assignment, row.now.generation) == ({}, {}, 3)
    assert not row.leave("b")


def test_silent_member_is_expelled_by_the_observers_clock_alone() -> None:
    """Clocks of machines differ by hours: only time between own looks counts (R34, R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    row.join("a", released=1)
    seen = GroupObservation()
    for now_ms in (90_000, 90_500, 90_999):
        seen = seen.observe(row.now, now_ms=now_ms)
        assert seen.expired_members(row.now) == set()
    row.beat("a", seen)
    seen = seen.observe(row.now, now_ms=91_000)
    assert seen.expired_members(row.now) == {"b"}
    row.beat("a", seen)
    assert set(row.now.members) == {"a"}
    assert is_rebalancing(row.now)
    with pytest.raises(UnknownMemberIdError, match="no member 'b'"):
        row.commit("b", 2, "t", 0, 5)
    with pytest.raises(UnknownMemberIdError):
        row.beat("b", GroupObservation())
    row.join("a", released=2)
    assert len(partitions_of(row.now, "a")) == 3


def test_member_that_beat_since_the_look_is_spared() -> None:
    """The write is decided on a newer row than the look (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    row.join("a", released=1)
    seen = GroupObservation()
    for now_ms in (0, 500, 1_000):
        seen = seen.observe(row.now, now_ms=now_ms)
    assert seen.expired_members(row.now) == {"a", "b"}
    row.beat("b", GroupObservation())
    assert not row.beat("a", seen, beat=False)
    assert set(row.now.members) == {"a", "b"}


def test_observer_that_was_suspended_expels_nobody_for_it() -> None:
    """A laptop wakes up: all its consumers were silent, and all are well (R34)."""
    row = Row()
    row.join("a")
    row.join("b")
    for away_ms in (SESSION_MS // 2, SESSION_MS - 1, SESSION_MS, 3_600_000):
        seen = GroupObservation()
        for now_ms in (0, 300, 300 + away_ms, 400 + away_ms):
            seen = seen.observe(row.now, now_ms=now_ms)
            assert seen.expired_members(row.now) == set(), away_ms


def test_observer_that_seldom_looks_expels_the_dead_all_the_same() -> None:
    """A housekeeper looks every ten seconds; sessions may be of six (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    seen = GroupObservation()
    for number in range(4):
        assert seen.expired_members(row.now) == set()
        seen = seen.observe(row.now, now_ms=number * 2 * SESSION_MS)
    assert seen.expired_members(row.now) == {"a", "b"}


def test_member_that_does_not_let_go_is_expelled() -> None:
    """A poll loop that hangs stalls the whole group (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    seen = GroupObservation()
    for now_ms in range(0, REBALANCE_MS + 1, 500):
        assert set(row.now.members) == {"a", "b"}
        seen = seen.observe(row.now, now_ms=now_ms)
        row.beat("a", GroupObservation())
        row.beat("b", seen)
    assert set(row.now.members) == {"b"}
    assert len(partitions_of(row.now, "b")) == 3


def test_generation_begun_by_somebody_else_takes_all_parts_away() -> None:
    """A Spark query or a reset in the group: members start again from its positions (R48)."""
    row = Row()
    row.join("a")
    row.bump()
    assert membership_status(row.group, member_id="a", generation=1) is MembershipStatus.LOST
    with pytest.raises(IllegalGenerationError):
        row.commit("a", 1, "t", 0, 5)
    row.join("a", released=1)
    assert row.now.generation == 3
    assert len(partitions_of(row.now, "a")) == 3


def test_new_partition_or_topic_is_noticed() -> None:
    """Nobody would read what is in it (R48)."""
    row = Row()
    row.join("a", member=a_member("t", "later"))
    assert not is_assignment_outdated(row.now, row.counts)
    row.counts["t"] = 4
    assert is_assignment_outdated(row.now, row.counts)
    row.counts.update(t=3, later=1)
    assert is_assignment_outdated(row.now, row.counts)
    row.join("a", released=1, member=a_member("t", "later"))
    assert not is_assignment_outdated(row.now, row.counts)
    row.counts["t"] = 0
    assert is_assignment_outdated(row.now, row.counts)


def test_restarted_instance_takes_its_place_without_a_rebalance() -> None:
    """A rolling restart of a hundred consumers moves every partition a hundred times (R48)."""
    row = Row()
    static = replace(a_member(), instance_id="i")
    row.join("old", member=static)
    row.join("b")
    row.join("old", released=1, member=static)
    part = partitions_of(row.now, "old")
    row.join("new", member=static)
    assert row.now.generation == 2
    assert is_member_of(row.group, "new", after=-1)
    assert partitions_of(row.now, "new") == part
    assert membership_status(row.group, member_id="b", generation=2) is MembershipStatus.STABLE
    assert not row.join("new", member=static)
    with pytest.raises(UnknownMemberIdError):
        row.commit("old", 2, "t", 0, 5)
    assert is_fenced(row.group, member_id="old", instance_id="i")
    assert not is_fenced(row.group, member_id="new", instance_id="i")
    assert not is_fenced(row.group, member_id="gone", instance_id="")


def test_restarted_instance_in_a_rebalance_joins_it() -> None:
    """Its predecessor will never let go (R48)."""
    row = Row()
    static = replace(a_member(), instance_id="i")
    row.join("old", member=static)
    row.join("b")
    assert row.now.generation == 1
    row.join("new", member=static)
    assert row.now.generation == 2
    assert set(row.now.assignment) == {"new", "b"}


def test_changed_subscription_counts_as_a_join() -> None:
    """The part still holds topics that nobody asked for (R48)."""
    row = Row()
    row.join("a")
    assert row.join("a", member=a_member("u"))
    assert partitions_of(row.now, "a") == {("u", 0), ("u", 1)}
