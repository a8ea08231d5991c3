"""What confluent-kafka's consumer has beyond the basics: ends, stored offsets, parts, notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.consumer.records import (
    Writer,
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
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    PartitionEndError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import OFFSET_INVALID, Message, TopicPartition
from txnlog.settings.config import parse_config
from txnlog.testing.faults import SharedMemory

# --- Ends of partitions ---------------------------------------------------------------------------


def polled(reader: Consumer, count: int = 20) -> list[object]:
    """Values, and (topic, partition, offset) of ends, of so many polls."""
    found: list[object] = []
    for _ in range(count):
        try:
            message = reader.poll(0)
        except PartitionEndError as end:
            found.append(tuple(end.context[name] for name in ("topic", "partition", "offset")))
            continue
        if message is not None:
            assert message.error() is None
            found.append(message.value())
    return found


def at_start(shared: SharedMemory, *partitions: int, **config: object) -> Consumer:
    """A consumer that reads partitions from their beginning."""
    reader = consumer(process(shared), **{"enable_partition_eof": True, **config})
    reader.assign([TopicPartition("t", number, 0) for number in partitions])
    return reader


def test_end_of_each_partition_is_reported_once_until_records_follow() -> None:
    """eos_transactions.py ends when it has an end of each partition."""
    shared = world(2)
    put(process(shared), b"a", b"b")
    reader = at_start(shared, 0, 1)
    assert sorted(polled(reader), key=repr) == [("t", 0, 2), ("t", 1, 0), b"a", b"b"]
    assert polled(reader) == []
    put(process(shared), b"c")
    assert polled(reader) == [b"c", ("t", 0, 3)]


def test_end_is_not_reported_without_the_setting() -> None:
    """A program that does not ask for ends would take them for errors."""
    shared = world(1)
    put(process(shared), b"a")
    assert polled(at_start(shared, 0, enable_partition_eof=False)) == [b"a"]


def test_end_after_an_aborted_transaction_is_behind_it() -> None:
    """The position skips aborted records; an end before them would never be reached."""
    shared = world(1)
    writer = Writer(process(shared))
    writer.append(b"x")
    reader = at_start(shared, 0)
    assert polled(reader) == [("t", 0, 0)]
    writer.abort()
    assert polled(reader) == [("t", 0, 1)]


def test_end_is_reported_again_after_a_seek() -> None:
    """A program that reads a topic twice waits for its end twice."""
    shared = world(1)
    put(process(shared), b"a")
    reader = at_start(shared, 0)
    assert polled(reader) == [b"a", ("t", 0, 1)]
    reader.seek(TopicPartition("t", 0, 1))
    assert polled(reader) == [("t", 0, 1)]


def test_paused_partition_has_no_end() -> None:
    shared = world(2)
    reader = at_start(shared, 0, 1)
    reader.pause([TopicPartition("t", 1)])
    assert polled(reader) == [("t", 0, 0)]
    reader.resume([TopicPartition("t", 1)])
    assert polled(reader) == [("t", 1, 0)]


@pytest.mark.parametrize("way", ["consume", "consume_batch"])
def test_end_is_raised_after_the_records_before_it(way: str) -> None:
    """They are returned first; no call does both."""
    shared = world(1)
    put(process(shared), b"a", b"b")
    reader = at_start(shared, 0)

    def read_all() -> list[object]:
        if way == "consume":
            return [message.value() for message in reader.consume(3, 10)]
        return list(reader.consume_batch(timeout=10).column("value").to_pylist())

    assert read_all() == [b"a", b"b"]
    with pytest.raises(PartitionEndError) as raised:
        read_all()
    assert raised.value.context["offset"] == 2
    put(process(shared), b"c")
    assert read_all() == [b"c"]


def test_position_after_a_message_with_an_error_is_not_committed() -> None:
    """The position after an end is one beyond it: the next record would be skipped."""
    shared = world(1)
    reader = member(shared, enable_auto_offset_store=False)
    assert reader.poll(0) is None
    message = Message("t", 0, 0, None, None, None, None, PartitionEndError("the end"))
    with pytest.raises(ConfigError, match="is no record"):
        reader.commit(message, asynchronous=False)
    with pytest.raises(ConfigError, match="is no record"):
        reader.store_offsets(message)


# --- Stored offsets -------------------------------------------------------------------------------


def test_only_stored_offsets_are_committed() -> None:
    """A record that was returned, and not processed, was committed."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2")
    reader = member(shared, enable_auto_offset_store=False)
    first = reader.poll(0)
    assert first is not None
    assert len(read(reader)) == 2
    with pytest.raises(ClientStateError, match="no position"):
        reader.commit(asynchronous=False)
    reader.store_offsets(first)
    reader.commit(asynchronous=False)
    assert committed(reader) == 1
    reader.store_offsets(offsets=[TopicPartition("t", 0, 2)])
    reader.close()
    assert committed(consumer(process(shared), group_id="g")) == 2


def test_offsets_of_a_former_assignment_are_not_committed() -> None:
    """They belong to the member that has the partition now."""
    shared = world(2)
    put(process(shared), b"0")
    first = member(shared, enable_auto_offset_store=False, enable_auto_commit=False)
    message = first.poll(0)
    assert message is not None
    first.store_offsets(message)
    second = member(shared)
    turn(shared, first, second)
    assert len(parts(first)) == 1
    with pytest.raises(ClientStateError):
        first.commit(asynchronous=False)


def test_storing_needs_the_setting_and_an_assigned_partition() -> None:
    shared = world(1)
    with pytest.raises(ConfigError, match=r"enable\.auto\.offset\.store=false"):
        member(shared).store_offsets(offsets=[TopicPartition("t", 0, 1)])
    reader = member(shared, group_id="h", enable_auto_offset_store=False)
    with pytest.raises(ClientStateError, match="not assigned"):
        reader.store_offsets(offsets=[TopicPartition("t", 7, 1)])
    with pytest.raises(ConfigError, match="message or offsets"):
        reader.store_offsets()


# --- Parts of an assignment -----------------------------------------------------------------------


def test_partitions_are_added_and_removed_one_by_one() -> None:
    """The others keep their positions, and what was fetched of them."""
    shared = world(2)
    put(process(shared), b"a", b"b")
    put(process(shared), b"c", partition=1)
    reader = consumer(process(shared))
    reader.incremental_assign([TopicPartition("t", 0, 0)])
    message = reader.poll(0)
    assert message is not None
    assert message.value() == b"a"
    reader.incremental_assign([TopicPartition("t", 1, 0)])
    assert sorted(read(reader)) == [b"b", b"c"]
    with pytest.raises(ClientStateError, match="already"):
        reader.incremental_assign([TopicPartition("t", 1)])
    reader.incremental_unassign([TopicPartition("t", 0)])
    assert parts(reader) == [1]
    put(process(shared), b"d")
    put(process(shared), b"e", partition=1)
    assert read(reader) == [b"e"]
    with pytest.raises(ClientStateError, match="not assigned"):
        reader.incremental_unassign([TopicPartition("t", 0)])
    reader.incremental_unassign([TopicPartition("t", 1)])
    with pytest.raises(ClientStateError, match="reads nothing"):
        reader.poll(0)


def test_callbacks_may_assign_and_unassign_incrementally() -> None:
    """Eager ones may do so, too; unassign() in on_revoke is confluent's own example."""
    shared = world(2)
    put(process(shared), b"a", b"b")
    told: list[str] = []

    def on_assign(one: Consumer, partitions: list[TopicPartition]) -> None:
        told.append("assign")
        one.incremental_assign([TopicPartition("t", 0, 1)])
        one.pause(partitions)
        one.resume(partitions)

    def on_revoke(one: Consumer, partitions: list[TopicPartition]) -> None:
        told.append("revoke")
        one.incremental_unassign(partitions)
        one.unassign()

    reader = member(
        shared,
        on_assign=on_assign,
        on_revoke=on_revoke,
        partition_assignment_strategy="sticky",
    )
    assert read(reader) == [b"b"]
    other = member(shared, partition_assignment_strategy="sticky")
    turn(shared, reader, other)
    assert sorted(parts(reader) + parts(other)) == [0, 1]
    reader.close()
    assert told == ["assign", "revoke", "assign", "revoke"]


@pytest.mark.parametrize(
    ("named", "taken"),
    [
        ("range,roundrobin", ("range", "sticky")),
        ("cooperative-sticky", ("cooperative-sticky",)),
        ("sticky, roundrobin", ("sticky",)),
    ],
)
def test_assignors_of_kafkas_clients_are_known(named: str, taken: tuple[str, ...]) -> None:
    """A name that is refused stops a program that moves over; the first is librdkafka's default."""
    config = {"txnlog.root": "memory://", "partition.assignment.strategy": named}
    assert parse_config(config, "consumer").get("partition.assignment.strategy") == taken


# --- Commits without an assignment ----------------------------------------------------------------


def test_offsets_of_an_empty_group_are_committed_without_an_assignment() -> None:
    """librdkafka allows it; tools set offsets in this way."""
    shared = world(2)
    tool = consumer(process(shared), group_id="g")
    assert tool.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False) == [
        TopicPartition("t", 0, 3)
    ]
    assert committed(tool) == 3
    tool.commit(offsets=[TopicPartition("t", 0, 1)])
    assert committed(tool) == 1
    message = Message("t", 0, 6, None, b"", 0)
    tool.commit(message)
    assert committed(tool) == 7


def test_group_with_members_takes_no_offsets_from_others() -> None:
    """They would move the positions of running consumers."""
    shared = world(1)
    put(process(shared), b"0")
    reader = member(shared)
    assert read(reader) == [b"0"]
    tool = consumer(process(shared), group_id="g")
    with pytest.raises(UnknownMemberIdError, match="has members"):
        tool.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    before = group_row(shared)
    reader.close()
    tool.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    assert before.members
    assert committed(tool) == 0


def test_commit_without_anything_is_an_error_without_an_assignment() -> None:
    tool = consumer(process(world(1)), group_id="g")
    with pytest.raises(ClientStateError, match="subscribe or assign"):
        tool.commit(asynchronous=False)


# --- Notices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [Consumer.poll, Consumer.consume, Consumer.consume_batch])
def test_missing_topic_of_a_subscription_is_raised_once(way: Callable[..., object]) -> None:
    """A misspelled topic was silence for ever; consume_batch() hid it."""
    shared = world(1)
    put(process(shared), b"0")
    reader = member(shared, ["t", "tt"])
    with pytest.raises(UnknownTopicOrPartitionError) as raised:
        way(reader, timeout=0)
    assert raised.value.code == 3
    assert raised.value.context["topic"] == "tt"
    # It is no failure after which a poll waits.
    now_ms = shared.clock.boot_ms()
    assert read(reader) == [b"0"]
    assert shared.clock.boot_ms() - now_ms < 100
    assert read(reader) == []


def test_missing_topic_is_raised_once_to_each_member() -> None:
    shared = world(2)
    first, second = member(shared, ["t", "tt"]), member(shared, ["t", "tt"])
    found: list[object] = []
    for _ in range(6):
        turn(shared, first, second, rounds=1)
        for reader in (first, second):
            try:
                assert reader.poll(0) is None
            except UnknownTopicOrPartitionError as error:
                found.append((reader, error.context["topic"]))
    assert found == [(first, "tt"), (second, "tt")]


def test_message_can_be_changed() -> None:
    """Deserializers put what they have decoded into the message."""
    message = Message("t", 0, 5, b"k", b"v", 7)
    message.set_key({"id": 1})
    message.set_value([1, 2])
    message.set_headers([("a", b"b")])
    message.set_topic("u")
    assert (message.key(), message.value()) == ({"id": 1}, [1, 2])
    assert (message.topic(), message.headers(), message.error()) == ("u", [("a", b"b")], None)
    error = ClientStateError("no")
    message.set_error(error)
    assert message.error() is error


def test_position_of_an_added_partition_begins_at_the_committed_offset() -> None:
    shared = world(2)
    put(process(shared), b"0", b"1")
    tool = consumer(process(shared), group_id="g")
    tool.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    reader = consumer(process(shared), group_id="g")
    reader.assign([TopicPartition("t", 1, 0)])
    reader.incremental_assign([TopicPartition("t", 0)])
    assert reader.position([TopicPartition("t", 0)])[0].offset == OFFSET_INVALID
    assert read(reader) == [b"1"]
