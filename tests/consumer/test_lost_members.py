"""Members that die, sleep or hang: their partitions are reassigned, and they are fenced."""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    BEAT_MS,
    SESSION_MS,
    Told,
    beat,
    consumer,
    group_row,
    member,
    parts,
    put,
    read,
    sent,
    turn,
    world,
)
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    UnknownMemberIdError,
)
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Owner
from txnlog.testing.faults import SharedMemory


def zombie_and_successor(shared: SharedMemory) -> tuple[Consumer, Consumer]:
    """Two members, of which the first one's machine stops; the other has everything by now."""
    zombie, successor = member(shared), member(shared)
    turn(shared, zombie, successor)
    assert len(parts(zombie)) == len(parts(successor)) == 1
    zombie.poll(0)
    for _ in range(SESSION_MS // BEAT_MS + 2):
        assert zombie.memberid() in group_row(shared).members or parts(successor) == [0, 1]
        turn(shared, successor, rounds=1)
    assert parts(successor) == [0, 1]
    return zombie, successor


def test_dead_members_partitions_are_reassigned_and_the_zombie_is_fenced() -> None:
    """Else both commit the same input (R48)."""
    shared = world(2)
    for number in range(2):
        put(process(shared), b"%d" % number, partition=number)
    zombie, successor = zombie_and_successor(shared)
    read(successor)
    successor.commit(asynchronous=False)
    with pytest.raises(IllegalGenerationError):
        zombie.commit(asynchronous=False)
    assert zombie.poll(0) is None
    assert parts(zombie) == []
    turn(shared, zombie, successor)
    assert len(parts(zombie)) == len(parts(successor)) == 1
    assert read(zombie) == read(successor) == []


def test_zombies_transaction_is_fenced() -> None:
    """Else its output and the new owner's output of the same input are both committed (R48)."""
    shared = world(2)
    put(process(shared), b"in")
    put(process(shared), b"in", partition=1)
    zombie, _ = zombie_and_successor(shared)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="r"))
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, offsets=[sent(zombie)])
    assert group_row(shared).positions() == {"t": {0: 0, 1: 0}}


def test_expelled_member_is_fenced_also_before_the_next_generation() -> None:
    """Its generation is still current while the others revoke their partitions (R48)."""
    shared = world(2)
    put(process(shared), b"in")
    first, second = member(shared), member(shared)
    turn(shared, first, second)
    for _ in range(SESSION_MS // BEAT_MS + 1):
        shared.clock.advance_ms(BEAT_MS)
        beat(second)
        second._consumption().is_due()
    assert set(group_row(shared).members) == {second.memberid()}
    assert group_row(shared).generation == 2
    with pytest.raises(UnknownMemberIdError):
        first.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="r"))
    with pytest.raises(UnknownMemberIdError):
        cluster.coordinator.commit(row, offsets=[sent(first)])


def test_consumer_that_does_not_poll_leaves_and_rejoins() -> None:
    """A hanging poll loop would keep its partitions, since its heartbeats continue (R48)."""
    shared = world(2)
    told = Told()
    slow = member(shared, max_poll_interval_ms=60_000, **told.callbacks())
    other = member(shared)
    turn(shared, slow, other)
    for _ in range(60_000 // BEAT_MS + 4):
        turn(shared, other, rounds=1)
        beat(slow)
    assert parts(other) == [0, 1]
    slow.poll(0)
    assert told.calls[-1][0] == "on_lost"
    turn(shared, slow, other)
    assert len(parts(slow)) == 1


def test_restarted_static_member_continues_without_a_rebalance() -> None:
    """A deployment restarts consumers one by one (R48)."""
    shared = world(2)
    told = Told()
    first = member(shared, group_instance_id="one")
    other = member(shared, group_instance_id="two", **told.callbacks())
    turn(shared, first, other)
    part, calls = parts(first), list(told.calls)
    put(process(shared), b"0", partition=part[0])
    assert read(first) == [b"0"]
    first.close()
    turn(shared, other)
    second = member(shared, group_instance_id="one")
    assert read(second) == []
    assert parts(second) == part
    turn(shared, second, other)
    assert told.calls == calls


def test_second_consumer_with_an_instance_id_fences_the_first() -> None:
    """Two processes with one name would replace each other for ever (R42, R48)."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    first = member(shared, group_instance_id="one")
    assert len(first.consume(1, 0)) == 1
    second = member(shared, group_instance_id="one", enable_auto_commit=False)
    assert read(second) == [b"0", b"1"]
    with pytest.raises(UnknownMemberIdError):
        first.commit(asynchronous=False)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match="'one'"):
            first.poll(0)
    assert first.assignment() == []
    first.close()
    turn(shared, second)
    assert parts(second) == [0]


def test_heartbeats_write_no_more_often_than_necessary() -> None:
    """Many idle members would fill the log of all groups (R48)."""
    shared = world(1)
    put(process(shared), b"0")
    reader = member(shared, enable_auto_commit=False)
    read(reader)
    log = process(shared).offsets_log("readers")

    def version() -> int:
        log.refresh()
        return log.log.version

    beat(reader)
    before = version()
    for _ in range(SESSION_MS // BEAT_MS):
        shared.clock.advance_ms(BEAT_MS)
        beat(reader)
        reader.poll(0)
    assert version() == before + 3, "three times a session, however often it reads the group"
    reader.commit(asynchronous=False)
    for _ in range(4):
        beat(reader)
        shared.clock.advance_ms(BEAT_MS)
    assert version() == before + 4, "the commit was a heartbeat, too"


def test_heartbeat_interval_of_a_third_of_a_session_writes_each_time() -> None:
    """Fewer than three writes in a session, and one gap would expel a healthy member (R48)."""
    shared = world(1)
    reader = member(shared, enable_auto_commit=False, heartbeat_interval_ms=SESSION_MS // 3)
    read(reader)
    log = process(shared).offsets_log("g")
    beat(reader)
    log.refresh()
    before = log.log.version
    for _ in range(6):
        shared.clock.advance_ms(SESSION_MS // 3)
        beat(reader)
        reader.poll(0)
    log.refresh()
    assert log.log.version == before + 6


def test_automatic_commits_of_unchanged_positions_are_not_repeated() -> None:
    """An idle consumer would write its offsets every five seconds, for ever."""
    shared = world(1)
    put(process(shared), b"0")
    reader = member(shared)
    assert len(read(reader)) == 1
    log = process(shared).offsets_log("g")

    def commits() -> int:
        log.refresh()
        before = log.log.version
        shared.clock.advance_ms(5_001)
        assert reader.poll(0) is None
        log.refresh()
        return log.log.version - before

    assert [commits(), commits(), commits()] == [1, 0, 0]
    # What another call has committed is replaced again, as in Kafka.
    reader.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    assert [commits(), commits()] == [1, 0]
    put(process(shared), b"1")
    assert read(reader) == [b"1"]
    assert commits() == 1


def test_generation_of_a_non_member_revokes_assignments_and_moves_the_positions() -> None:
    """An operator resets offsets, or a Spark query starts, while members run (R48)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")
    told = Told()
    reader = member(shared, **told.callbacks())
    assert len(read(reader)) == 3
    process(shared).groups.reset("g", {"t": {0: 1}})
    turn(shared, reader)
    assert told.calls == [("on_assign", [0]), ("on_lost", [0]), ("on_assign", [0])]
    assert read(reader) == [b"1", b"2"]


def test_assign_begins_a_new_generation() -> None:
    """A consumer with assigned partitions must not read input that a member still commits (R48)."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    old = consumer(process(shared), group_id="g", enable_auto_commit=False)
    old.assign([TopicPartition("t", 0)])
    assert read(old) == [b"0", b"1"]
    new = consumer(process(shared), group_id="g", enable_auto_commit=False)
    new.assign([TopicPartition("t", 0)])
    with pytest.raises(IllegalGenerationError):
        old.commit(asynchronous=False)
    assert read(new) == [b"0", b"1"]
    new.commit(asynchronous=False)
    assert new.consumer_group_metadata().generation == 2
    old.assign([TopicPartition("t", 0)])
    assert read(old) == []


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_member_that_was_expelled_and_joins_again_is_watched_from_then_on(strategy: str) -> None:
    """Else who expelled it would do so again at each heartbeat, and no rebalance would ever end."""
    shared = world()
    first = member(shared, partition_assignment_strategy=strategy)
    turn(shared, first)
    second = member(shared, partition_assignment_strategy=strategy)
    second.poll(0)
    name = second.memberid()
    # It has joined, and is paused before its first heartbeat; the other one polls nothing.
    while name in group_row(shared).members:
        shared.clock.advance_ms(BEAT_MS)
        beat(first)
    second._consumption().maintain()
    for _ in range(3):
        shared.clock.advance_ms(BEAT_MS)
        beat(first)
        assert second.memberid() in group_row(shared).members
    turn(shared, first, second)
    assert (len(parts(first)), len(parts(second))) == (1, 1)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_static_member_that_subscribes_again_is_not_fenced_by_itself(strategy: str) -> None:
    """Its heartbeat thread has last seen the group with its former member id (KIP-345)."""
    shared = world()
    reader = member(shared, group_instance_id="a", partition_assignment_strategy=strategy)
    turn(shared, reader)
    reader.unsubscribe()
    reader.subscribe(["t"])
    for _ in range(3):
        assert reader.poll(0) is None
    assert parts(reader) == [0, 1]


def test_static_cooperative_member_that_lost_its_partitions_joins_again() -> None:
    """It is the newer instance itself (KIP-345)."""
    shared = world()
    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    reader = member(shared, group_instance_id="a", **strategy)
    other = member(shared, group_instance_id="b", **strategy)
    turn(shared, reader, other)
    process(shared).groups.start("g")
    for _ in range(4):
        for one in (reader, other):
            beat(one)
            for _ in range(3):
                assert one.poll(0) is None
    assert (len(parts(reader)), len(parts(other))) == (1, 1)
    assert set(group_row(shared).members) == {reader.memberid(), other.memberid()}
