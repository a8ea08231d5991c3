"""Cooperative members: their callbacks, groups of both kinds, and who may commit what has moved."""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    BEAT_MS,
    SESSION_MS,
    Told,
    at,
    beat,
    committed,
    group_row,
    member,
    messages,
    parts,
    read,
    sent,
    turn,
)
from tests.consumer.test_cooperative import cooperative, filled
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
)
from txnlog.messages import TopicPartition
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner
from txnlog.settings.config import parse_config
from txnlog.testing.faults import SharedMemory

# --- Callbacks, and the protocol ------------------------------------------------------------------


def test_callbacks_assign_and_unassign_incrementally() -> None:
    """What confluent-kafka's programs for cooperative-sticky do."""
    shared = filled()

    def on_assign(one: Consumer, partitions: list[TopicPartition]) -> None:
        one.incremental_assign([TopicPartition(p.topic, p.partition, 2) for p in partitions])

    def on_revoke(one: Consumer, partitions: list[TopicPartition]) -> None:
        one.incremental_unassign(partitions)

    first = cooperative(shared, on_assign=on_assign, on_revoke=on_revoke)
    assert sorted(v or b"" for v in read(first)) == [b"0.2", b"1.2", b"2.2", b"3.2"]
    second = cooperative(shared, on_assign=on_assign, on_revoke=on_revoke)
    turn(shared, first, second)
    assert (parts(first), parts(second)) == ([0, 1], [2, 3])
    assert sorted(v or b"" for v in read(second)) == [b"2.2", b"3.2"]
    assert read(first) == []


def test_assign_in_on_assign_is_refused() -> None:
    """It would drop what the member keeps, and is not told about."""
    shared = filled()
    first = cooperative(shared, on_assign=lambda one, given: one.assign(given))
    with pytest.raises(ClientStateError, match="incremental_assign"):
        first.poll(0)


@pytest.mark.parametrize("callback", ["on_revoke", "on_assign"])
def test_callback_that_raises_delays_nothing_for_ever(callback: str) -> None:
    shared = filled()
    raised: list[int] = []

    def fails(_: object, partitions: list[TopicPartition]) -> None:
        if callback == "on_revoke" or raised == [0]:
            raised.append(len(partitions))
            raise ZeroDivisionError
        raised.append(0)

    first = cooperative(shared, **{callback: fails})
    turn(shared, first)
    second = cooperative(shared)
    errors = 0
    for _ in range(6):
        try:
            turn(shared, first, second, rounds=1)
        except ZeroDivisionError:
            errors += 1
    assert errors == 1
    assert (parts(first), parts(second)) == ([0, 1], [2, 3])


def test_protocol_of_the_group_is_told() -> None:
    shared = filled()
    first, eager = cooperative(shared), member(shared, group_id="other")
    assert (first.rebalance_protocol(), eager.rebalance_protocol()) == ("NONE", "NONE")
    first.poll(0)
    eager.poll(0)
    assert (first.rebalance_protocol(), eager.rebalance_protocol()) == ("COOPERATIVE", "EAGER")


@pytest.mark.parametrize("strategy", ["range", "sticky", "roundrobin,range"])
def test_eager_and_cooperative_members_do_not_mix(strategy: str) -> None:
    """The one that comes second is refused, and the group goes on."""
    shared = filled()
    first = cooperative(shared)
    turn(shared, first)
    other = member(shared, partition_assignment_strategy=strategy)
    with pytest.raises(InconsistentGroupProtocolError, match="stop all of its members first"):
        other.poll(0)
    turn(shared, first)
    assert parts(first) == [0, 1, 2, 3]
    assert group_row(shared).generation == 1


@pytest.mark.parametrize("named", ["cooperative-sticky,range", "sticky, cooperative-sticky"])
def test_cooperative_strategy_stands_alone(named: str) -> None:
    """As in librdkafka: a member has one protocol."""
    config = {"txnlog.root": "memory://", "partition.assignment.strategy": named}
    with pytest.raises(ConfigError, match="goes with no other"):
        parse_config(config, "consumer")


def asleep(shared: SharedMemory, other: Consumer) -> None:
    """Two sessions pass in which only the other member sends heartbeats."""
    for _ in range(2 * SESSION_MS // BEAT_MS):
        shared.clock.advance_ms(BEAT_MS)
        beat(other)


# --- Fencing --------------------------------------------------------------------------------------


def test_partition_that_moved_can_no_longer_be_committed_by_who_had_it() -> None:
    """Its generation is the right one; what it has kept it may commit, and is not lost (R48)."""
    shared = filled()
    told = Told()
    first = cooperative(shared, enable_auto_commit=False, **told.callbacks())
    late = [message for message in messages(first) if message.partition() == 3]
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert parts(second) == [2, 3]
    with pytest.raises(IllegalGenerationError, match="is assigned to member"):
        first.commit(late[-1], asynchronous=False)
    first.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
    turn(shared, first, second)
    assert parts(first) == [0, 1]
    assert ("on_lost", [0, 1]) not in told.calls
    assert committed(second, 3) == -1001


def test_transaction_with_a_partition_that_moved_is_refused() -> None:
    """The new owner reads the position that the former one committed, and fences its ticket."""
    shared = filled()
    first = cooperative(shared, enable_auto_commit=False)
    read(first)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    stale = sent(first)
    row = cluster.coordinator.commit(row, (), offsets=[stale])
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert [at(second, number) for number in (2, 3)] == [3, 3]
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, (), offsets=[stale])
    kept = sent(first)
    assert set(kept.end["t"]) == {0, 1}
    cluster.coordinator.commit(row, (), offsets=[kept])


def test_transaction_of_kept_partitions_goes_on_over_a_rebalance() -> None:
    """It was begun under the generation before, which this member has not seen end."""
    shared = filled()
    first = cooperative(shared, enable_auto_commit=False)
    read(first)
    before = sent(first)
    second = cooperative(shared, enable_auto_commit=False)
    second.poll(0)
    beat(first)
    first._consumption().maintain()
    assert group_row(shared).generation == before.generation + 1
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    cluster.coordinator.commit(row, (), offsets=[before])
    turn(shared, first, second)
    assert [at(second, number) for number in (2, 3)] == [3, 3]
    assert shared.clock.boot_ms() > BEAT_MS


def test_offsets_sent_before_their_member_lost_its_partitions_are_refused() -> None:
    """It has them again, one generation later, and reads from the committed position: what it had
    read before would be copied twice (R46, R48).
    """
    shared = filled()
    told = Told()
    first = cooperative(shared, enable_auto_commit=False, **told.callbacks())
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert len(read(first)) == 6
    before, name = sent(first), first.memberid()
    # It is paused for longer than a session; the other one has not rejoined when it wakes up.
    asleep(shared, second)
    assert name not in group_row(shared).members
    beat(first)
    first._consumption().maintain()
    assert told.calls[-1] == ("on_lost", [0, 1])
    turn(shared, first, second)
    assert group_row(shared).generation == before.generation + 1
    assert parts(first) + parts(second) == [0, 1, 2, 3]
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, (), offsets=[before])
    assert committed(first, 0) == -1001
    assert len(read(first) + read(second)) == 12


def test_offsets_sent_in_on_revoke_by_who_is_expelled_there_are_refused() -> None:
    """The new owner is gone before it has the partitions: they come back at once (R46, R48)."""
    shared = filled()
    there: list[GroupOffsets] = []

    def on_revoke(one: Consumer, _: list[TopicPartition]) -> None:
        there.append(sent(one))
        asleep(shared, second)

    told = Told()
    first = cooperative(shared, enable_auto_commit=False, on_revoke=on_revoke, on_lost=told.on_lost)
    assert len(read(first)) == 12
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, second, rounds=1)
    turn(shared, first)
    assert len(there) == 1
    assert told.calls == [("on_lost", [0, 1])]
    asleep(shared, first)
    turn(shared, first)
    assert parts(first) == [0, 1, 2, 3]
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    assert set(there[0].end["t"]) & {2, 3}
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, (), offsets=there)
    assert len(read(first)) == 12


def test_member_that_lost_its_partitions_to_a_generation_from_outside_leaves_no_ghost() -> None:
    """Its row is replaced by that of the member that it becomes, at once (R48)."""
    shared = filled()
    first, second = cooperative(shared), cooperative(shared)
    turn(shared, first, second)
    process(shared).groups.start("g")
    names = {first.memberid(), second.memberid()}
    turn(shared, first, second)
    row = group_row(shared)
    assert set(row.members) == {first.memberid(), second.memberid()}
    assert not names & set(row.members)
    assert sorted(parts(first) + parts(second)) == [0, 1, 2, 3]
    first.close()
    turn(shared, second)
    assert parts(second) == [0, 1, 2, 3]
