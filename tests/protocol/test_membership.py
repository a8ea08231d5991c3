"""Group membership without a broker: assignments, expulsions, and who may commit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import REBALANCE_MS, SESSION_MS, Row, a_member, partitions_of
from txnlog.errors import IllegalGenerationError, UnknownMemberIdError
from txnlog.protocol.cooperation import is_member_of
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_assignment_outdated,
    is_fenced,
    is_rebalancing,
    membership_status,
)


def test_first_member_gets_everything_at_once() -> None:
    """A single consumer must not wait (R48)."""
    row = Row()
    row.join("a", member=a_member("t", "u"))
    assert row.now.generation == 1
    assert is_member_of(row.group, "a", after=-1)
    assert len(partitions_of(row.now, "a")) == 5


def test_new_member_waits_until_the_others_have_revoked() -> None:
    """Commits during on_revoke must still be accepted (R48)."""
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
    """Each join of a stable member would start a rebalance (R28, R48)."""
    row = Row()
    row.join("a")
    assert not row.join("a")
    row.join("b")
    assert not row.join("b")
    row.join("a", released=1)
    assert not row.join("a", released=1)
    assert not row.join("b")
    assert row.now.generation == 2


def test_rebalance_does_not_wait_for_a_member_that_left() -> None:
    """A closed consumer must not delay the others by a time-out (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    row.leave("a")
    assert row.now.generation == 2
    assert len(partitions_of(row.now, "b")) == 3
    row.leave("b")
    assert (row.now.members, row.now.assignment, row.now.generation) == ({}, {}, 3)
    assert not row.leave("b")


def test_member_without_heartbeats_is_expelled_by_the_observers_clock_alone() -> None:
    """Clocks of machines differ by hours: only the observer's own clock counts (R34, R48)."""
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


def test_member_with_a_heartbeat_since_the_observation_is_not_expelled() -> None:
    """The write is decided on a newer row than the observation (R48)."""
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


def test_suspended_observer_expels_no_member() -> None:
    """After a suspend of the machine no consumer has sent heartbeats, but all are alive (R34)."""
    row = Row()
    row.join("a")
    row.join("b")
    for away_ms in (SESSION_MS // 2, SESSION_MS - 1, SESSION_MS, 3_600_000):
        seen = GroupObservation()
        for now_ms in (0, 300, 300 + away_ms, 400 + away_ms):
            seen = seen.observe(row.now, now_ms=now_ms)
            assert seen.expired_members(row.now) == set(), away_ms


def test_observer_with_a_long_interval_expels_dead_members() -> None:
    """A housekeeper reads groups every ten seconds; a session may last six (R48)."""
    row = Row()
    row.join("a")
    row.join("b")
    seen = GroupObservation()
    for number in range(4):
        assert seen.expired_members(row.now) == set()
        seen = seen.observe(row.now, now_ms=number * 2 * SESSION_MS)
    assert seen.expired_members(row.now) == {"a", "b"}


def test_member_that_does_not_revoke_is_expelled() -> None:
    """A hanging poll loop would block the whole group (R48)."""
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


def test_generation_of_a_non_member_revokes_all_assignments() -> None:
    """A Spark query or a reset in the group: members rejoin at its positions (R48)."""
    row = Row()
    row.join("a")
    row.bump()
    assert membership_status(row.group, member_id="a", generation=1) is MembershipStatus.LOST
    with pytest.raises(IllegalGenerationError):
        row.commit("a", 1, "t", 0, 5)
    row.join("a", released=1)
    assert row.now.generation == 3
    assert len(partitions_of(row.now, "a")) == 3


def test_new_partition_or_topic_makes_the_assignment_outdated() -> None:
    """Else no member reads it (R48)."""
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


def test_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    """Else a rolling restart of 100 consumers moves every partition 100 times (R48)."""
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


def test_static_member_restarted_within_a_rebalance_joins_it() -> None:
    """Its predecessor will never revoke its assignment (R48)."""
    row = Row()
    static = replace(a_member(), instance_id="i")
    row.join("old", member=static)
    row.join("b")
    assert row.now.generation == 1
    row.join("new", member=static)
    assert row.now.generation == 2
    assert set(row.now.assignment) == {"new", "b"}


def test_changed_subscription_counts_as_a_join() -> None:
    """The old assignment has topics that are no longer subscribed to (R48)."""
    row = Row()
    row.join("a")
    assert row.join("a", member=a_member("u"))
    assert partitions_of(row.now, "a") == {("u", 0), ("u", 1)}
