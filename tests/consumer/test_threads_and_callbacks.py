"""Callbacks and signal handlers of one consumer that several threads, or they themselves, call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.consumer.records import committed, consumer, member, parts, put, read, world
from tests.threads import WAIT_S, Thread
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import ClientStateError
from txnlog.messages import TopicPartition
from txnlog.testing.faults import SharedMemory

# --- Callbacks ------------------------------------------------------------------------------------


@contextmanager
def in_callback(name: str) -> Iterator[tuple[SharedMemory, Consumer, threading.Event]]:
    """A consumer whose callback is under way in another thread; it ends with the event."""
    shared = world(2)
    put(process(shared), b"a", b"b")
    called, may_end = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        if not may_end.is_set():
            called.set()
            assert may_end.wait(WAIT_S)

    config = {"group.id": "g", "auto.offset.reset": "earliest"}
    given = {name: callback}
    if name == "on_commit":
        config, given = config | given, {}
    reader = Consumer(config, cluster=process(shared), background=False)
    reader.subscribe(["t"], **given)
    if name != "on_assign":
        reader.consume(1, 0)
    if name == "on_commit":
        reader.commit()
    elif name == "on_revoke":
        reader.subscribe(["t", "u"], **given)
    polling = Thread(lambda: reader.consume(1, 0))
    assert called.wait(WAIT_S)
    try:
        yield shared, reader, may_end
    finally:
        may_end.set()
        polling.result()


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_commit"])
def test_callback_may_wait_for_threads_that_commit(name: str) -> None:
    """on_revoke waits for workers, which commit what they have done: else each waits for the
    other."""
    with in_callback(name) as (_, reader, _):
        offsets = [TopicPartition("t", 0, 1)]
        reader.commit(offsets=offsets, asynchronous=False)
        assert committed(reader) == 1
        assert parts(reader) == [0, 1]
        reader.pause(offsets)
        reader.position(offsets)
        reader.resume(offsets)


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_commit"])
def test_poll_beside_a_callback_returns_nothing_and_waits_for_its_time_out_only(name: str) -> None:
    """The partitions are about to change hands."""
    with in_callback(name) as (_, reader, _):
        assert reader.poll(0) is None
        assert reader.consume(5, 0.01) == []
        assert reader.consume_batch(timeout=0).num_rows == 0


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_commit"])
@pytest.mark.parametrize("call", [Consumer.close, Consumer.unsubscribe])
def test_close_and_unsubscribe_wait_for_a_callback_of_another_thread(
    name: str, call: Callable[[Consumer], None]
) -> None:
    """The call that waits for it would join the group again."""
    with in_callback(name) as (shared, reader, may_end):
        closing = Thread(lambda: call(reader))
        closing.join(0.05)
        assert process(shared).groups.describe("g").members  # type: ignore[union-attr]
        may_end.set()
        assert closing.result() is None
    assert not process(shared).groups.describe("g").members  # type: ignore[union-attr]


def test_calls_in_a_callback_are_made_at_once() -> None:
    """They come from the call that is under way."""
    shared = world(2)
    put(process(shared), b"a")
    calls: list[str] = []

    def on_assign(reader: Consumer, partitions: list[TopicPartition]) -> None:
        reader.assign([TopicPartition("t", 0, 0)])
        reader.pause(reader.assignment())
        reader.resume(reader.assignment())
        calls.append("assigned")

    def on_revoke(reader: Consumer, partitions: list[TopicPartition]) -> None:
        reader.commit(asynchronous=False)
        reader.close()
        calls.append("revoked")

    reader = member(shared, on_assign=on_assign, on_revoke=on_revoke)
    assert read(reader) == [b"a"]
    reader.close()
    assert calls == ["assigned", "revoked"]
    assert committed(consumer(process(shared), group_id="g")) == 1


@pytest.mark.parametrize("call", [Consumer.unsubscribe, Consumer.close, lambda one: one.poll(0)])
def test_calls_that_revoke_again_end_in_on_revoke(call: Callable[[Consumer], object]) -> None:
    """Each called on_revoke again, without end; and who was closed there joined again."""
    shared = world(2)
    put(process(shared), b"a")
    calls: list[int] = []

    def on_revoke(reader: Consumer, partitions: list[TopicPartition]) -> None:
        calls.append(len(partitions))
        call(reader)

    reader = member(shared, on_revoke=on_revoke)
    assert read(reader) == [b"a"]
    process(shared).groups.start("g")
    other = member(shared)
    for _ in range(4):
        with suppress(ClientStateError):
            reader.poll(0)
        other.poll(0)
    reader.close()
    other.close()
    assert len(calls) == 1
    assert not process(shared).groups.describe("g").members  # type: ignore[union-attr]


# --- Signals --------------------------------------------------------------------------------------


@contextmanager
def signalled(handler: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """What raises a signal, which calls the handler in this thread."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield lambda: signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_close_in_a_signal_handler_ends_the_poll_that_it_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it waits, which is nearly always."""
    reader = member(world(1))
    with signalled(reader.close) as strike:
        monkeypatch.setattr(reader._consumption().clock, "sleep_ms", lambda _: strike())
        assert reader.poll(3_600) is None
    with pytest.raises(ClientStateError, match="closed"):
        reader.poll(0)


@pytest.mark.parametrize("way", ["poll", "first poll", "commit", "subscribe"])
def test_close_in_a_signal_handler_comes_after_the_step_that_it_interrupts(way: str) -> None:
    """In the middle of a step it would change what the step works with."""
    shared = world(1)
    put(process(shared), b"a", b"b")
    reader = member(shared)
    made = reader._consumption()
    struck: list[bool] = []

    with signalled(reader.close) as strike:

        def struck_once(call: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*args: Any, **named: Any) -> Any:
                if not struck:
                    strike()
                    struck.append(reader._is_closed)
                return call(*args, **named)

            return instead

        if way == "first poll":
            made._fetcher.fetch = struck_once(made._fetcher.fetch)  # type: ignore[method-assign]
            message = reader.poll(0)
            assert message is not None
            assert message.value() == b"a"
        else:
            assert [one.value() for one in reader.consume(1, 0)] == [b"a"]
        if way == "poll":
            made.stream.next = struck_once(made.stream.next)  # type: ignore[method-assign]
            assert reader.poll(0).value() == b"b"  # type: ignore[union-attr]
        elif way == "commit":
            made.commit = struck_once(made.commit)  # type: ignore[method-assign]
            reader.commit(asynchronous=False)
        elif way == "subscribe":
            made.subscribe = struck_once(made.subscribe)  # type: ignore[method-assign]
            reader.subscribe(["t"])
        else:
            assert way == "first poll"
    assert struck == [False]
    if not reader._is_closed:
        # A message that was there needs no step after it: the next call closes.
        assert way == "poll"
        assert reader.poll(0) is None
    assert reader._is_closed
    assert not process(shared).groups.describe("g").members  # type: ignore[union-attr]
    # A message that the interrupted poll was about to return is not committed: it comes again.
    expected = {"first poll": 0, "poll": 2}.get(way, 1)
    assert committed(consumer(process(shared), group_id="g")) == expected


AT_0 = [TopicPartition("t", 0, 0)]


@pytest.mark.parametrize("place", ["first poll", "poll", "commit"])
@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.poll(0),
        lambda one: one.consume(2, 0),
        lambda one: one.consume_batch(2, 0),
        lambda one: one.pause(AT_0),
        lambda one: one.resume(AT_0),
        lambda one: one.seek(AT_0[0]),
        lambda one: one.assign(AT_0),
        lambda one: one.incremental_unassign(AT_0),
        lambda one: one.subscribe(["t"]),
    ],
)
def test_signal_handler_in_the_midst_of_a_call_cannot_change_what_is_read(
    place: str, call: Callable[[Consumer], object]
) -> None:
    """Records came twice or never, or the call that it interrupted never ended."""
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = consumer(process(shared), group_id="g")
    reader.assign(AT_0)
    made = reader._consumption()
    errors: list[object] = []

    def handler() -> None:
        try:
            call(reader)
        except ClientStateError as error:
            errors.append(error.message)
        reader.position(AT_0)
        reader.assignment()

    with signalled(handler) as strike:

        def struck(work: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*args: Any, **named: Any) -> Any:
                if not errors:
                    strike()
                return work(*args, **named)

            return instead

        if place == "first poll":
            made._fetcher.fetch = struck(made._fetcher.fetch)  # type: ignore[method-assign]
        got = [reader.poll(0)]
        if place == "poll":
            made.stream.next = struck(made.stream.next)  # type: ignore[method-assign]
        got.append(reader.poll(0))
        if place == "commit":
            made.commit = struck(made.commit)  # type: ignore[method-assign]
        reader.commit(asynchronous=False)
        got.append(reader.poll(0))
    assert len(errors) == 1
    assert "signal handler" in str(errors[0])
    assert [one and one.value() for one in got] == [b"a", b"b", b"c"]
    assert committed(reader) == 2
