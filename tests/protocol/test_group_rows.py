"""Group rows: members that rejoin, are expelled, and stay."""

from __future__ import annotations

from msgspec.structs import replace

from tests.protocol.group_row import Row, a_member
from txnlog.protocol.group_changes import prepare_expel_all
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_rebalancing,
    membership_status,
)
from txnlog.protocol.watching import Watch


def test_member_that_rejoins_makes_the_others_revoke_their_partitions() -> None:
    """It waits for them; a member that does not revoke its partitions is expelled (D29)."""
    waiting, settled = Member(topics=("t",), joined=3), Member(topics=("t",), joined=2)
    assignment = {"a": {"t": (0,)}, "b": {"t": (1,)}}
    group = Group(
        group_id="g", generation=3, members={"a": waiting, "b": settled}, assignment=assignment
    )
    assert is_rebalancing(group)
    assert membership_status(group, member_id="b", generation=3) is MembershipStatus.REBALANCING


def test_expelled_member_has_lost_its_partitions() -> None:
    """It was expelled, and the next generation has not started (R48)."""
    group = Group(group_id="g", generation=3, members={"b": Member(topics=("t",), joined=3)})
    assert membership_status(group, member_id="a", generation=3) is MembershipStatus.LOST


def test_housekeeping_does_not_empty_a_group_with_a_live_member() -> None:
    """That member expels the others itself, and stays a member (R48)."""
    members = {"a": Member(topics=("t",)), "b": Member(topics=("t",), heartbeat=5)}
    group = Group(group_id="g", generation=3, members=members)
    silent_ms = members["a"].session_timeout_ms
    watch = Watch(silent_ms, watched_ms=silent_ms)
    seen = GroupObservation(heartbeats={"a": (0, watch), "b": (4, watch)})
    assert seen.expired_members(group) == {"a"}
    assert prepare_expel_all(group, seen, now_ms=0) is None
    seen = GroupObservation(heartbeats={"a": (0, watch), "b": (5, watch)})
    assert prepare_expel_all(group, seen, now_ms=0) is not None


def test_each_beat_of_a_member_has_its_time_and_no_other_write_has() -> None:
    """Operators are shown how long a member was silent, also in a group whose row others write."""
    row = Row()
    row.join("a", now_ms=1_000)
    row.join("b", now_ms=2_000)
    assert beats(row) == {"a": 1_000, "b": 2_000}
    row.join("a", released=1, now_ms=3_000)
    row.beat("b", GroupObservation(), now_ms=4_000)
    assert beats(row) == {"a": 3_000, "b": 4_000}
    row.commit("a", 2, "t", 0, 5, now_ms=5_000)
    row.bump()
    assert beats(row) == {"a": 5_000, "b": 4_000}
    static = replace(a_member(), instance_id="i")
    row.join("c", member=static, now_ms=6_000)
    row.join("d", member=static, now_ms=7_000)
    assert beats(row) == {"a": 5_000, "b": 4_000, "d": 7_000}


def beats(row: Row) -> dict[str, int]:
    return {name: member.heartbeat_ms for name, member in row.now.members.items()}
