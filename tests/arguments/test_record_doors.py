"""Invalid records, time-outs and states are rejected at the call that gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.arguments.cold_reader import read_everything
from tests.producer.worlds import Reports, producer, started
from tests.world import process, world
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTopicError,
)
from txnlog.messages import TopicPartition
from txnlog.storage.batches.records import HEADERS_TYPE
from txnlog.storage.tables import offset_lookup as timestamps
from txnlog.testing.faults import SharedMemory


def consumer(shared: SharedMemory) -> Consumer:
    """A consumer of `orders` that is a member of its group."""
    made = Consumer({"group.id": "readers"}, cluster=process(shared), background=False)
    made.assign([TopicPartition("orders", 0, 0)])
    return made


# --- Records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [1.0, True, False, np.float64(1), "1", None, float("nan")])
@pytest.mark.parametrize("name", [None, "tx"])
def test_partition_of_a_wrong_type_is_refused_at_the_call(partition: Any, name: Any) -> None:
    """produce(partition=1.0) stopped the sender thread, and no callback was called."""
    shared = world()
    made, reports = producer(shared, name), Reports()
    if name:
        made.init_transactions()
        made.begin_transaction()
    for _ in range(2):
        with pytest.raises(TypeError, match="partition"):
            made.produce("orders", "lost", partition=partition, on_delivery=reports)
        made.produce("orders", "kept", partition=np.int64(1), on_delivery=reports)
    made.flush() if name is None else made.commit_transaction()
    made.poll(0)
    assert reports.offsets == [("orders", 1, 0), ("orders", 1, 1)]
    read_everything(shared)


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "\ud800"},
        {"key": "\udfff"},
        {"headers": {"h": "\ud800"}},
        {"headers": {"\ud800": b"x"}},
        {"headers": [("h", 5)]},
        {"headers": "text"},
        {"headers": 5},
        {"timestamp": 1.0},
        {"timestamp": True},
        {"timestamp": 0.0},
        {"timestamp": 2**63},
        {"timestamp": -1},
        {"on_delivery": "print"},
        {"callback": 5},
        {"value": 5},
        {"key": 5.0},
        {"topic": b"orders"},
        {"topic": None},
        {"topic": ["orders"]},
        {"topic": "x" * 250},
        {"topic": "\ud800"},
    ],
)
def test_invalid_record_is_refused_at_the_call(wrong: dict[str, Any]) -> None:
    """Later the caller gets no error, and the other records of the batch would fail, too."""
    shared = world()
    made = producer(shared)
    given = {"topic": "orders", "value": b"x", **wrong}
    with pytest.raises((TypeError, InvalidRecordError, InvalidTopicError)):
        made.produce(**given)
    made.produce("orders", "kept", timestamp=None)  # type: ignore[arg-type]
    assert made.flush() == 0
    assert read_everything(shared).records["orders"] == [b"kept"]


@pytest.mark.parametrize(
    "columns",
    [
        {"partition": pa.array([1.0])},
        {"partition": pa.array([True])},
        {"partition": pa.array(["1"])},
        {"partition": pa.array([2**31])},
        {"timestamp": pa.array([2**62])},
        {"timestamp": pa.array([True])},
        {"timestamp": pa.array([2**60], pa.timestamp("s", "UTC"))},
        {"timestamp": pa.array([1], pa.timestamp("us")).dictionary_encode()},
        {"headers": pa.array([[{"key": "h", "value": 5}]])},
        {"headers": pa.array([[{"key": None, "value": b"v"}]], HEADERS_TYPE)},
        {"headers": pa.array([[None]], HEADERS_TYPE)},
        {"headers": pa.array([[None]])},
        {"headers": pa.array([[{"key": 5, "value": b"v"}]])},
        {"headers": pa.array([[{"key": True, "value": b"v"}]])},
        {"headers": pa.array([[{"name": "h", "value": b"v"}]])},
        {"headers": pa.array([[{"key": "h", "value": b"v", "more": 1}]])},
        {"headers": pa.array([["h"]])},
        {"headers": pa.array(["h"])},
    ],
)
def test_arrow_column_of_a_wrong_type_is_refused(columns: dict[str, pa.Array]) -> None:
    """Arrow would convert True to partition 1, overflow a large time, and keep nameless headers."""
    shared = world()
    made = producer(shared)
    with pytest.raises(InvalidRecordError):
        made.produce_batch("orders", pa.table({"value": pa.array([b"x"]), **columns}))
    assert made.flush() == 0
    assert read_everything(shared).records["orders"] == []


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"v"}])
def test_headers_without_a_key_are_refused_with_their_row(header: Any) -> None:
    """A consumer's copy with produce(headers=m.headers()) raised TypeError, each time again."""
    made = producer(world())
    good = {"key": "h", "value": None}
    column = pa.array([[good], None, [], [good, good], [good, header], [header]], HEADERS_TYPE)
    for start, row in ((0, 4), (2, 2), (5, 0)):
        part = pa.table({"value": pa.array([b"x"] * (6 - start)), "headers": column.slice(start)})
        with pytest.raises(InvalidRecordError, match=f"row {row} has a header without a key"):
            made.produce_batch("orders", part)
    assert made.flush() == 0


def test_arrow_headers_of_other_types_are_taken() -> None:
    """Other libraries have large lists, categories, and the fields in another order."""
    shared = world()
    made = producer(shared)
    wide = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    text = pa.list_(
        pa.struct([("key", pa.dictionary(pa.int8(), pa.string())), ("value", pa.null())])
    )
    for kind in (HEADERS_TYPE, wide, text):
        value = None if kind is text else b"v"
        headers = pa.array([[{"key": "h", "value": value}], None], kind)
        table = pa.table({"value": ["x", "y"], "partition": [0, 0], "headers": headers})
        made.produce_batch("orders", table)
    assert made.flush() == 0
    found = [message.headers() for message in consumer(shared).consume(6, 1)]
    assert found == [[("h", b"v")], None, [("h", b"v")], None, [("h", None)], None]


def test_arrow_headers_with_invalid_utf8_are_refused() -> None:
    """Arrow does not validate the array; every reader of the file would fail."""
    shared = world()
    made = producer(shared)
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    struct = pa.StructArray.from_arrays([broken, pa.array([b"v"])], names=["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), struct)
    with pytest.raises(InvalidRecordError, match="headers"):
        made.produce_batch("orders", pa.table({"value": pa.array([b"x"]), "headers": headers}))


def test_state_of_another_type_completes_nothing() -> None:
    """The state as bytes differs from the state, and would abort a prepared transaction."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "kept")
    state = made.prepare_transaction()
    with pytest.raises(TypeError, match="state"):
        made.complete_transaction(state.encode())  # type: ignore[arg-type]
    assert made.complete_transaction(state)
    assert read_everything(shared).records["orders"] == [b"kept"]


@pytest.mark.parametrize("timeout", ["1", True, b"1", float("nan"), [1], 1j])
def test_timeout_that_is_not_a_number_is_refused(timeout: Any) -> None:
    """A NaN never expires, or always."""
    shared = world()
    reader, made, tx = consumer(shared), producer(shared), started(shared)
    tx.begin_transaction()
    calls: list[Callable[[], Any]] = [
        lambda: reader.poll(timeout),
        lambda: reader.consume(1, timeout),
        lambda: reader.committed([TopicPartition("orders", 0)], timeout),
        lambda: made.poll(timeout),
        lambda: made.flush(timeout),
        lambda: tx.commit_transaction(timeout),
    ]
    for call in calls:
        with pytest.raises((TypeError, ConfigError), match="timeout"):
            call()


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", 2**31])
def test_invalid_number_of_messages_is_refused(count: Any) -> None:
    """consume(1.0) and consume(-1) waited for ever."""
    reader = consumer(world())
    for call in (reader.consume, reader.consume_batch):
        if count != 2**31 or call == reader.consume:
            with pytest.raises((TypeError, ConfigError), match="num_"):
                call(count)
    assert reader.consume(0) == []
    assert reader.consume_batch(0).num_rows == 0


@pytest.mark.parametrize(("time_ms", "found"), [(2**63 - 1, -1), (-(2**63), 0), (2**62, -1)])
def test_offset_lookup_by_a_time_beyond_microseconds_works(
    time_ms: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow cannot compare with it when a file without timestamps in its header is searched."""
    shared = world()
    made = producer(shared)
    made.produce("orders", "a", partition=0)
    made.flush()

    def unknown(batches: Iterable[object], *_: object) -> Iterator[tuple[object, None]]:
        return ((header, None) for header in batches)

    monkeypatch.setattr(timestamps, "candidates", unknown)
    [at] = consumer(shared).offsets_for_times([TopicPartition("orders", 0, time_ms)])
    assert at.offset == found
