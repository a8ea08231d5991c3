"""Consumers of one group: what they commit, and who reads what as members come and go."""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    Told,
    committed,
    consumer,
    group_row,
    member,
    parts,
    put,
    read,
    turn,
    world,
)
from tests.world import check_settled, process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    InconsistentGroupProtocolError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import OFFSET_END, OFFSET_INVALID, TopicPartition
from txnlog.testing.faults import Fault

# --- Commits --------------------------------------------------------------------------------------


def test_consumer_continues_where_its_group_has_committed() -> None:
    """Records between two lives of a consumer are lost or repeated (R49)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")
    first = member(shared, enable_auto_commit=False)
    message = first.poll(0)
    assert message is not None
    assert message.value() == b"0"
    assert committed(first) == OFFSET_INVALID
    first.commit(message, asynchronous=False)
    assert committed(first) == 1
    first.close()
    second = member(shared, enable_auto_commit=False)
    assert read(second) == [b"1", b"2"]
    second.close()
    third = member(shared)
    assert read(third) == [b"1", b"2"]
    third.close()
    assert committed(consumer(process(shared), group_id="g")) == 3


def test_automatic_commit_holds_what_was_handed_out_before_this_poll() -> None:
    """Committed before it is processed, a record is lost by a crash (R49)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")
    reader = member(shared)
    assert len(reader.consume(2, 0)) == 2
    reader.poll(0)
    assert committed(reader) == OFFSET_INVALID
    shared.clock.advance_ms(5_000)
    assert reader.poll(0) is None
    assert committed(reader) == 3


def test_asynchronous_commits_are_done_in_order_and_told_by_a_later_poll() -> None:
    """A later commit overtaken by an earlier one brings records back (R47)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")
    told: list[tuple[object, list[int]]] = []
    settings = {
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "on_commit": lambda error, parts: told.append((error, [p.offset for p in parts])),
    }
    reader = Consumer(settings, cluster=process(shared))
    reader.subscribe(["t"])
    for _ in range(3):
        message = reader.poll(1)
        assert message is not None
        assert reader.commit(message) is None
    reader.commit(offsets=[TopicPartition("t", 0, 2, "note")], asynchronous=False)
    assert committed(reader) == 2
    assert group_row(shared).offsets["t"][0].metadata == "note"
    reader.poll(0)
    assert told == [(None, [1]), (None, [2]), (None, [3])]
    reader.close()


def test_position_of_a_partition_without_records_is_committed_too() -> None:
    """The next owner would start at the end again, past what came in between (R49)."""
    shared = world(1)
    put(process(shared), b"old")
    first = member(shared, auto_offset_reset="latest")
    assert read(first) == []
    first.close()
    put(process(shared), b"new")
    assert read(member(shared, auto_offset_reset="latest")) == [b"new"]


# --- Sharing --------------------------------------------------------------------------------------


def test_two_members_share_the_partitions_and_hand_over_without_a_gap() -> None:
    """What one has processed and committed, the other does not read again (R48)."""
    shared = world(4)
    for number in range(4):
        put(process(shared), b"%d" % number, partition=number)
    told = Told()
    first = member(shared, **told.callbacks())
    assert sorted(read(first)) == [b"0", b"1", b"2", b"3"]
    second = member(shared)
    assert read(second) == []
    turn(shared, first, second)
    assert (parts(first), parts(second)) in (([0, 1], [2, 3]), ([2, 3], [0, 1]))
    assert told.calls[:2] == [("on_assign", [0, 1, 2, 3]), ("on_revoke", [0, 1, 2, 3])]
    assert read(first) == read(second) == []
    for number in range(4):
        put(process(shared), b"new%d" % number, partition=number)
    found = sorted(read(first) + read(second))
    assert found == [b"new0", b"new1", b"new2", b"new3"]
    second.close()
    turn(shared, first)
    assert parts(first) == [0, 1, 2, 3]
    assert read(first) == []
    check_settled(shared)


def test_sticky_members_keep_most_of_what_they_have() -> None:
    """With range one newcomer moves nearly everything (R48)."""
    shared = world(6)
    first = member(shared, partition_assignment_strategy="sticky")
    second = member(shared, partition_assignment_strategy="sticky")
    turn(shared, first, second)
    before = {name: set(parts(one)) for name, one in [("1", first), ("2", second)]}
    third = member(shared, partition_assignment_strategy="sticky")
    turn(shared, first, second, third)
    assert set(parts(first)) < before["1"]
    assert set(parts(second)) < before["2"]
    assert len(parts(third)) == 2


def test_members_without_a_common_assignor_are_told() -> None:
    """Two ways to assign would give partitions two owners (R48)."""
    shared = world(2)
    first = member(shared)
    read(first)
    second = member(shared, partition_assignment_strategy="sticky")
    with pytest.raises(InconsistentGroupProtocolError):
        read(second)
    turn(shared, first)
    assert parts(first) == [0, 1]


def test_application_chooses_where_to_start_in_on_assign() -> None:
    """confluent-kafka's way to start elsewhere than at the committed offset (R49)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")

    def from_the_last(one: Consumer, partitions: list[TopicPartition]) -> None:
        one.assign([TopicPartition(p.topic, p.partition, 2) for p in partitions])

    assert read(member(shared, on_assign=from_the_last)) == [b"2"]
    at_end = [TopicPartition("t", 0, OFFSET_END)]
    assert read(member(shared, group_id="h", on_assign=lambda c, _: c.assign(at_end))) == []


def test_new_topics_and_partitions_reach_the_members() -> None:
    """A pattern subscription that stays with the topics of its first day (R48)."""
    shared = world(1, topic="orders-eu")
    reader = member(shared, ["^orders-.*", "later"], metadata_max_age_ms=10_000)
    with pytest.raises(UnknownTopicOrPartitionError, match="later"):
        read(reader)
    process(shared).create_topic("orders-us", partitions=1)
    process(shared).create_topic("other", partitions=1)
    process(shared).create_topic("later", partitions=1)
    turn(shared, reader)
    assert [p.topic for p in reader.assignment()] == ["later", "orders-eu", "orders-us"]
    process(shared).delete_topic("orders-us")
    turn(shared, reader, rounds=8)
    assert [p.topic for p in reader.assignment()] == ["later", "orders-eu"]


def test_patterns_look_only_into_what_they_match() -> None:
    """A client with rights on its own topics only can use patterns, as in Kafka (R48)."""
    shared = world(1, topic="orders-eu")
    put(process(shared), b"0", topic="orders-eu")
    process(shared).create_topic("salaries", partitions=1)

    def without_salaries(verb: str, path: str) -> Fault:
        return Fault.DENY if path.startswith("salaries") else Fault.NONE

    reader = consumer(Cluster.open(shared.open(plan=without_salaries)), group_id="g")
    reader.subscribe(["^orders-.*", "^nothing"])
    assert read(reader) == [b"0"]
    turn(shared, reader)
    assert [p.topic for p in reader.assignment()] == ["orders-eu"]


def test_subscription_can_change() -> None:
    """Partitions of the old topics must go, whatever the moment (R48)."""
    shared = world(1)
    process(shared).create_topic("u", partitions=1)
    reader = member(shared)
    read(reader)
    reader.subscribe(["u"])
    read(reader)
    assert reader.assignment() == [TopicPartition("u", 0)]
    reader.unsubscribe()
    assert reader.assignment() == []
    assert group_row(shared).members == {}
    reader.subscribe(["t"])
    read(reader)
    assert reader.assignment() == [TopicPartition("t", 0)]
