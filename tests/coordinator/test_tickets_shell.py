"""How the coordinator registers, fences and looks: the order of its reads and writes."""

from __future__ import annotations

import pytest

from tests.world import (
    GROUP,
    both,
    consumed,
    decide,
    owned,
    position,
    process,
    row_of,
    world,
)
from txnlog.coordinator.fencing import fence_holders
from txnlog.coordinator.finishing import publish
from txnlog.errors import IllegalGenerationError, UnknownMemberIdError
from txnlog.testing.invariants import check_cluster


def test_start_refuses_the_tickets_of_those_who_have_decided_nothing() -> None:
    """A PREPARE under way would land after the successor has read (R48)."""
    shared = world()
    holder, successor = process(shared), process(shared)
    row, batches = owned(holder, "a"), both(holder, "one")
    [carried] = holder.groups.tickets(row, [consumed(0, 10)])
    successor.groups.start(GROUP)
    found = row_of(successor)
    assert found.owner.floors == {GROUP: carried.ticket + 1}
    with pytest.raises(IllegalGenerationError):
        holder.coordinator.commit(row, batches, offsets=[consumed(0, 10)])
    assert position(process(shared)) == 0


def test_run_whose_ticket_was_refused_registers_again_within_its_transaction() -> None:
    """A run that may still read must not fail for a fence that met it by mistake (R34)."""
    shared = world()
    holder, other = process(shared), process(shared)
    row, batches = owned(holder, "a"), both(holder, "one")
    [carried] = holder.groups.tickets(row, [consumed(0, 10)])
    group = other.groups.describe(GROUP)
    assert group is not None
    fence_holders(other.groups._root, GROUP, group.tickets.holders[:1], by="test")
    holder.coordinator.commit(row, batches, offsets=[consumed(0, 10)])
    assert position(process(shared)) == 10
    after = process(shared).groups.describe(GROUP)
    assert after is not None
    assert [one.ticket for one in after.tickets.holders] == [carried.ticket + 1]
    check_cluster(process(shared), settled=True)


def test_reset_stays_although_a_transaction_was_decided_before() -> None:
    """Its offsets marker would move the group away from the operator's position (R46)."""
    shared = world()
    holder, operator = process(shared), process(shared)
    row, batches = owned(holder, "a"), both(holder, "one")
    decided = decide(holder, row, batches, offsets=[consumed(0, 10)])
    operator.groups.reset(GROUP, {"input": {0: 3}})
    publish(holder, decided)
    assert position(process(shared)) == 3


def test_plain_commit_stays_although_a_transaction_was_decided_before() -> None:
    """What was decided before counts as before (R47)."""
    shared = world()
    holder, consumer = process(shared), process(shared)
    row, batches = owned(holder, "a"), both(holder, "one")
    decided = decide(holder, row, batches, offsets=[consumed(0, 10)])
    consumer.groups.commit(GROUP, 1, {"input": {0: 50}})
    publish(holder, decided)
    assert position(process(shared)) == 50


def test_member_that_was_replaced_fences_nobody_when_it_reads() -> None:
    """It and its successor, under one generation, refused each other's tickets for ever (R48)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "successor")
    row = cluster.coordinator.commit(row, both(cluster, "one"), offsets=[consumed(0, 10)])
    with pytest.raises(UnknownMemberIdError):
        process(shared).groups.fetch(GROUP, 1, member_id="replaced")
    after = row_of(cluster)
    assert after.owner.floors == {}
    cluster.coordinator.commit(row, both(cluster, "two"), offsets=[consumed(10, 20)])
    assert position(process(shared)) == 20
