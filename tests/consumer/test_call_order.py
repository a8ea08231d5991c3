"""Calls out of order and invalid settings: errors that name the right call or setting."""

from __future__ import annotations

import pytest

from tests.consumer.records import consumer, member, put, read, world
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    InvalidTopicError,
    RebalanceInProgressError,
)
from txnlog.messages import TopicPartition


def test_calls_out_of_order_raise_errors_with_the_right_call() -> None:
    """If poll always returned None, the mistake would stay hidden (R39)."""
    shared = world(1)
    reader = consumer(process(shared), group_id="g")
    for call in (reader.poll, reader.consume, reader.consume_batch):
        with pytest.raises(ClientStateError, match="subscribe or assign"):
            call(timeout=0)
    with pytest.raises(ClientStateError, match="subscribe or assign"):
        reader.commit(asynchronous=False)
    with pytest.raises(ClientStateError, match="subscribe or assign"):
        reader.consumer_group_metadata()
    reader.subscribe(["t"])
    with pytest.raises(ClientStateError, match="unsubscribe"):
        reader.assign([TopicPartition("t", 0)])
    for stranger in (reader.seek, lambda p: reader.pause([p]), lambda p: reader.resume([p])):
        with pytest.raises(ClientStateError, match=r"^t-0 is not assigned.*it has no partitions"):
            stranger(TopicPartition("t", 0, 1))
    reader.poll(0)
    with pytest.raises(ConfigError, match="offset"):
        reader.commit(offsets=[TopicPartition("t", 0)])
    reader.unsubscribe()
    reader.assign([TopicPartition("t", 0)])
    with pytest.raises(ClientStateError, match="unassign"):
        reader.subscribe(["t"])
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.poll(0)


def test_partition_given_twice_is_refused() -> None:
    """The last one counted, silently: with two offsets, one of them was meant."""
    shared = world(2)
    put(process(shared), b"a", b"b")
    reader = consumer(process(shared))
    twice = [TopicPartition("t", 0, 1), TopicPartition("t", 1), TopicPartition("t", 0, 0)]
    calls = (reader.assign, reader.incremental_assign, reader.incremental_unassign)
    for call in calls:
        with pytest.raises(ConfigError, match=r"partitions\[2\] is t-0, which is given before"):
            call(twice)
    reader.assign(twice[:2])
    assert read(reader) == [b"b"]


def test_commit_during_a_rebalance_raises() -> None:
    """No consumer owns the partition at that time (R39, R48)."""
    shared = world(1)
    first = member(shared)
    read(first)
    second = member(shared)
    read(second)
    with pytest.raises(RebalanceInProgressError, match="poll"):
        second.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    with pytest.raises(RebalanceInProgressError):
        second.consumer_group_metadata()


def test_errors_of_invalid_settings_name_them() -> None:
    """A mistyped setting would silently have its default (R60)."""
    cluster = process(world(1))
    with pytest.raises(ConfigError, match="session.timeout.ms"):
        consumer(cluster, sesion_timeout_ms=3)
    with pytest.raises(ConfigError, match="read_committed or read_uncommitted"):
        consumer(cluster, isolation_level="serializable")
    with pytest.raises(ConfigError, match="group.id"):
        consumer(cluster).subscribe(["t"])
    with pytest.raises(ConfigError, match="regular expression"):
        consumer(cluster, group_id="g").subscribe(["^("])
    with pytest.raises(InvalidTopicError):
        consumer(cluster, group_id="g").subscribe(["__consumer_offsets"])
    with pytest.raises(ConfigError, match="txnlog.root"):
        Consumer({"group.id": "g"})
