"""Flags of the errors of a producer's calls: they ask for a call that the state allows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.producer.worlds import BOTH, TOPICS, cluster_of, producer, started, values, world
from tests.world import faults, process
from txnlog.coordinator.sweeper import Sweeper
from txnlog.coordinator.transactions import TransactionCoordinator
from txnlog.errors import (
    FLAGS,
    CommitStateUnknownError,
    CorruptLogError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTxnStateError,
    OperationTimedOutError,
    RecordTooLargeError,
    StorageError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.producer import Producer
from txnlog.producing import arrow_records
from txnlog.storage.delta.log_files import commit_path
from txnlog.testing.faults import Fault, no_faults

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
def test_refused_call_has_no_flags_and_the_transaction_commits(
    publish: str, call: Callable[[Producer], object], error: type[TxnLogError]
) -> None:
    """A handler that reads `fatal` or `abortable` would end a healthy transaction (R39, R42)."""
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
def test_partly_accepted_table_fails_the_transaction(
    publish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit would publish half a table; a repeated call would write that half twice (R40)."""
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


def test_partly_accepted_table_outside_a_transaction_reports_the_rows_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller that sends the table again must omit these rows (R9)."""
    monkeypatch.setattr(arrow_records, "SLICE_BYTES_MAX", 100)
    shared = world()
    made = producer(shared)
    with pytest.raises(RecordTooLargeError) as failed:
        made.produce_batch("orders", rows(*[b"x" * 60] * 4, b"y" * 2_000_000))
    made.flush()
    assert flags(failed.value) == []
    assert failed.value.rows_taken == len(values(process(shared), "orders")) > 0


def test_commit_names_every_file_that_cannot_be_written() -> None:
    """Of the second an operator learned after mending the first (D59)."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    for topic in TOPICS:
        made.produce(topic, "v")
    store = cluster_of(made).store
    store.plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith(TOPICS) else Fault.NONE
    )
    with pytest.raises(TransactionAbortableError) as failed:
        made.commit_transaction()
    cause = failed.value.__cause__
    assert isinstance(cause, TopicAuthorizationError)
    assert len(cause.errors) == len(TOPICS)
    assert all(topic in failed.value.message for topic in TOPICS)
    made.abort_transaction()


def test_topic_created_again_is_looked_up_again_beside_another_failure() -> None:
    """With the id of the deleted topic every later transaction would fail (R71)."""
    shared = world()
    made, admin = started(shared), process(shared)
    made.begin_transaction()
    for topic in TOPICS:
        made.produce(topic, "old")
    admin.delete_topic("orders")
    admin.create_topic("orders", partitions=2)
    store = cluster_of(made).store
    store.plan = lambda verb, path: (
        Fault.FAIL_BEFORE if path.startswith("stock/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError, match="2 parts failed") as failed:
        made.commit_transaction()
    assert flags(failed.value) == ["abortable"]
    store.plan = no_faults
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "new")
    assert values(process(shared), "orders") == ["new"]


def test_delivery_timeout_is_not_retriable() -> None:
    """The record may have been written: librdkafka's _MSG_TIMED_OUT is not retriable either."""
    shared = world()
    errors: list[TxnLogError | None] = []
    made = producer(shared, delivery_timeout_ms=1_000, linger_ms=0)
    made.produce("orders", "v", on_delivery=lambda error, _: errors.append(error))
    store = cluster_of(made).store
    store.plan = lambda verb, path: Fault.FAIL_BEFORE if path.startswith("orders/") else Fault.NONE
    made.flush()
    assert isinstance(errors[0], OperationTimedOutError)
    assert flags(errors[0]) == []


def test_commit_that_may_be_decided_says_repeat_and_its_repetition_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error had no flag where the row could not be read, so a handler called abort, which was
    refused: only a commit may follow (R39).
    """
    shared = world()
    made = started(shared, "eager", transaction_timeout_ms=60_000)
    made.begin_transaction()
    made.produce("orders", "v")
    made.flush()
    sweeper = Sweeper(process(shared), interval_ms=61_000)
    sweeper.sweep()
    shared.clock.advance_ms(61_000)
    sweeper.sweep()

    def unreadable(*_: object) -> bool:
        raise StorageError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionCoordinator, "is_committed", unreadable)
        with pytest.raises(CommitStateUnknownError, match="commit_transaction.. again") as unknown:
            made.commit_transaction()
    assert flags(unknown.value) == ["retriable"]
    with pytest.raises(InvalidTxnStateError):
        made.abort_transaction()
    with pytest.raises(TransactionAbortableError, match="timed out") as told:
        made.commit_transaction()
    assert flags(told.value) == ["abortable"]
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]


def test_error_after_the_decision_says_repeat() -> None:
    """A handler that aborts what has no flag would have met an error of its own (R36, R39)."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "v")
    store = faults(cluster_of(made))
    store.plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log/") else Fault.NONE
    )
    with pytest.raises(TopicAuthorizationError) as denied:
        made.commit_transaction()
    assert flags(denied.value) == ["retriable"]
    store.plan = no_faults
    made.commit_transaction()
    assert values(process(shared), "orders") == ["v"]
