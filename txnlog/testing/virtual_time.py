"""Processes in virtual time: threads of which one runs at a time, in the order of their waits.

Nothing depends on the speed of the machine: two runs with one seed are the same. So throughput and
fairness of many clients at a slow object store are tested and measured exactly, without waiting.
"""

from __future__ import annotations

import builtins
import heapq
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from txnlog.storage.store.objects import ObjectStore

__all__ = ["WAIT_S", "SlowStore", "VirtualTime"]

T = TypeVar("T")

WAIT_S = 600
_START_MS = 1_700_000_000_000


class _Turn:
    """A thread's turn, and the thread that waits until this one and its siblings have ended."""

    def __init__(self, parent: _Turn | None) -> None:
        self.parent = parent
        self.begins = threading.Semaphore(0)
        self.children = 0


class VirtualTime:
    """The clock of all processes; its `sleep_ms` lets others run until the time has come."""

    boot_id = "virtual"

    def __init__(self) -> None:
        self.at_ms = 1_000_000.0
        self._waiting: list[tuple[float, int, _Turn]] = []
        self._number = 0
        self._yielded = threading.Semaphore(0)
        self._here = threading.local()
        self._errors: list[BaseException] = []

    def now_ms(self) -> int:
        return _START_MS + self.boot_ms()

    def boot_ms(self) -> int:
        return int(self.at_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        turn: _Turn | None = getattr(self._here, "turn", None)
        if turn is None:
            # Outside of `run` there is no other thread.
            self.at_ms += max(0.0, duration_ms)
            return
        self._queue(turn, duration_ms)
        self._give_up(turn)

    def run(self, programs: Sequence[Callable[[], None]]) -> None:
        """Run the programs, each as a process, until all have ended; raises the first error."""
        for program in programs:
            self._start(program, None)
        while self._waiting:
            self.at_ms, _, turn = heapq.heappop(self._waiting)
            turn.begins.release()
            assert self._yielded.acquire(timeout=WAIT_S)
        if self._errors:
            raise self._errors[0]

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make the calls at the same time; returns when the longest has ended."""
        turn: _Turn | None = getattr(self._here, "turn", None)
        if turn is None or len(calls) < 2:
            return [call() for call in calls]
        results: dict[int, T] = {}
        errors: dict[int, BaseException] = {}

        def program(number: int, call: Callable[[], T]) -> Callable[[], None]:
            def run() -> None:
                try:
                    results[number] = call()
                except BaseException as error:
                    errors[number] = error

            return run

        turn.children = len(calls)
        for number, call in enumerate(calls):
            self._start(program(number, call), turn)
        self._give_up(turn)
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(calls))]

    def _start(self, program: Callable[[], None], parent: _Turn | None) -> None:
        turn = _Turn(parent)
        self._queue(turn, 0)
        threading.Thread(target=self._main, args=(turn, program), daemon=True).start()

    def _queue(self, turn: _Turn, duration_ms: float) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (self.at_ms + max(0.0, duration_ms), self._number, turn))

    def _give_up(self, turn: _Turn) -> None:
        self._yielded.release()
        assert turn.begins.acquire(timeout=WAIT_S)

    def _main(self, turn: _Turn, program: Callable[[], None]) -> None:
        assert turn.begins.acquire(timeout=WAIT_S)
        self._here.turn = turn
        try:
            program()
        except BaseException as error:
            self._errors.append(error)
        finally:
            if turn.parent is not None:
                turn.parent.children -= 1
                if not turn.parent.children:
                    self._queue(turn.parent, 0)
            self._yielded.release()


class SlowStore(ObjectStore):
    """An object store whose requests take `latency_ms` (least, most); each lands half-way.

    One for each process; `backing` is shared by all. `requests` counts them.
    """

    def __init__(
        self, backing: Any, time: VirtualTime, *, latency_ms: tuple[float, float], seed: object
    ) -> None:
        super().__init__(backing, "memory://", clock=time)
        self._time = time
        self._latency_ms = latency_ms
        self._random = random.Random(repr(seed))
        self.requests = 0

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        return self._time.together(calls)

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.requests += 1
        half_ms = self._random.uniform(*self._latency_ms) / 2
        self._time.sleep_ms(half_ms)
        try:
            return super()._call(verb, path, call)
        finally:
            self._time.sleep_ms(half_ms)
