"""Partitions that come back to who has revoked them, and owners that were expelled (D126)."""

from __future__ import annotations

import pytest

from tests.protocol.group_row import Row, a_member, partitions_of
from txnlog.errors import IllegalGenerationError
from txnlog.protocol.cooperation import COOPERATIVE, keeps_partitions
from txnlog.protocol.membership import GroupObservation, is_assignment_outdated
from txnlog.protocol.watching import Watch

MEMBER = a_member("t", assignors=(COOPERATIVE,))
COUNTS = {"t": 2}


def handing_over() -> tuple[Row, int]:
    """A and B in generation 2, in which A revokes the partition that is returned."""
    row = Row(counts=COUNTS)
    row.join("A", member=MEMBER)
    row.join("B", member=MEMBER)
    row.join("A", released=1, member=MEMBER)
    assert row.now.generation == 2
    [partition] = row.now.members["A"].revoking["t"]
    return row, partition


def expel(row: Row, member_id: str, observer: str) -> None:
    member = row.now.members[member_id]
    seen = {member_id: (member.heartbeat, Watch(0, watched_ms=member.session_timeout_ms))}
    row.beat(observer, GroupObservation(heartbeats=seen), beat=False)


def test_partition_whose_new_owner_has_gone_comes_back_one_generation_later() -> None:
    """Assigned at once, its member reads the position while what it has sent in on_revoke, under
    the generation before, may still be committed: the same records twice.
    """
    row, partition = handing_over()
    row.join("A", released=2, member=MEMBER)
    expel(row, "B", "A")
    assert row.now.generation == 3
    assert ("t", partition) not in partitions_of(row.now, "A")
    assert is_assignment_outdated(row.now, COUNTS), "A sees it, and rejoins"
    row.commit("A", 2, "t", partition, at=7)
    row.join("A", released=3, member=MEMBER)
    assert row.now.generation == 4
    assert ("t", partition) in partitions_of(row.now, "A")
    assert row.now.positions() == {"t": {partition: 7}}, "what A has sent, before it reads again"
    with pytest.raises(IllegalGenerationError):
        row.commit("A", 2, "t", partition, at=8)


def test_member_that_is_expelled_while_it_revokes_has_lost_all() -> None:
    """Joined again under its id, it would have revoked nothing: the partition came back at once,
    where what it has sent in on_revoke could still be committed.
    """
    row, _ = handing_over()
    assert keeps_partitions(row.now, member_id="A", generation=2)
    expel(row, "A", "B")
    assert not keeps_partitions(row.now, member_id="A", generation=2)


def test_former_owner_commits_nothing_once_the_new_one_was_expelled() -> None:
    """The new owner has read the position, and may have committed what follows."""
    row, partition = handing_over()
    row.join("A", released=2, member=MEMBER)
    row.join("B", released=2, member=MEMBER)
    assert row.now.generation == 3
    row.commit("B", 3, "t", partition, at=7)
    expel(row, "B", "A")
    assert row.now.generation == 3
    with pytest.raises(IllegalGenerationError, match=f"Partition {partition} of topic 't'"):
        row.commit("A", 2, "t", partition, at=8)
