"""Two threads of a task: order, bounded memory, errors and ends of either, no thread left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import SimpleQueue

import pyarrow as pa
import pytest

from txnlog.connector import pipelining
from txnlog.connector.pipelining import consume_beside

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
ROWS = 1_000
BATCH_BYTES = ROWS * 8
PATIENCE_S = 60


class MadeUpError(Exception):
    """An error of the test's own."""


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([number] * ROWS)], names=["number"])


def batches(count: int, made: list[int] | None = None) -> Generator[pa.RecordBatch, None, None]:
    for number in range(count):
        if made is not None:
            made.append(number)
        yield batch(number)


def numbers(found: Iterable[pa.RecordBatch]) -> list[int]:
    return [one.column(0)[0].as_py() for one in found]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the thread that hands batches over waits for room."""
    found = threading.Event()

    class Watched(SimpleQueue[object]):
        def get(self, *arguments: object) -> object:
            # The other thread's queue holds batches, which it has put before.
            if threading.get_ident() in givers and self.empty():
                found.set()
            return super().get()

    givers: set[int] = set()
    give = pipelining._Handover.give

    def watched(self: pipelining._Handover, one: pa.RecordBatch) -> bool:
        givers.add(threading.get_ident())
        return give(self, one)

    monkeypatch.setattr(pipelining, "SimpleQueue", Watched)
    monkeypatch.setattr(pipelining._Handover, "give", watched)
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 3, 200])
@pytest.mark.parametrize("waiting_bytes", [1, BATCH_BYTES, 3 * BATCH_BYTES, 1 << 30])
def test_all_batches_come_in_order(count: int, waiting_bytes: int) -> None:
    found = consume_beside(batches(count), numbers, waiting_bytes=waiting_bytes)
    assert found == list(range(count))


def test_one_batch_needs_no_thread() -> None:
    """A small micro-batch has one, and a thread would cost more than it.

    All are consumed in the caller's thread, where a worker's next task uses their memory again.
    """
    receivers: list[int] = []

    def received(count: int) -> Iterator[pa.RecordBatch]:
        for one in batches(count):
            receivers.append(threading.get_ident())
            yield one

    def consume(found: Iterable[pa.RecordBatch]) -> tuple[int, list[int]]:
        return threading.get_ident(), numbers(found)

    here = threading.get_ident()
    assert consume_beside(received(1), consume) == (here, [0])
    assert consume_beside(received(3), consume) == (here, [0, 1, 2])
    assert receivers[:3] == [here] * 3
    assert receivers[3] != here


class Lead:
    """How many batches were made before they were taken, at most."""

    def __init__(self) -> None:
        self.made = self.taken = self.most = 0

    def batches(self, count: int) -> Generator[pa.RecordBatch, None, None]:
        for number in range(count):
            self.made += 1
            self.most = max(self.most, self.made - self.taken)
            yield batch(number)

    def take(self, found: Iterable[pa.RecordBatch], full: threading.Event) -> int:
        rest = iter(found)
        next(rest)
        self.taken += 1
        assert full.wait(PATIENCE_S)
        for _ in rest:
            self.taken += 1
        return self.taken


# Three wait and one is offered; one was just taken, and one may have been taken and not counted.
LEAD_MAX = 6


def test_batches_that_wait_are_bounded_in_bytes(full: threading.Event) -> None:
    lead = Lead()

    def consume(found: Iterable[pa.RecordBatch]) -> int:
        return lead.take(found, full)

    assert consume_beside(lead.batches(50), consume, waiting_bytes=3 * BATCH_BYTES) == 50
    assert lead.most <= LEAD_MAX


def test_error_of_the_consumer_reaches_the_caller_who_receives_no_more(
    full: threading.Event,
) -> None:
    made: list[int] = []
    error = MadeUpError("the disk is full")

    def consume(found: Iterable[pa.RecordBatch]) -> None:
        next(iter(found))
        assert full.wait(PATIENCE_S), "the other thread waits, and must be woken up"
        raise error

    with pytest.raises(MadeUpError) as raised:
        consume_beside(batches(50, made), consume, waiting_bytes=BATCH_BYTES)
    assert raised.value is error
    assert len(made) <= 4


def test_error_of_receiving_ends_the_consumer() -> None:
    """Spark raises when its connection breaks or the task is killed; nothing more is staged."""
    seen: list[BaseException] = []
    taken: list[int] = []

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(4)
        raise MadeUpError("connection reset")

    def consume(found: Iterable[pa.RecordBatch]) -> None:
        try:
            for one in found:
                taken.append(one.column(0)[0].as_py())
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(MadeUpError, match="connection reset"):
        consume_beside(broken(), consume)
    assert taken == [0, 1, 2, 3]
    assert [type(error) for error in seen] == [MadeUpError]


def test_without_a_free_thread_one_thread_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pipelining.Thread, "start", refuse)
    assert consume_beside(batches(9), numbers) == list(range(9))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_no_kind_of_error_leaves_the_other_thread_waiting(error: BaseException) -> None:
    def consume(found: Iterable[pa.RecordBatch]) -> None:
        next(iter(found))
        raise error

    def broken() -> Generator[pa.RecordBatch, None, None]:
        yield from batches(3)
        raise error

    calls: list[Callable[[], object]] = [
        lambda: consume_beside(batches(50), consume, waiting_bytes=1),
        lambda: consume_beside(broken(), numbers, waiting_bytes=1),
    ]
    for call in calls:
        with pytest.raises(type(error)):
            call()
