"""Limits of size, memory and names: when a producer blocks, and what it refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.producer.worlds import BOTH, cluster_of, producer, read, started, values, world
from tests.world import process
from txnlog.errors import (
    BufferExhaustedError,
    InvalidRecordError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from txnlog.testing.faults import Fault

# --- Limits ---------------------------------------------------------------------------------------


@BOTH
def test_record_too_large_is_refused_at_once_and_nothing_lands(publish: str) -> None:
    """The producer's limit, and the topic's; the transaction continues (R65)."""
    shared = world()
    process(shared).create_topic("small", partitions=1, config={"max.message.bytes": "500"})
    made = started(shared, publish, max_request_size=1_000)
    made.begin_transaction()
    for topic, size in (("small", 500), ("orders", 1_000)):
        made.produce(topic, "fits")
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
            made.produce(topic, b"x" * size)
    made.commit_transaction()
    assert values(process(shared), "small") == values(process(shared), "orders") == ["fits"]


@BOTH
def test_record_without_a_key_is_refused_where_keys_are_compacted(publish: str) -> None:
    """As by Kafka's brokers: key compaction could only delete the record (R23)."""
    shared = world()
    process(shared).create_topic("latest", partitions=1, config={"cleanup.policy": "compact"})
    made = started(shared, publish)
    made.begin_transaction()
    for _ in range(2):
        with pytest.raises(InvalidRecordError, match="latest.*no key.*compact"):
            made.produce("latest", "lost")
        made.produce("latest", "kept", key="k")
    table = pa.table({"key": [b"k", None], "value": [b"kept", b"lost"]})
    with pytest.raises(InvalidRecordError, match="Row 1 .*latest.*no key.*compact"):
        made.produce_batch("latest", table)
    made.produce_batch("latest", table.slice(0, 1))
    made.commit_transaction()
    assert values(process(shared), "latest") == ["kept"] * 3


def test_missing_partition_or_topic_is_refused_at_once() -> None:
    """The error names the partitions or topics that exist (R60)."""
    made = producer(world(), auto_create_topics_enable="false")
    with pytest.raises(UnknownTopicOrPartitionError, match="0 to 1"):
        made.produce("orders", "a", partition=2)
    with pytest.raises(UnknownTopicOrPartitionError, match="orders, stock"):
        made.produce("nowhere", "a")


@BOTH
def test_record_is_refused_only_by_the_topic_as_it_is_now(publish: str) -> None:
    """For five minutes an added partition, or a limit that was raised, was denied (R60, R65)."""
    shared = world()
    limited = {"max.message.bytes": "500", "cleanup.policy": "compact"}
    process(shared).create_topic("changing", partitions=1, config=limited)
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("changing", "0", key="k", partition=0)
    table = pa.table({"value": [b"batch"], "partition": pa.array([3], pa.int32())})
    wanted = [{"partition": 2, "key": "k"}, {"partition": -1}, {"value": b"x" * 600, "key": "k"}]
    for each in wanted:
        with pytest.raises((InvalidRecordError, RecordTooLargeError, UnknownTopicOrPartitionError)):
            made.produce("changing", **each)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="0 to 0"):
        made.produce_batch("changing", table)
    log = process(shared).topic_log("changing")
    log.refresh()
    log.alter(lambda config: {"home": config["home"], "partitions": "3"})
    for each in wanted:
        made.produce("changing", **each)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="0 to 2"):
        made.produce_batch("changing", table)
    log.alter(lambda config: {**config, "partitions": "4"})
    made.produce_batch("changing", table)
    made.commit_transaction()
    found = read(process(shared), "changing")
    assert [value for _, value in found[3]] == [b"batch"]
    assert sum(map(len, found.values())) == 5


@BOTH
def test_full_memory_blocks_and_then_refuses_the_record(publish: str) -> None:
    """A BufferError, as in confluent-kafka; records taken before are not lost."""
    shared = world()
    made = started(shared, publish, buffer_memory=3_000, max_block_ms=2_000)
    store = cluster_of(made).store
    made.begin_transaction()
    made.produce("orders", b"0" * 200)
    store.plan = lambda verb, path: Fault.FAIL_BEFORE
    taken = 1

    def fill() -> None:
        nonlocal taken
        while taken < 100:
            made.produce("orders", b"1" * 200)
            taken += 1

    with pytest.raises(BufferError) as full:
        fill()
    assert isinstance(full.value, BufferExhaustedError)
    store.plan = lambda verb, path: Fault.NONE
    made.commit_transaction()
    assert len(values(process(shared), "orders")) == taken


def test_large_deferred_transaction_writes_few_files() -> None:
    """Memory is bounded, and files are as large as it allows, whatever batch.size is."""
    shared = world()
    made = started(shared, "deferred", buffer_memory=200_000, batch_size=1_000)
    with made.transaction():
        for number in range(4_000):
            made.produce("orders", b"%0100d" % number, key=b"%d" % number)
            assert made._accumulator.held_bytes <= 200_000 + 1_000
    log = process(shared).topic("orders")
    assert sum(len(state.batches) for state in log.view.partitions) <= 16
    assert len(values(process(shared), "orders")) == 4_000
    assert made._accumulator.held_bytes == 0


@BOTH
def test_memory_is_released_after_every_end(publish: str) -> None:
    """Bytes that are counted twice or never released would eventually block the producer."""
    shared = world()
    made = started(shared, publish)
    for end in (made.commit_transaction, made.abort_transaction, made.close):
        made.begin_transaction()
        for number in range(30):
            made.produce("orders", "v" * number, key=str(number), headers={"h": "1"})
        end()
        assert made._accumulator.held_bytes == 0
