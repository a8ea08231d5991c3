"""Records that the producer has taken, but that cannot become batches, or are incomplete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.producer.worlds import Reports, producer, values, world
from txnlog.errors import InvalidRecordError, TransactionAbortableError
from txnlog.producing import batching


@pytest.mark.parametrize("publish", ["deferred", "eager"])
@pytest.mark.parametrize("timestamp", [2**70, 2**62, -1])
def test_impossible_timestamp_is_refused_before_the_record_is_taken(
    publish: str, timestamp: int
) -> None:
    """It would fail, or become another time, in the data file."""
    made = producer(world(), "p", publish)
    made.init_transactions()
    with made.transaction():
        made.produce("orders", "a")
        with pytest.raises(InvalidRecordError, match="milliseconds"):
            made.produce("orders", "b", timestamp=timestamp)
        with pytest.raises(TypeError, match="milliseconds"):
            made.produce("orders", "b", timestamp="2026-01-01")  # type: ignore[arg-type]
    assert values(made._outlet.cluster, "orders") == ["a"]


@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_transaction_with_records_that_cannot_become_batches_never_commits(
    publish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bug lost records, a second commit must not succeed without them (R40)."""
    made = producer(world(), "p", publish)
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "a")
    with monkeypatch.context() as patch:
        patch.setattr(batching, "_of_rows", lambda *_: 1 // 0)
        with pytest.raises(TransactionAbortableError, match="ZeroDivisionError"):
            made.commit_transaction()
    with pytest.raises(TransactionAbortableError):
        made.commit_transaction()
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "b")
    assert values(made._outlet.cluster, "orders") == ["b"]
    assert made._accumulator.held_bytes == 0


def test_interrupt_in_the_middle_of_produce_leaves_no_incomplete_record() -> None:
    """Control-C comes anywhere: no value must get the timestamp or headers of the next record."""
    made = producer(world(), "p", "deferred")
    made.init_transactions()
    made.begin_transaction()
    accumulator = made._accumulator
    now_ms = accumulator._now_ms

    def interrupted() -> int:
        raise KeyboardInterrupt

    sent = []
    for number in range(20):
        accumulator._now_ms = interrupted if number % 3 == 1 else now_ms
        with contextlib.suppress(KeyboardInterrupt):
            made.produce("orders", f"v{number}")
            sent.append(f"v{number}")
    made.commit_transaction()
    assert sorted(values(made._outlet.cluster, "orders")) == sorted(sent)


@pytest.mark.parametrize("steps", range(5))
def test_next_record_gets_no_part_of_an_incomplete_one(steps: int) -> None:
    """Any parts that were stored: its timestamp, partition, headers, callback, key."""
    made = producer(world(), "p", "deferred")
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "first", key="k")
    rows = made._accumulator.buffers["orders"]
    unexpected, reports = Reports(), Reports()
    rows.timestamps_ms.append(5)
    put: list[Callable[[], None]] = [
        lambda: rows.partitions.update({1: 1}),
        lambda: rows.headers.update({1: [("torn", b"x")]}),
        lambda: rows.callbacks.update({1: unexpected}),
        lambda: rows.keys.append(b"torn"),
    ]
    for step in put[:steps]:
        step()
    made.produce("orders", "second", key="k", timestamp=7_000, partition=0, on_delivery=reports)
    made.produce("orders", "third", key="k", partition=0, on_delivery=reports)
    made.commit_transaction()
    made.flush()
    assert sorted(values(made._outlet.cluster, "orders")) == ["first", "second", "third"]
    assert unexpected.received == []
    [(_, second), (_, third)] = reports.received
    assert (second.key(), second.partition(), second.headers()) == (b"k", 0, None)
    assert second.timestamp()[1] == 7_000
    assert (third.value(), third.headers()) == (b"third", None)


def test_incomplete_record_at_the_end_is_dropped() -> None:
    """Its `produce` has not returned."""
    made = producer(world(), "p", "deferred")
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "first", key="k")
    rows = made._accumulator.buffers["orders"]
    rows.timestamps_ms.append(5)
    rows.keys.append(b"torn")
    made.commit_transaction()
    assert values(made._outlet.cluster, "orders") == ["first"]
