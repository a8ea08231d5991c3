"""Transactions of a producer by example, in both publications."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from tests.producer.worlds import (
    BOTH,
    GROUP,
    Reports,
    cluster_of,
    group,
    input_at,
    producer,
    read,
    started,
    values,
    world,
)
from tests.world import check_settled, process, recover, state_of
from txnlog.errors import (
    ClientStateError,
    InvalidTxnStateError,
    OperationTimedOutError,
    TransactionAbortableError,
    TxnLogError,
)
from txnlog.producer import Producer
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault

# --- What readers and callbacks see ---------------------------------------------------------------


def test_deferred_records_are_in_no_topic_before_the_commit() -> None:
    """Readers of either isolation level see none, and the LSO does not wait (R12, R15, R29)."""
    shared = world()
    made, reports = started(shared, "deferred"), Reports()
    made.begin_transaction()
    made.produce("orders", "a", key="k", on_delivery=reports)
    made.flush()
    made.poll()
    assert values(process(shared), "orders", uncommitted=True) == []
    assert state_of(process(shared)) is TransactionState.EMPTY
    assert reports.received == []
    made.commit_transaction()
    made.poll()
    assert values(process(shared), "orders") == ["a"]
    assert len(reports.offsets) == 1


def test_eager_records_are_read_uncommitted_before_the_commit() -> None:
    """AddPartitions comes before the first data; markers settle the data (R12, R18, R29)."""
    shared = world()
    made, reports = started(shared, "eager"), Reports()
    made.begin_transaction()
    assert state_of(process(shared)) is TransactionState.EMPTY
    made.produce("orders", "a", partition=0, on_delivery=reports)
    assert made.flush() == 0
    assert reports.offsets == [("orders", 0, 0)]
    assert state_of(process(shared)) is TransactionState.ONGOING
    assert values(process(shared), "orders") == []
    assert values(process(shared), "orders", uncommitted=True) == ["a"]
    made.commit_transaction()
    assert values(process(shared), "orders") == ["a"]
    check_settled(shared)


@BOTH
def test_delivery_reports_give_the_offsets_that_readers_see(publish: str) -> None:
    """Each callback gets the partition and offset of its record (R17)."""
    shared = world()
    made, reports = started(shared, publish), Reports()
    for number in range(3):
        with made.transaction():
            for at in range(7):
                made.produce("orders", f"{number}-{at}", key=f"k{at}", on_delivery=reports)
                if at == 3:
                    made.flush()
    made.poll()
    reported = {(m.partition(), m.offset()): m.value() for e, m in reports.received if e is None}
    found = {
        (partition, offset): value
        for partition, records in read(process(shared), "orders").items()
        for offset, value in records
    }
    assert reported == found
    assert len(reported) == 21
    assert reports.received[0][1].key() is not None


@BOTH
def test_records_of_one_key_keep_their_order(publish: str) -> None:
    """One partition, in the order of the calls, across files and transactions."""
    shared = world()
    made = started(shared, publish, buffer_memory=2_000)
    for number in range(3):
        with made.transaction():
            for at in range(40):
                made.produce("orders", f"{number:02}-{at:02}", key="one")
    found = values(process(shared), "orders")
    assert found == sorted(found)
    assert len(found) == 120


@BOTH
def test_abort_discards_buffered_and_written_records(publish: str) -> None:
    """No reader sees them; the delivery of each record fails (R16, R40)."""
    shared = world()
    made, reports = started(shared, publish), Reports()
    made.begin_transaction()
    made.produce("orders", "flushed", on_delivery=reports)
    made.flush()
    made.produce("orders", "buffered", on_delivery=reports)
    made.abort_transaction()
    made.poll()
    expected = 2 if publish == "deferred" else 1
    assert reports.errors == ["TransactionAbortedError"] * expected
    assert values(process(shared), "orders") == []
    with made.transaction():
        made.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]
    check_settled(shared)


@BOTH
def test_empty_transaction_writes_nothing(publish: str) -> None:
    """begin is local, and so is the end of a transaction without data (R29)."""
    shared = world()
    made = started(shared, publish)
    store = cluster_of(made).store
    before = len(store.calls)
    with made.transaction():
        pass
    made.begin_transaction()
    made.abort_transaction()
    assert len(store.calls) == before


# --- Calls out of order, and errors ---------------------------------------------------------------


@BOTH
def test_calls_out_of_order_say_what_to_call(publish: str) -> None:
    """Send before begin, begin twice, commit without begin, init twice (R39)."""
    made = producer(world(), "tx", publish)
    for call in (made.begin_transaction, made.commit_transaction, lambda: made.produce("orders")):
        with pytest.raises(InvalidTxnStateError, match="init_transactions"):
            call()
    made.init_transactions()
    for call in (made.init_transactions, made.commit_transaction, lambda: made.produce("orders")):
        with pytest.raises(InvalidTxnStateError, match="begin_transaction"):
            call()
    made.begin_transaction()
    with pytest.raises(InvalidTxnStateError, match="commit_transaction"):
        made.begin_transaction()
    made.commit_transaction()
    idle = producer(world())
    with pytest.raises(InvalidTxnStateError, match=r"transactional\.id"):
        idle.begin_transaction()


def test_closed_producer_refuses_every_call() -> None:
    """Use after close is an error of its own; closing twice is none (R39)."""
    made = producer(world())
    made.close()
    made.close()
    for call in (lambda: made.produce("orders"), made.flush, made.poll, made.begin_transaction):
        with pytest.raises(ClientStateError, match="closed"):
            call()


@BOTH
def test_close_aborts_an_open_transaction(publish: str) -> None:
    """close() does not commit (R40)."""
    shared = world()
    reports = Reports()
    with started(shared, publish) as made:
        made.begin_transaction()
        made.produce("orders", "a", on_delivery=reports)
    assert reports.errors == ["TransactionAbortedError"]
    assert values(process(shared), "orders") == []
    check_settled(shared)


@BOTH
def test_producer_without_references_is_collected_in_an_open_transaction(publish: str) -> None:
    """None of its parts refers to it, so its thread ends, and memory is freed."""
    config = {"txnlog.root": "memory://", "transactional.id": "tx", "transaction.publish": publish}
    made = Producer(config, cluster=process(world()))
    made.init_transactions()
    made.begin_transaction()
    made.produce("orders", "a")
    thread = made._sender._thread
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


@BOTH
def test_block_that_raises_aborts_and_raises_again(publish: str) -> None:
    """`with producer.transaction()` leaves no transaction open (R42)."""
    shared = world()
    made = started(shared, publish)

    def fail() -> None:
        with made.transaction():
            made.produce("orders", "a")
            made.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with made.transaction():
        made.produce("orders", "b")
    assert values(process(shared), "orders") == ["b"]


@BOTH
def test_commit_fails_when_a_send_failed_and_only_abort_is_left(publish: str) -> None:
    """The topic is deleted and created again during the transaction (R40, R71)."""
    shared = world()
    made, reports = started(shared, publish), Reports()
    made.begin_transaction()
    made.produce("orders", "a", on_delivery=reports)
    other = process(shared)
    other.delete_topic("orders")
    other.create_topic("orders", partitions=2)
    with pytest.raises(TxnLogError) as failed:
        made.commit_transaction()
    assert failed.value.abortable
    for call in (made.commit_transaction, made.begin_transaction, lambda: made.produce("orders")):
        with pytest.raises(TransactionAbortableError, match="abort_transaction"):
            call()
    made.abort_transaction()
    made.poll()
    assert len(reports.errors) == 1
    with made.transaction():
        made.produce("orders", "b")
    assert values(process(shared), "orders") == ["b"]
    check_settled(shared)


@BOTH
def test_commit_without_permission_for_a_topic_aborts(publish: str) -> None:
    """Nothing becomes visible; other topics can still be written (R37, R68)."""
    shared = world()
    made = started(shared, publish)
    store = cluster_of(made).store

    def deny(verb: str, path: str) -> Fault:
        is_denied = verb == "put" and path.startswith("orders/part")
        return Fault.DENY if is_denied else Fault.NONE

    made.begin_transaction()
    made.produce("stock", "a")
    made.produce("orders", "a")
    store.plan = deny
    with pytest.raises(TransactionAbortableError, match="No permission"):
        made.commit_transaction()
    made.abort_transaction()
    store.plan = lambda verb, path: Fault.NONE
    with made.transaction():
        made.produce("stock", "b")
    assert values(process(shared), "stock") == ["b"]
    check_settled(shared)


@BOTH
def test_commit_that_timed_out_can_only_be_repeated(publish: str) -> None:
    """Abort is refused, since the commit may have landed (R41)."""
    shared = world()
    made = started(shared, publish)
    store = cluster_of(made).store
    made.begin_transaction()
    made.produce("orders", "a")
    made.flush()
    store.plan = lambda verb, path: (
        Fault.LOSE_REPLY if "__transaction_state" in path else Fault.NONE
    )
    with pytest.raises(OperationTimedOutError) as slow:
        made.commit_transaction(timeout=5)
    assert slow.value.retriable
    store.plan = lambda verb, path: Fault.NONE
    with pytest.raises(InvalidTxnStateError, match="commit_transaction"):
        made.abort_transaction()
    made.commit_transaction()
    assert values(process(shared), "orders") == ["a"]
    check_settled(shared)


@BOTH
def test_abort_that_timed_out_can_only_be_repeated(publish: str) -> None:
    """Commit is refused after it (R41)."""
    shared = world()
    made = started(shared, publish)
    store = cluster_of(made).store
    made.begin_transaction()
    made.produce("orders", "a")
    made.flush()
    made.send_offsets_to_transaction(input_at(5), group())
    store.plan = lambda verb, path: Fault.FAIL_BEFORE
    if publish == "deferred":
        made.abort_transaction(timeout=5)
    else:
        with pytest.raises(OperationTimedOutError):
            made.abort_transaction(timeout=5)
        with pytest.raises(InvalidTxnStateError, match="abort_transaction"):
            made.commit_transaction()
        store.plan = lambda verb, path: Fault.NONE
        made.abort_transaction()
    store.plan = lambda verb, path: Fault.NONE
    assert values(process(shared), "orders") == []
    assert recover(shared).groups.fetch(GROUP) == {}


@BOTH
def test_program_that_seeds_random_does_not_overwrite_its_earlier_files(publish: str) -> None:
    """Names from a seeded generator repeat in the next run, and an acknowledged record would be
    lost: a committed file is never written again (R56).
    """
    shared = world()
    for run in ("first", "second"):
        random.seed(7)
        with started(shared, publish).transaction() as made:
            made.produce("orders", run, partition=0)
    assert values(process(shared), "orders") == ["first", "second"]
