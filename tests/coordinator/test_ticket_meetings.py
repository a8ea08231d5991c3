"""Runs of one group that meet each other's tickets: who is fenced, who waits, who is left alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.admin.spoiled import spoil
from tests.world import (
    GROUP,
    both,
    decide,
    eager,
    faults,
    outcome_of,
    owned,
    position,
    process,
    row_of,
    state_of,
    world,
)
from txnlog.admin.groups import delete_group
from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import fence_holders
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    IllegalGenerationError,
    ProducerFencedError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.group_metadata import Group, GroupTickets, Member
from txnlog.protocol.groups import GroupOffsets, OffsetsCommit
from txnlog.protocol.membership import prepare_join
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault


def read(
    partition: int, end: int, *, generation: int = 1, start: int | None = None
) -> GroupOffsets:
    return GroupOffsets(
        group_id=GROUP,
        generation=generation,
        start={} if start is None else {"input": {partition: start}},
        end={"input": {partition: end}},
    )


def group_of(cluster: Cluster) -> Group:
    group = cluster.groups.describe(GROUP)
    assert group is not None
    return group


def with_tickets(cluster: Cluster, tickets: GroupTickets) -> None:
    """The group's row is an old one, or was lost."""
    cluster.offsets_log(GROUP).change(
        lambda view, _: OffsetsCommit(
            operation="RESTORE", groups=(replace(view.rows[GROUP], tickets=tickets),)
        )
    )


def test_producers_of_one_consumer_abort_nothing_on_other_partitions() -> None:
    """Each of a pool has committed each partition; what they have open does not overlap (R34)."""
    shared = world()
    one, two = process(shared), process(shared)
    second = owned(two, "p2", tid="p2")
    second = two.coordinator.commit(second, both(two, "x"), offsets=[read(0, 10)])
    second = eager(two, second, "y", offsets=[read(1, 5)])
    first = owned(one, "p1", tid="p1")
    one.coordinator.commit(first, both(one, "z"), offsets=[read(0, 20)])
    two.coordinator.commit(second, offsets=[read(1, 5)])
    assert process(shared).groups.fetch(GROUP) == {"input": {0: 20, 1: 5}}


def test_reader_waits_for_no_transaction_on_other_partitions() -> None:
    """Its producer has committed both partitions before, under one ticket (D45)."""
    shared = world()
    holder, reader = process(shared), process(shared)
    row = owned(holder, "p")
    for partition in (1, 0):
        row = holder.coordinator.commit(
            row, both(holder, f"x{partition}"), offsets=[read(partition, 10)]
        )
    eager(holder, row, "y", offsets=[read(0, 20)])
    found = reader.groups.fetch(GROUP, partitions={"input": [1]}, fence=False)
    assert found == {"input": {0: 10, 1: 10}}
    with pytest.raises(UnstableOffsetCommitError):
        reader.groups.fetch(GROUP, partitions={"input": [0]}, fence=False)


@pytest.mark.parametrize("is_eager", [False, True])
def test_run_that_lost_its_id_does_not_abort_its_successor(is_eager: bool) -> None:
    """It registered, met its successor's ticket and fenced it, and then learned of it (R44)."""
    shared = world()
    zombie, successor = process(shared), process(shared)
    lost = owned(zombie, "run1")
    row = owned(successor, "run2")
    row = eager(successor, row, "y", offsets=[read(0, 10)])
    acts = zombie.coordinator.add_partitions, zombie.coordinator.commit
    with pytest.raises(ProducerFencedError):
        acts[is_eager](lost, (), offsets=[read(0, 10)])
    successor.coordinator.commit(row, offsets=[read(0, 10)])
    assert position(process(shared)) == 10


def test_holder_whose_id_has_another_run_is_forgotten() -> None:
    """A row of a Spark query never expires, so its ticket stayed for ever (D106)."""
    shared = world()
    cluster = process(shared)
    cluster.coordinator.commit(owned(cluster, "run1"), both(cluster, "x"), offsets=[read(7, 1)])
    owned(cluster, "run2")
    sweeper = Sweeper(process(shared), interval_ms=10_000)
    sweeper.sweep()
    shared.clock.advance_ms(10_000)
    assert sweeper.sweep() == 1
    assert group_of(cluster).tickets.holders == ()


def test_group_whose_row_is_old_gives_tickets_above_the_floor() -> None:
    """Each commit registered fifty times, and was refused each time (R34)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "run1")
    with_tickets(cluster, GroupTickets(newest=500))
    row = cluster.coordinator.commit(row, both(cluster, "x"), offsets=[read(0, 10)])
    generation = cluster.groups.start(GROUP)
    with_tickets(cluster, GroupTickets())
    again = [read(0, 20, generation=generation)]
    cluster.coordinator.commit(row, both(cluster, "y"), offsets=again)
    assert position(cluster) == 20
    assert group_of(cluster).tickets.newest > 500


def test_repeated_commit_of_a_decision_with_more_offsets_is_done() -> None:
    """A piece landed whose call was interrupted: the commit could neither end nor abort (R28)."""
    shared = world()
    cluster = process(shared)
    row = eager(cluster, owned(cluster, "p"), "x", offsets=[read(0, 10)])
    cluster.coordinator.add_partitions(row, offsets=[read(1, 5)])
    decide(cluster, row, offsets=[read(0, 10)])
    cluster.coordinator.commit(row, offsets=[read(0, 10)])
    assert process(shared).groups.fetch(GROUP) == {"input": {0: 10, 1: 5}}


def test_reader_needs_no_permission_for_what_does_not_concern_its_group() -> None:
    """An abort without offsets, in a topic that it may not write (R37)."""
    shared = world()
    holder, reader = process(shared), process(shared)
    row = owned(holder, "p")
    row = holder.coordinator.commit(row, both(holder, "x"), offsets=[read(0, 10)])
    row = eager(holder, row, "y")
    faults(holder).plan = lambda verb, path: (
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    assert outcome_of(lambda: holder.coordinator.abort(row)) == "crashed"
    assert state_of(process(shared)) is TransactionState.PREPARE_ABORT
    faults(reader).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/") else Fault.NONE
    )
    assert reader.groups.start(GROUP) == 2


def test_run_that_was_fenced_by_mistake_prepares_and_sends_offsets_all_the_same() -> None:
    """Only a commit registered again; both other calls failed (D107)."""
    shared = world()
    cluster, other = process(shared), process(shared)
    row = owned(cluster, "p")
    row = cluster.coordinator.commit(row, both(cluster, "x"), offsets=[read(0, 10)])
    for act in (
        lambda: cluster.coordinator.add_partitions(row, offsets=[read(0, 20)]),
        lambda: cluster.coordinator.prepare(row, both(cluster, "y"), offsets=[read(0, 20)]),
    ):
        [holder] = group_of(other).tickets.holders
        fence_holders(other, GROUP, [holder], partitions={"input": [5]}, by="a test")
        act()
    held = row_of(cluster)
    assert held.pending.prepared_by_client


def test_start_that_cannot_succeed_fences_nobody() -> None:
    """Each try began a generation, and so fenced whoever read for the group (R32)."""
    shared = world()
    cluster = process(shared)
    cluster.coordinator.prepare(owned(cluster, "p"), both(cluster, "y"), offsets=[read(0, 20)])
    for _ in range(3):
        with pytest.raises(UnstableOffsetCommitError):
            process(shared).groups.start(GROUP)
    assert group_of(cluster).generation == 1


def test_deleted_unreadable_group_has_fenced_its_holders() -> None:
    """Its old reader committed, and the new one read the same input again (R48)."""
    shared = world()
    holder = process(shared)
    row = owned(holder, "run1")
    holder.groups.tickets(row, [read(0, 10)])
    spoil(shared, GROUP, {"members": "{"})
    delete_group(process(shared), GROUP, by="an operator")
    new = process(shared)
    generation = new.groups.start(GROUP)
    assert new.groups.fetch(GROUP, generation) == {}
    refused = outcome_of(
        lambda: holder.coordinator.commit(row, both(holder, "x"), offsets=[read(0, 10)])
    )
    assert refused == "IllegalGenerationError"
    assert position(process(shared)) == 0


def test_offset_that_was_set_back_is_no_conflict() -> None:
    """The check used an old read of the group's row (R49)."""
    shared = world()
    cluster, other = process(shared), process(shared)
    row = owned(cluster, "run1")
    row = cluster.coordinator.commit(row, both(cluster, "x"), offsets=[read(0, 10, start=0)])
    other.groups.commit(GROUP, 1, {"input": {0: 5}})
    cluster.coordinator.commit(row, both(cluster, "y"), offsets=[read(0, 12, start=5)])
    assert position(process(shared)) == 12


def test_replaced_static_member_commits_nothing_that_its_successor_has_read() -> None:
    """Both have the same generation; only the member id tells them apart (R48, KIP-345)."""
    shared = world()
    former, successor = process(shared), process(shared)
    static = Member(topics=("input",), session_timeout_ms=1, instance_id="a")
    join(former, static, "a-1")
    row = owned(former, "p")
    row = former.coordinator.commit(row, both(former, "first"), offsets=[as_member("a-1", 10)])
    join(successor, static, "a-2")
    assert successor.groups.fetch(GROUP, 2, member_id="a-2") == {"input": {0: 10}}
    with pytest.raises((IllegalGenerationError, UnknownMemberIdError)):
        former.coordinator.commit(row, both(former, "second"), offsets=[as_member("a-1", 20)])
    assert position(process(shared)) == 10


def join(cluster: Cluster, member: Member, member_id: str) -> None:
    cluster.groups.change_members(
        GROUP,
        lambda group: prepare_join(
            group,
            group_id=GROUP,
            member_id=member_id,
            member=member,
            released=-1,
            counts={"input": 1},
            now_ms=0,
        ),
        by="a test",
    )


def as_member(member_id: str, end: int) -> GroupOffsets:
    return replace(read(0, end, generation=2), member_id=member_id)


def test_offsets_that_are_shown_do_not_go_back_when_they_move_meanwhile() -> None:
    """Between the group's row and the holder's another process moves them, and completes (R47)."""
    shared = world()
    writer, reader = process(shared), process(shared)
    row = owned(writer, "p")
    row = writer.coordinator.commit(row, both(writer, "one"), offsets=[read(0, 10)])
    decide(writer, row, both(writer, "two"), offsets=[read(0, 20)])
    shown = reader.groups.committed(GROUP)
    assert shown is not None
    assert shown.positions() == {"input": {0: 20}}
    is_read = []

    def move(verb: str, path: str) -> Fault:
        if path.startswith("__transaction_state") and not is_read:
            is_read.append(path)
            decided = row_of(writer)
            finish(writer, decided)
        return Fault.NONE

    faults(reader).plan = move
    shown = reader.groups.committed(GROUP)
    assert is_read
    assert shown is not None
    assert shown.positions() == {"input": {0: 20}}
