"""Delivery callbacks that produce: flush() and close() deliver what they produce, too."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.interrupting import PRODUCING
from tests.producer.worlds import Reports, cluster_of, producer, started, values, world
from txnlog.cluster import Cluster
from txnlog.errors import ClientStateError, InvalidTxnStateError, TxnLogError
from txnlog.messages import Message
from txnlog.producer import Producer
from txnlog.producing.deadlines import Deadline

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


# --- close() beside other calls -------------------------------------------------------------------


def test_close_takes_records_of_callbacks_only() -> None:
    """It went on for as long as other threads produced, up to twice delivery.timeout.ms."""
    made = producer(world())
    refused: list[str] = []

    def refuse(call: Callable[[], object]) -> None:
        with pytest.raises(ClientStateError, match="closed"):
            call()
        refused.append("produce")

    def callback(error: Exception | None, message: Message) -> None:
        in_another_thread(lambda: refuse(lambda: made.produce("stock", "x", partition=0)))
        table = pa.table({"value": [b"x"]})
        in_another_thread(lambda: refuse(lambda: made.produce_batch("stock", table)))
        if message.topic() == "orders":
            made.produce("stock", "0", partition=0, on_delivery=callback)

    made.produce("orders", "0", partition=0, on_delivery=callback)
    made.close()
    assert refused == ["produce"] * 4
    assert forwarded(cluster_of(made)) == ["0"]


def test_close_refuses_a_record_that_waits_for_memory_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be accepted when close() makes room, and lost."""
    made = producer(world(), buffer_memory=2_000)
    made.produce("orders", "x" * 3_000, partition=0)
    open_buffer, send = made._admission.open_buffer, made._send
    waits, may_go_on = threading.Event(), threading.Event()
    refused: list[ClientStateError] = []

    def waiting(*args: Any) -> None:
        waits.set()
        may_go_on.wait(600)
        open_buffer(*args)

    def produce() -> None:
        with pytest.raises(ClientStateError, match="closed") as caught:
            made.produce("orders", "y", partition=0)
        refused.append(caught.value)

    def sent(deadline: Deadline) -> bool:
        is_sent = send(deadline)
        may_go_on.set()
        thread.join(600)
        return is_sent

    monkeypatch.setattr(made._admission, "open_buffer", waiting)
    monkeypatch.setattr(made, "_send", sent)
    thread = threading.Thread(target=produce)
    thread.start()
    assert waits.wait(600)
    made.close()
    assert len(refused) == 1


def test_close_refuses_a_transaction_that_another_thread_would_begin() -> None:
    """It stayed open, and its readers waited until it expired."""
    made = started(world(), "eager")
    refused: list[str] = []

    def begin() -> None:
        with pytest.raises(ClientStateError, match="closed"):
            made.begin_transaction()
        refused.append("begin")

    def callback(error: Exception | None, message: Message) -> None:
        in_another_thread(begin)

    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=callback)
    made.commit_transaction()
    made.close()
    assert refused == ["begin"]


@pytest.mark.parametrize("kind", ["error_cb", "stats_cb"])
def test_close_takes_records_of_every_callback(kind: str) -> None:
    shared = world()
    given = {"txnlog.root": "memory://", "statistics.interval.ms": 1}
    made = Producer(
        {**given, kind: lambda _: made.produce("stock", "0", partition=0)},
        cluster=cluster_of(producer(shared)),
        background=False,
    )
    made.produce("orders", "0", partition=0)
    shared.clock.advance_ms(10)
    made._events.failed(ValueError("of the store"))
    made.close()
    assert forwarded(cluster_of(made)) == ["0"]


@pytest.mark.parametrize("way", ["idempotent", "deferred", "eager", "aborted"])
def test_two_threads_that_close_one_producer_both_succeed(way: str) -> None:
    """One of them raised that the producer was closed; wherever they meet."""
    place = 0
    has_met = True
    while has_met:
        shared = world()
        if way == "idempotent":
            made = producer(shared)
        else:
            made = started(shared, "deferred" if way == "deferred" else "eager")
            made.begin_transaction()
        made.produce("orders", "0", partition=0)
        if way in ("deferred", "eager"):
            made.commit_transaction()
        has_met = _meet(made, place)
        place += 3
        assert made._lifecycle.is_over
        assert values(cluster_of(made), "orders") == ([] if way == "aborted" else ["0"])
    assert place > 15


def _meet(made: Producer, place: int) -> bool:
    """Close; before the `place`-th function of the call that begins without a lock, close in
    another thread.
    """
    passed, errors = 0, []

    def close() -> None:
        try:
            made.close()
        except TxnLogError as error:
            errors.append(error)

    def meet(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        is_ours = event == "call" and frame.f_code.co_filename.startswith(PRODUCING)
        locks = (made._accumulator.lock, made._deliveries._lock)
        if is_ours and made._sender._holder is None and not any(one._is_owned() for one in locks):  # type: ignore[attr-defined]
            passed += 1
            if passed - 1 == place:
                thread = threading.Thread(target=close)
                thread.start()
                thread.join()

    sys.setprofile(meet)
    try:
        made.close()
    finally:
        sys.setprofile(None)
    assert errors == []
    return passed > place


def test_close_in_a_signal_handler_ends_the_producer_after_the_call_that_it_interrupts() -> None:
    """It waited for the producer's thread, which waited for the call: for ever."""
    shared = world()
    made = Producer({"txnlog.root": "memory://"}, cluster=producer(shared)._outlet.cluster)
    deadline = made._deadline("flush()", 600)
    made.produce("orders", "0", partition=0)

    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)
        assert not made._lifecycle.is_over
        made._sender.pump()

    before = signal.signal(signal.SIGUSR1, lambda *_: made.close())
    try:
        made._sender.exclusively(deadline, interrupted)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert made._lifecycle.is_over
    assert values(cluster_of(made), "orders") == ["0"]


def test_calls_of_a_signal_handler_in_the_midst_of_produce_are_refused_but_close() -> None:
    """Each waited for the lock that produce() held: for ever."""
    shared = world()
    made = producer(shared)
    made.produce("orders", "0", partition=0)
    accumulator, refused = made._accumulator, []
    now_ms = accumulator._now_ms

    def handler() -> None:
        for call in (made.flush, made.poll, lambda: made.produce("orders", "x")):
            try:
                call()
            except ClientStateError as error:
                refused.append(str(error))
        made.close()
        assert not made._lifecycle.is_over

    def interrupted() -> int:
        accumulator._now_ms = now_ms
        handler()
        return now_ms()

    accumulator._now_ms = interrupted
    made.produce("orders", "1", partition=0)
    assert len(refused) == 3
    assert all("Set a flag in the handler" in text for text in refused)
    assert made._lifecycle.is_over
    assert values(cluster_of(made), "orders") == ["0", "1"]


def test_poll_of_another_thread_ends_when_the_producer_is_closed() -> None:
    """It waited until its time-out."""
    made = producer(world())
    began = threading.Event()
    wait = made._deliveries.wait

    def waiting(timeout_s: float) -> None:
        began.set()
        wait(timeout_s)

    made._deliveries.wait = waiting  # type: ignore[method-assign]
    poller = threading.Thread(target=lambda: made.poll(3_600), daemon=True)
    poller.start()
    assert began.wait(600)
    made.close()
    poller.join(600)
    assert not poller.is_alive()


def test_close_in_a_signal_handler_does_not_undo_a_commit() -> None:
    """The commit ended with an error about a state, although it had succeeded."""
    made = started(world())
    made.begin_transaction()
    made.produce("orders", "0", partition=0)
    assert made._transactions is not None
    session = made._transactions.session
    commit = session.commit

    def interrupted(*args: Any) -> None:
        made.close()
        commit(*args)

    session.commit = interrupted  # type: ignore[method-assign]
    made.commit_transaction()
    assert made._lifecycle.is_over
    assert values(cluster_of(made), "orders") == ["0"]
