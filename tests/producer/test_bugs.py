"""A bug, or an exception of a library, while records are sent: it fails only what met it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.producer.worlds import BOTH, Reports, cluster_of, producer, started, values, world
from tests.world import process
from txnlog.errors import TransactionAbortableError, UnexpectedError
from txnlog.producer import Producer
from txnlog.producing import requests, sender
from txnlog.testing.faults import Fault, FaultyStore, Plan, SharedMemory


class BugError(Exception):
    """An exception that no code expects."""


def failing(part: str, times: int = 1) -> Plan:
    """A store's plan: the next `times` puts to a path that contains `part` raise BugError."""
    left = times

    def plan(verb: str, path: str) -> Fault:
        nonlocal left
        if verb == "put" and part in path and left:
            left -= 1
            raise BugError(path)
        return Fault.NONE

    return plan


def store_of(made: Producer) -> FaultyStore:
    store = cluster_of(made).store
    assert isinstance(store, FaultyStore)
    return store


@pytest.mark.parametrize("part", ["orders/part-", "orders/_delta_log/"])
def test_bug_fails_the_request_that_met_it_and_no_other(part: str) -> None:
    """Endless retries would call no callback, make flush raise, and block later records."""
    shared, reports = world(), Reports()
    made = producer(shared)
    made.produce("stock", "before", on_delivery=reports)
    made.produce("orders", "hit", on_delivery=reports)
    store_of(made).plan = failing(part)
    assert made.flush() == 0
    made.produce("orders", "after", on_delivery=reports)
    assert made.flush() == 0
    assert reports.errors == ["UnexpectedError"]
    assert len(reports.offsets) == 2
    assert values(process(shared), "orders") == ["after"]
    assert values(process(shared), "stock") == ["before"]
    [error] = [error for error, _ in reports.received if error is not None]
    assert isinstance(error, UnexpectedError)
    assert isinstance(error.__cause__, BugError)
    assert "report" in error.message
    made.close()


@BOTH
@pytest.mark.parametrize("part", ["orders/part-", "__transaction_state"])
def test_bug_in_a_transaction_makes_it_abortable(publish: str, part: str) -> None:
    """Left in the state COMMITTING, the producer would allow no abort and no other call (R40)."""
    shared, reports = world(), Reports()
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", "hit", on_delivery=reports)
    store_of(made).plan = failing(part)
    with pytest.raises((UnexpectedError, TransactionAbortableError)):
        made.commit_transaction()
    made.abort_transaction()
    made.poll(0)
    assert len(reports.errors) == 1
    with made.transaction():
        made.produce("orders", "after")
    assert values(process(shared), "orders") == ["after"]


def test_bug_after_the_decision_leaves_the_commit_to_be_repeated() -> None:
    """A decided commit cannot be undone: an abort would report the opposite (R41)."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "kept")
    store_of(made).plan = failing("orders/_delta_log/")
    with pytest.raises(UnexpectedError):
        made.commit_transaction()
    made.commit_transaction()
    assert values(process(shared), "orders") == ["kept"]


@pytest.mark.parametrize("name", [None, "tx"])
@pytest.mark.parametrize("as_arrow", [False, True])
def test_records_that_cannot_be_split_into_batches_fail_alone(
    name: str | None, as_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of other topics must not be discarded with them, and every callback is called."""
    shared, reports = world(), Reports()
    made = producer(shared, name)
    if name is not None:
        made.init_transactions()
        made.begin_transaction()
    split = sender.split

    def broken(piece: sender.Piece, run_bytes: int) -> object:
        if piece.destination.topic == "orders":
            raise BugError("split")
        return split(piece, run_bytes)

    monkeypatch.setattr(sender, "split", broken)
    if as_arrow:
        made.produce_batch("orders", pa.table({"value": ["hit"]}), on_delivery=reports)
    else:
        made.produce("orders", "hit", headers={"h": b"v"}, on_delivery=reports)
    made.produce("stock", "other", on_delivery=reports)
    if name is None:
        assert made.flush() == 0
        assert values(process(shared), "stock") == ["other"]
    else:
        with pytest.raises(TransactionAbortableError):
            made.commit_transaction()
        made.abort_transaction()
        made.poll(0)
    assert reports.errors[0] == "UnexpectedError"
    assert reports.received[0][1].value() == b"hit"
    assert len(reports.received) == 2
    monkeypatch.undo()
    assert len(made) == 0
    assert made._accumulator.held_bytes == 0
    made.close()


def with_thread(shared: SharedMemory) -> Producer:
    return Producer({"txnlog.root": "memory://", "linger.ms": 0}, cluster=process(shared))


def wait_for(is_done: Callable[[], bool], made: Producer) -> None:
    """Call callbacks until `is_done`; the bound is large, for slow machines."""
    for _ in range(600):
        made.poll(0.1)
        if is_done():
            return
    pytest.fail("the bound was reached")


def thread_of(made: Producer) -> threading.Thread:
    thread = made._sender._thread
    assert thread is not None
    return thread


def test_thread_survives_a_bug_and_sends_later_records() -> None:
    """Without the thread, their callbacks would never be called."""
    shared, reports = world(), Reports()
    made = with_thread(shared)
    store_of(made).plan = failing("orders/part-")
    made.produce("orders", "hit", on_delivery=reports)
    wait_for(lambda: len(reports.received) == 1, made)
    made.produce("orders", "after", on_delivery=reports)
    wait_for(lambda: len(reports.received) == 2, made)
    assert thread_of(made).is_alive()
    assert reports.errors == ["UnexpectedError"]
    made.close()


def test_thread_survives_a_bug_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change what it reads; that must not end it silently."""
    shared, reports = world(), Reports()
    made = with_thread(shared)
    wait, failures = made._sender._wait, iter([True])

    def broken() -> bool:
        if next(failures, False):
            raise BugError("wait")
        return wait()

    monkeypatch.setattr(made._sender, "_wait", broken)
    made.produce("orders", "after", on_delivery=reports)
    wait_for(lambda: len(reports.received) == 1, made)
    assert thread_of(made).is_alive()
    made.close()


def test_counting_waiting_records_while_the_thread_sends() -> None:
    """It must not raise "dictionary changed size during iteration", nor end the thread."""
    made = producer(world())
    publication = made._sender.publication
    assert isinstance(publication, requests.Idempotent)
    queues = publication._queues

    class Watched(requests.Request):
        """While it is counted, another thread begins to send to another topic."""

        @property
        def num_records(self) -> int:
            queues["another"] = deque()
            queues["orders"].append(requests.Request("orders", "id", 0))
            return 1

    queues["orders"] = deque([Watched("orders", "id", 0)])
    assert len(made) == 1
