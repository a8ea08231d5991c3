"""Flags of what a producer's calls raise: what the handler is told to do, the producer lets it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.coordinator.processes import process
from tests.producer.worlds import BOTH, cluster_of, producer, started, values, world
from txnlog.errors import (
    FLAGS,
    CorruptLogError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTxnStateError,
    OperationTimedOutError,
    RecordTooLargeError,
    TransactionAbortableError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.producer import Producer
from txnlog.producing import arrow_records
from txnlog.storage.delta.log_files import commit_path
from txnlog.testing.faults import Fault

REFUSED: list[tuple[str, Callable[[Producer], object], type[TxnLogError]]] = [
    ("too large", lambda p: p.produce("orders", b"x" * 2_000_000), RecordTooLargeError),
    ("too large, rows", lambda p: p.produce_batch("orders", rows(b"x" * 2_000_000)),
     RecordTooLargeError),
    ("no time", lambda p: p.produce("orders", "v", timestamp=-1), InvalidRecordError),
    ("columns", lambda p: p.produce_batch("orders", pa.table({"v": ["a"]})), InvalidRecordError),
    ("partition", lambda p: p.produce("orders", "v", partition=99), UnknownTopicOrPartitionError),
    ("name", lambda p: p.produce("__internal", "v"), InvalidTopicError),
    ("no topic", lambda p: p.produce("nothing", "v"), UnknownTopicOrPartitionError),
    ("damaged topic", lambda p: p.produce("damaged", "v"), CorruptLogError),
    ("order", lambda p: p.begin_transaction(), InvalidTxnStateError),
    ("order", lambda p: p.init_transactions(), InvalidTxnStateError),
]  # fmt: skip


def rows(*found: bytes) -> pa.Table:
    return pa.table({"value": list(found)})


def flags(error: TxnLogError) -> list[str]:
    return [flag for flag in FLAGS if getattr(error, flag)]


@BOTH
@pytest.mark.parametrize(("call", "error"), [(call, error) for _, call, error in REFUSED])
def test_call_that_took_nothing_harms_no_transaction_and_says_so(
    publish: str, call: Callable[[Producer], object], error: type[TxnLogError]
) -> None:
    """A handler that heeds `fatal` or `abortable` would give up healthy work (R39, R42)."""
    shared = world()
    process(shared).create_topic("damaged")
    made = started(shared, publish, auto_create_topics_enable=False)
    cluster_of(made).store.put(commit_path("damaged", 0), b'{"add": {"pa')
    with made.transaction():
        made.produce("orders", "before")
        with pytest.raises(error) as refused:
            call(made)
        assert flags(refused.value) == []
        made.produce("orders", "after")
    assert sorted(values(process(shared), "orders")) == ["after", "before"]


def test_call_before_init_transactions_leaves_the_producer_usable() -> None:
    """Kafka's IllegalStateException is not fatal either (R39)."""
    made = producer(world(), "tx")
    for call in (made.begin_transaction, made.commit_transaction, made.abort_transaction):
        with pytest.raises(InvalidTxnStateError, match="init_transactions") as refused:
            call()
        assert flags(refused.value) == []
    made.init_transactions()
    with made.transaction():
        made.produce("orders", "v")


@BOTH
def test_table_of_which_a_part_was_taken_fails_the_transaction(
    publish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit would publish half a table; calling again would write the half twice (R40)."""
    monkeypatch.setattr(arrow_records, "SLICE_BYTES_MAX", 100)
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    half = rows(*[b"x" * 60] * 4, b"y" * 2_000_000)
    with pytest.raises(TransactionAbortableError, match="larger") as failed:
        made.produce_batch("orders", half)
    assert isinstance(failed.value.__cause__, RecordTooLargeError)
    with pytest.raises(TransactionAbortableError):
        made.commit_transaction()
    made.abort_transaction()
    assert values(process(shared), "orders") == []


def test_table_of_which_a_part_was_taken_outside_a_transaction_says_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sends it again must leave out what is there (R9)."""
    monkeypatch.setattr(arrow_records, "SLICE_BYTES_MAX", 100)
    shared = world()
    made = producer(shared)
    with pytest.raises(RecordTooLargeError) as failed:
        made.produce_batch("orders", rows(*[b"x" * 60] * 4, b"y" * 2_000_000))
    made.flush()
    assert flags(failed.value) == []
    assert failed.value.rows_taken == len(values(process(shared), "orders")) > 0


def test_record_that_was_not_delivered_in_time_may_not_be_produced_again_blindly() -> None:
    """It may have been written all the same: librdkafka's _MSG_TIMED_OUT is not retriable."""
    shared = world()
    told: list[TxnLogError | None] = []
    made = producer(shared, delivery_timeout_ms=1_000, linger_ms=0)
    made.produce("orders", "v", on_delivery=lambda error, _: told.append(error))
    store = cluster_of(made).store
    store.plan = lambda verb, path: Fault.FAIL_BEFORE if path.startswith("orders/") else Fault.NONE
    made.flush()
    assert isinstance(told[0], OperationTimedOutError)
    assert flags(told[0]) == []
