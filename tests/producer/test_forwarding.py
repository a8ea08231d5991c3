"""Delivery callbacks that produce: flush() and close() deliver what they produce, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.producer.worlds import Reports, cluster_of, producer, started, values, world
from txnlog.cluster import Cluster
from txnlog.errors import ClientStateError, InvalidTxnStateError
from txnlog.messages import Message
from txnlog.producer import Producer

Callback = Callable[[Any, Message], None]

LEVELS = 4


def forward(made: Producer, levels: int = LEVELS) -> Callback:
    """Produces the record to the next topic of a chain, which has so many levels left."""

    def callback(error: Exception | None, message: Message) -> None:
        assert error is None
        following = forward(made, levels - 1) if levels > 1 else None
        made.produce("stock", message.value(), partition=0, on_delivery=following)

    return callback


def produce(made: Producer) -> None:
    made.produce("orders", "0", on_delivery=forward(made))
    made.produce("orders", "1", on_delivery=forward(made))


def in_another_thread(call: Callable[[], object]) -> None:
    """Make a call, and wait for it."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def forwarded(cluster: Cluster) -> list[str]:
    return sorted(values(cluster, "stock"))


EXPECTED = ["0"] * LEVELS + ["1"] * LEVELS


def test_flush_delivers_chains_of_any_length() -> None:
    """It returned how many were left, and the usual last line of a program lost them."""
    made = producer(world())
    produce(made)
    assert made.flush() == 0
    assert forwarded(cluster_of(made)) == EXPECTED
    assert len(made) == 0


@pytest.mark.parametrize("end", [Producer.close, lambda made: made.__exit__(None, None, None)])
def test_close_delivers_chains_of_any_length(end: Callable[[Producer], None]) -> None:
    """It discarded them, or raised that the producer was closed."""
    made = producer(world())
    produce(made)
    end(made)
    assert forwarded(cluster_of(made)) == EXPECTED


def test_flush_in_an_eager_transaction_delivers_chains_within_it() -> None:
    made = started(world(), "eager")
    made.begin_transaction()
    produce(made)
    assert made.flush() == 0
    assert forwarded(cluster_of(made)) == []
    made.commit_transaction()
    assert forwarded(cluster_of(made)) == EXPECTED


@pytest.mark.parametrize("publish", ["eager", "deferred"])
def test_callback_that_produces_after_its_transaction_has_ended_gets_an_error(
    publish: str,
) -> None:
    """The records would be in no transaction, or in another one (R31)."""
    made = started(world(), publish)
    made.begin_transaction()
    produce(made)
    made.commit_transaction()
    with pytest.raises(InvalidTxnStateError, match="begin_transaction"):
        made.flush()
    made.begin_transaction()
    made.flush()
    made.abort_transaction()
    assert forwarded(cluster_of(made)) == []


def test_flush_with_callbacks_that_produce_for_ever_ends_by_its_time_out() -> None:
    shared = world()
    made = producer(shared)

    def again(error: Exception | None, message: Message) -> None:
        shared.clock.advance_ms(100)
        made.produce("stock", "x", partition=0, on_delivery=again)

    made.produce("stock", "x", partition=0, on_delivery=again)
    began_ms = shared.clock.boot_ms()
    assert made.flush(1.0) == 1
    assert 1_000 <= shared.clock.boot_ms() - began_ms <= 1_200


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_close_with_callbacks_that_produce_for_ever_ends_and_refuses_their_records(
    timeout: float | None,
) -> None:
    shared = world()
    made = producer(shared, delivery_timeout_ms=2_000)
    count, errors = 0, []

    def again(error: Exception | None, message: Message) -> None:
        nonlocal count
        count += 1
        errors.append(error)
        shared.clock.advance_ms(100)
        made.produce("stock", "x", partition=0, on_delivery=again)

    made.produce("stock", "x", partition=0, on_delivery=again)
    began_ms = shared.clock.boot_ms()
    with pytest.raises(ClientStateError, match="closed"):
        made.close(timeout)
    limit_ms = 4_000 if timeout is None else 1_000
    assert limit_ms <= shared.clock.boot_ms() - began_ms <= limit_ms + 300
    # Each was called, the last one with what has become of its record.
    assert [error is None for error in errors] == [True] * (count - 1) + [False]
    assert len(values(cluster_of(made), "stock")) == count - 1


def test_close_calls_every_callback_although_some_raise() -> None:
    """There is no later call that would."""
    made = producer(world())
    seen: list[bytes | None] = []

    def callback(error: Exception | None, message: Message) -> None:
        seen.append(message.value())
        if message.topic() == "orders":
            made.produce("stock", message.value(), partition=0, on_delivery=callback)
            raise ValueError("of the application")

    for value in ("0", "1"):
        made.produce("orders", value, partition=0, on_delivery=callback)
    with pytest.raises(ValueError, match="application"):
        made.close()
    assert seen == [b"0", b"1", b"0", b"1"]
    assert forwarded(cluster_of(made)) == ["0", "1"]


def test_flush_waits_for_a_callback_that_another_thread_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It returned 0 while that callback was about to produce."""
    made = producer(world())
    called, may_produce = threading.Event(), threading.Event()

    def callback(error: Exception | None, message: Message) -> None:
        called.set()
        may_produce.wait(600)
        made.produce("stock", message.value(), partition=0)

    made.produce("orders", "0", on_delivery=callback)
    poller = threading.Thread(target=made.poll)
    poller.start()
    assert called.wait(600)
    assert made.flush(0) == 1

    def go_on(_: float) -> None:
        may_produce.set()
        poller.join(600)

    monkeypatch.setattr(made._clock, "sleep_ms", go_on)
    assert made.flush() == 0
    assert forwarded(cluster_of(made)) == ["0"]


def test_flush_calls_what_a_callback_that_raises_in_another_thread_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reports after it wait for the next call, which flush() is."""
    made = producer(world())
    called, may_raise = threading.Event(), threading.Event()
    reports = Reports()

    def callback(error: Exception | None, message: Message) -> None:
        called.set()
        may_raise.wait(600)
        raise ValueError("of the application")

    def poll() -> None:
        with pytest.raises(ValueError, match="application"):
            made.poll()

    made.produce("orders", "0", partition=0, on_delivery=callback)
    made.produce("orders", "1", partition=0, on_delivery=reports)
    poller = threading.Thread(target=poll)
    poller.start()
    assert called.wait(600)

    def go_on(_: float) -> None:
        may_raise.set()
        poller.join(600)

    monkeypatch.setattr(made._clock, "sleep_ms", go_on)
    assert made.flush() == 0
    assert reports.offsets == [("orders", 0, 1)]


def test_flush_does_not_wait_for_what_other_threads_produce_meanwhile() -> None:
    """It went on for as long as they did."""
    made = producer(world())
    reports = Reports()

    def callback(error: Exception | None, message: Message) -> None:
        reports(error, message)
        if len(reports.received) < 20:
            in_another_thread(lambda: made.produce("stock", "x", partition=0, on_delivery=callback))

    made.produce("orders", "0", partition=0, on_delivery=callback)
    assert made.flush() == 1
    assert reports.offsets == [("orders", 0, 0)]


def test_flush_does_not_wait_for_callbacks_of_later_records() -> None:
    """Threads that poll without end would keep it waiting."""
    made = producer(world())
    called, may_end = threading.Event(), threading.Event()

    def later(error: Exception | None, message: Message) -> None:
        called.set()
        may_end.wait(600)

    def polls() -> None:
        made.produce("stock", "x", partition=0, on_delivery=later)
        made.poll()

    poller = threading.Thread(target=polls)

    def callback(error: Exception | None, message: Message) -> None:
        poller.start()
        assert called.wait(600)

    made.produce("orders", "0", partition=0, on_delivery=callback)
    assert made.flush() == 0
    assert poller.is_alive()
    may_end.set()
    poller.join()


def test_flush_in_callbacks_of_two_threads_waits_for_neither() -> None:
    """Each would wait for the other."""
    made = producer(world())
    both = threading.Barrier(2, timeout=600)
    left: list[int] = []

    def callback(error: Exception | None, message: Message) -> None:
        both.wait()
        left.append(made.flush())

    threads = []
    for value in ("0", "1"):
        made.produce("orders", value, on_delivery=callback)
        made._sender.exclusively(made._deadline("flush()", None), made._sender.pump)
    for _ in range(2):
        threads.append(threading.Thread(target=made.poll))
        threads[-1].start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert left == [0, 0]
