"""Independent calls that wait for a store, made at the same time by threads of the process.

An object store answers after tens of milliseconds, so what counts is how many requests wait for one
another. The calling thread works, too, so a call that is itself made in here may again make calls:
no call waits for a free thread, and without any free thread all calls are made in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from txnlog.process.threads import Threads

T = TypeVar("T")

THREADS_MAX = 128
"""Threads of one process that make calls for others; they start when they are first needed.

A store that answers after 25 ms and more gives each at most 40 answers per second.
"""

_THREADS = Threads("txnlog-store", THREADS_MAX)


class _Work:
    """The calls of one `together`, taken one after the other by any free thread.

    A signal handler may raise at any call of the main thread. So no Condition is used here, which
    could then stay locked; and the thread that waits for the others does not count its own calls.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._next = 0
        self._helping = 0
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.results: list[object] = [None] * len(calls)
        self.errors: dict[int, BaseException] = {}

    def run(self) -> None:
        """Make calls until none is left."""
        while (number := self._take(0)) is not None:
            self._call(number)

    def help(self) -> None:
        """The same, in another thread; `wait` waits for it."""
        while (number := self._take(1)) is not None:
            self._call(number)
            with self._lock:
                self._helping -= 1
            self._ended.put(None)

    def stop(self) -> None:
        """Begin no further call."""
        with self._lock:
            self._next = len(self._calls)

    def wait(self) -> None:
        """Wait for the calls that other threads are making."""
        while True:
            with self._lock:
                if self._helping == 0:
                    return
            # A call that ends from here on puts something.
            self._ended.get()

    def _take(self, helpers: int) -> int | None:
        with self._lock:
            number = self._next
            if number >= len(self._calls):
                return None
            self._next, self._helping = number + 1, self._helping + helpers
            return number

    def _call(self, number: int) -> None:
        try:
            self.results[number] = self._calls[number]()
        except BaseException as error:
            self.errors[number] = error
            if not isinstance(error, Exception):
                self.stop()


def together(calls: Sequence[Callable[[], T]], *, at_once: int) -> list[T]:
    """Make the calls, at most `at_once` at the same time; their results in order.

    All calls are made even if some raise; then the first error, in the order of the calls, is
    raised. KeyboardInterrupt and its like are raised when the calls under way have ended.
    """
    if at_once == 1 or len(calls) < 2:
        return _in_turn(calls)
    work = _Work(calls)
    interrupt: BaseException | None = None
    is_over = False
    while not is_over:
        try:
            if interrupt is None:
                for _ in range(min(at_once, len(calls)) - 1):
                    # Without any thread the caller makes all calls.
                    _THREADS.submit(work.help)
                work.run()
            else:
                work.stop()
            work.wait()
            is_over = True
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    if work.errors:
        raise _worst(work.errors)
    return work.results  # type: ignore[return-value]


def _in_turn(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The same by this thread alone, without what threads need; an interrupt ends it at once."""
    results: list[T] = []
    first: Exception | None = None
    for call in calls:
        try:
            results.append(call())
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return results


def _worst(errors: dict[int, BaseException]) -> BaseException:
    """An interrupt before any ordinary error."""
    ordered = [errors[number] for number in sorted(errors)]
    return next((one for one in ordered if not isinstance(one, Exception)), ordered[0])
