"""The idempotent producer: sequences, resets, reports, Arrow batches, without transactions."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.cases import Some
from tests.producer.worlds import Reports, cluster_of, producer, read, values, world
from tests.world import ERRORS, process
from txnlog.errors import (
    InvalidRecordError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from txnlog.producer import Producer
from txnlog.protocol.partitioner import partition_for_key
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory
from txnlog.testing.invariants import check_cluster


def test_each_producer_has_an_id_of_its_own_and_sequences_per_partition() -> None:
    """A new producer id at each start, epoch 0, sequences from 0 (R1, R9, R10)."""
    shared = world()
    for number in range(2):
        made = producer(shared)
        for at in range(3):
            made.produce("orders", f"{number}-{at}", partition=0)
            made.flush()
    batches = process(shared).topic("orders").view.partitions[0].batches
    assert [(b.producer_epoch, b.base_sequence) for b in batches] == [(0, 0), (0, 1), (0, 2)] * 2
    assert len({b.producer_id for b in batches}) == 2


def test_idle_producer_that_expired_in_the_log_gets_a_new_id() -> None:
    """All its records were acknowledged, so none can be lost or duplicated (R8)."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "a", partition=0, on_delivery=reports)
    made.flush()
    for log in (cluster_of(made).topic("orders"),):
        log.view.sequences.clear()
        log.view.last_sequences.clear()
    made.produce("orders", "b", partition=0, on_delivery=reports)
    made.flush()
    assert reports.offsets == [("orders", 0, 0), ("orders", 0, 1)]
    assert values(process(shared), "orders") == ["a", "b"]


def test_gap_in_the_sequences_ends_the_producer() -> None:
    """Records in between are missing: to continue would hide that (R1, R7)."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "a", partition=0)
    made.flush()
    publication = made._sender.publication
    publication._next_sequences = {  # type: ignore[union-attr]
        key: value + 5
        for key, value in publication._next_sequences.items()  # type: ignore[union-attr]
    }
    made.produce("orders", "b", partition=0, on_delivery=reports)
    made.flush()
    assert reports.errors == ["OutOfOrderSequenceError"]
    with pytest.raises(OutOfOrderSequenceError):
        made.produce("orders", "c")
    assert values(process(shared), "orders") == ["a"]


def recreate(shared: SharedMemory) -> None:
    other = process(shared)
    other.delete_topic("orders")
    other.create_topic("orders", partitions=2)


def test_topic_created_again_gets_the_records_on_their_way() -> None:
    """The first batch failed with UnknownTopicIdError; it goes there under a new id (R9, R71)."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "a", partition=0, on_delivery=reports)
    made.flush()
    recreate(shared)
    for value in ("b", "c"):
        for partition in (0, 1):
            made.produce("orders", value, partition=partition, on_delivery=reports)
    made.produce("stock", "b", on_delivery=reports)
    made.flush()
    made.produce("orders", "d", partition=0, on_delivery=reports)
    made.flush()
    assert not reports.errors
    assert values(process(shared), "orders") == ["b", "c", "d", "b", "c"]
    assert values(process(shared), "stock") == ["b"]
    assert ("orders", 0, 1) in reports.offsets, "after the end of the former topic"
    check_cluster(process(shared))


def test_topic_that_was_deleted_gets_no_records() -> None:
    """Records on their way bring no topic to life; the next ones may create it."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "a")
    made.flush()
    process(shared).delete_topic("orders")
    made.produce("orders", "b", on_delivery=reports)
    made.flush()
    assert reports.errors == ["UnknownTopicIdError"]
    assert process(shared).find_topic("orders") is None
    made.produce("orders", "c", on_delivery=reports)
    made.flush()
    assert values(process(shared), "orders") == ["c"]


@pytest.mark.parametrize("fault", [Fault.NONE, *ERRORS])
def test_topic_created_again_at_any_call_gets_each_record_at_most_once(
    fault: Fault, some: Some[Any]
) -> None:
    """A lost reply may be of an append to the former topic: its file is not used again."""
    for number in some(range(12)):
        for at in {max(0, number - 1), number, number + 1}:
            shared = world()
            made, reports = producer(shared), Reports()
            made.produce("orders", "before")
            made.flush()
            plan = FaultsAt({number: fault}, interlude=partial(recreate, shared), interlude_at=at)
            cluster_of(made).store.plan = plan  # type: ignore[attr-defined]
            made.produce("orders", "mine", partition=0, on_delivery=reports)
            made.produce("orders", "mine", partition=1, on_delivery=reports)
            made.flush()
            cluster_of(made).store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
            shared.land_late()
            assert not reports.errors
            found = sorted(values(process(shared), "orders"))
            assert found in ([], ["mine"] * 2, ["before"] + ["mine"] * 2), found
            assert len(reports.offsets) == 2
            made.produce("orders", "next", partition=0)
            made.flush()
            assert "next" in values(process(shared), "orders")
            check_cluster(process(shared))


def test_topic_metadata_that_is_too_old_is_read_again() -> None:
    """An idle producer must not lose a record to a topic that was replaced last week (R71)."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "a")
    made.flush()
    other = process(shared)
    other.delete_topic("orders")
    other.create_topic("orders", partitions=2)
    shared.clock.advance_ms(301_000)
    made.produce("orders", "b", on_delivery=reports)
    made.flush()
    assert not reports.errors
    assert values(process(shared), "orders") == ["b"]


def test_missing_topic_is_created_unless_that_is_disabled() -> None:
    """As a broker with auto.create.topics.enable does."""
    shared = world()
    made = producer(shared, num_partitions=3)
    made.produce("fresh", "a")
    made.flush()
    assert process(shared).topic("fresh").partitions == 3
    with pytest.raises(UnknownTopicOrPartitionError, match="orders"):
        producer(shared, auto_create_topics_enable=False).produce("none", "a")


def test_keys_go_to_kafkas_partitions_and_other_records_stick() -> None:
    """murmur2 for keys; without one, a partition for batch.size bytes, then the next."""
    shared = world()
    process(shared).create_topic("wide", partitions=5)
    made = producer(shared, batch_size=1_000)
    for number in range(50):
        made.produce("wide", f"{number}", key=f"key-{number}")
    made.produce("wide", "asked", key="key-1", partition=4)
    made.flush()
    for partition, records in read(process(shared), "wide").items():
        for _, value in records:
            if value != b"asked":
                key = b"key-" + (value or b"")
                assert partition_for_key(key, 5) == partition
    assert b"asked" in [value for _, value in read(process(shared), "wide")[4]]
    for _ in range(50):
        made.produce("wide", b"x" * 103)
    made.flush()
    counts = [
        len([v for _, v in r if v == b"x" * 103]) for r in read(process(shared), "wide").values()
    ]
    assert sorted(counts) == [10] * 5


def test_callbacks_come_from_poll_and_flush_with_the_whole_record() -> None:
    """In the user's thread, in order; one that raises loses no other."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce(
        "orders",
        "väl",
        key=b"k",
        partition=1,
        timestamp=1_700_000_000_123,
        headers={"a": "1", "b": None},
        on_delivery=reports,
    )
    made.produce("orders", None, key="tombstone", partition=1, headers=[("a", b"2")])
    assert len(made) == 2
    made.flush()
    _, message = reports.received[0]
    assert message.value() == "väl".encode()
    assert message.key() == b"k"
    assert message.timestamp() == (1, 1_700_000_000_123)
    assert message.headers() == [("a", b"1"), ("b", None)]
    assert (message.topic(), message.partition(), message.offset()) == ("orders", 1, 0)
    assert len(made) == 0

    def fail_at_two(error: object, message: object) -> None:
        reports(error, message)  # type: ignore[arg-type]
        if len(reports.received) == 3:
            raise ZeroDivisionError

    for number in range(4):
        made.produce("orders", str(number), partition=0, on_delivery=fail_at_two)
    with pytest.raises(ZeroDivisionError):
        made.flush()
    made.poll()
    assert [m.value() for _, m in reports.received[1:]] == [b"0", b"1", b"2", b"3"]


def test_arguments_of_a_wrong_type_are_refused_at_once() -> None:
    """A record that cannot be written must not reach the sender (R60)."""
    made = producer(world())
    for call in (
        lambda: made.produce("orders", 7),  # type: ignore[arg-type]
        lambda: made.produce("orders", key=1.5),  # type: ignore[arg-type]
        lambda: made.produce("orders", headers=[(b"a", b"b")]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError):
            call()
    assert len(made) == 0


def test_arrow_table_keeps_rows_columns_and_order() -> None:
    """Every column of a record, in any type that can be cast to it."""
    shared = world()
    made, reports = producer(shared), Reports()
    made.produce("orders", "first", partition=1)
    table = pa.table(
        {
            "value": pa.array(["a", "b", None], pa.large_string()),
            "key": pa.array([b"k", None, b"k"]),
            "partition": pa.array([1, 1, None], pa.int64()),
            "timestamp": pa.array([1_700_000_000_000, None, 5], pa.int64()),
        }
    )
    made.produce_batch("orders", table, on_delivery=reports)
    made.produce("orders", "last", partition=1)
    made.flush()
    found = read(process(shared), "orders")
    home = partition_for_key(b"k", 2)
    assert [v for _, v in found[1] if v is not None] == [b"first", b"a", b"b", b"last"]
    assert None in [v for _, v in found[home]]
    assert all(error is None for error, _ in reports.received)


def test_arrow_table_that_cannot_be_records_names_the_column() -> None:
    """None of its rows is taken (R60, R65)."""
    shared = world()
    made = producer(shared)
    wrong = [
        ({"key": ["a"]}, InvalidRecordError, "value"),
        ({"value": ["a"], "other": ["b"]}, InvalidRecordError, "other"),
        ({"value": [{"a": 1}]}, InvalidRecordError, "value"),
        ({"value": ["a"], "timestamp": [-1]}, InvalidRecordError, "1970"),
        ({"value": ["a"], "partition": [2]}, UnknownTopicOrPartitionError, "0 to 1"),
        ({"value": [b"x" * 2_000_000]}, RecordTooLargeError, "Row 0"),
    ]
    for columns, error, named in wrong:
        with pytest.raises(error, match=named):
            made.produce_batch("orders", pa.table(columns))
    made.flush()
    assert values(process(shared), "orders") == []


def test_thread_sends_after_linger_ms_and_ends_with_its_producer() -> None:
    """No flush is needed; and a producer without references must not leave its thread behind."""
    shared = world()
    cluster = process(shared)
    cluster.store.clock = cluster.coordinator._store.clock
    made = Producer({"txnlog.root": "memory://", "linger.ms": 0}, cluster=cluster)
    reports = Reports()
    before = {thread.ident for thread in threading.enumerate()}
    made.produce("orders", "a", on_delivery=reports)
    assert made.poll(10) == 1
    assert values(process(shared), "orders") == ["a"]
    thread = made._sender._thread
    assert thread is not None
    assert thread.ident in before
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    thread.join(600)
    assert not thread.is_alive()
