"""close() beside other calls: of other threads, of callbacks, of signal handlers."""

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
from tests.producer.test_forwarding import forwarded, in_another_thread
from tests.producer.worlds import BOTH, Reports, cluster_of, producer, started, values, world
from tests.threads import WAIT_S, Thread
from txnlog.errors import ClientStateError, TxnLogError
from txnlog.messages import Message
from txnlog.producer import Producer
from txnlog.producing.deadlines import Deadline


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


@BOTH
@pytest.mark.parametrize("raises", [False, True])
def test_close_of_a_transactional_producer_waits_for_callbacks_of_other_threads(
    monkeypatch: pytest.MonkeyPatch, publish: str, raises: bool
) -> None:
    """It returned in the midst of them: at the end of the program their deliveries were lost, as
    was what a callback that raised had put back. It still takes their calls meanwhile.
    """
    made = started(world(), publish)
    inside, may_end = threading.Event(), threading.Event()
    called: list[bytes | None] = []

    def callback(_: Exception | None, message: Message) -> None:
        inside.set()
        assert may_end.wait(WAIT_S)
        made.poll(0)
        made.flush(0)
        called.append(message.value())
        if raises and len(called) == 1:
            raise RuntimeError("of the callback")

    made.begin_transaction()
    for number in range(3):
        made.produce("orders", f"{number}", partition=0, on_delivery=callback)
    made.commit_transaction()
    polling = Thread(lambda: made.poll(0))
    assert inside.wait(WAIT_S)

    def let_end(_: float) -> None:
        may_end.set()
        polling.join(WAIT_S)

    monkeypatch.setattr(made._clock, "sleep_ms", let_end)
    made.close()
    assert called == [b"0", b"1", b"2"]
    assert repr(polling.result()) == ("RuntimeError('of the callback')" if raises else "3")


def test_close_of_a_transactional_producer_waits_for_callbacks_up_to_its_time_out() -> None:
    """One that never ends would keep the program from ending, too."""
    made = started(world())
    inside, may_end = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        inside.set()
        assert may_end.wait(WAIT_S)

    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=callback)
    made.commit_transaction()
    polling = Thread(lambda: made.poll(0))
    assert inside.wait(WAIT_S)
    began_ms = made._clock.boot_ms()
    made.close(7)
    assert 7_000 <= made._clock.boot_ms() - began_ms < 8_000
    may_end.set()
    assert polling.result() == 1


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


@pytest.mark.parametrize("left", ["interrupted", "prepared"])
def test_close_does_not_report_records_as_unsent_that_may_be_committed(left: str) -> None:
    """Its callbacks got "closed before the record was sent" of a committed record: produced again,
    it is there twice.
    """
    shared, reports = world(), Reports()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    assert made._transactions is not None
    coordinator = made._transactions.session._coordinator
    commit = coordinator.commit

    def interrupted(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise KeyboardInterrupt

    if left == "prepared":
        state = made.prepare_transaction()
    else:
        coordinator.commit = interrupted  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            made.commit_transaction()
    made.close()
    assert reports.errors == ["CommitStateUnknownError"]
    [(error, _)] = reports.received
    assert not error.retriable  # type: ignore[union-attr]
    if left == "prepared":
        successor = producer(shared, "tx")
        successor.init_transactions(keep_prepared=True)
        assert successor.complete_transaction(state)
    assert values(cluster_of(producer(shared)), "orders") == ["0"]
