"""Group rows: late ends, entries of several transactions, replaced members."""

from __future__ import annotations

import pytest

from tests.protocol.test_groups import ABORT, COMMIT, Table
from txnlog.errors import OffsetConflictError
from txnlog.protocol.group_changes import prepare_expel_all
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_rebalancing,
    membership_status,
)
from txnlog.protocol.watching import Watch


def test_start_one_record_below_the_position_is_refused() -> None:
    """That record would be written twice (R58)."""
    table = Table()
    table.bump()
    table.commit(10)
    with pytest.raises(OffsetConflictError):
        table.pending(9, 20)
    table.pending(10, 20)


def test_existing_marker_is_not_written_again() -> None:
    """Every late helper would add a version to the log (R5)."""
    table = Table()
    table.bump()
    table.pending(0, 10)
    assert table.mark(COMMIT) is not None
    assert table.mark(COMMIT) is None
    assert table.mark(ABORT) is None


def test_late_marker_keeps_the_next_transactions_entry() -> None:
    """Its output would be committed, and its input read again (R45)."""
    table = Table()
    table.bump()
    table.pending(0, 10, epoch=1)
    table.mark(COMMIT, epoch=0)
    assert [entry.txn_epoch for entry in table.group.pending] == [1]
    table.mark(COMMIT, epoch=1)
    assert table.group.positions() == {"in": {0: 10}}


def test_marker_drops_entries_of_an_older_transaction_without_committing_them() -> None:
    """Committing offsets of an aborted transaction would skip its input (R45)."""
    table = Table()
    table.bump()
    table.pending(0, 10, epoch=0)
    table.mark(COMMIT, epoch=1)
    assert table.group.pending == ()
    assert table.group.positions() == {}


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
