"""Processes in virtual time: threads of which one runs at a time, in the order of their waits.

Nothing depends on the speed of this machine: two runs with one seed are the same.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from obstore.store import MemoryStore

from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

WAIT_S = 600


class VirtualProcess:
    """A process's clock: `sleep_ms` lets the others run until its time has come."""

    boot_id = "virtual"

    def __init__(self, world: VirtualTime, number: int) -> None:
        self.number = number
        self.turn = threading.Semaphore(0)
        self._world = world

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.boot_ms()

    def boot_ms(self) -> int:
        return int(self._world.at_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self._world.wait(self, duration_ms)


class VirtualTime:
    """The time of all processes, and whose turn it is."""

    def __init__(self) -> None:
        self.at_ms = 1_000_000.0
        self._waiting: list[tuple[float, int, VirtualProcess]] = []
        self._number = 0
        self._yielded = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def wait(self, process: VirtualProcess, duration_ms: float) -> None:
        self._number += 1
        heapq.heappush(
            self._waiting, (self.at_ms + max(0.0, duration_ms), self._number, process)
        )
        self._yielded.release()
        assert process.turn.acquire(timeout=WAIT_S)

    def run(self, programs: Sequence[Callable[[VirtualProcess], None]]) -> None:
        """Run the programs, each as a process, until all have ended."""
        threads = []
        for number, program in enumerate(programs):
            process = VirtualProcess(self, number)
            thread = threading.Thread(target=self._main, args=(process, program), daemon=True)
            thread.start()
            threads.append(thread)
            assert self._yielded.acquire(timeout=WAIT_S)
        left = len(threads)
        while left:
            self.at_ms, _, process = heapq.heappop(self._waiting)
            process.turn.release()
            assert self._yielded.acquire(timeout=WAIT_S)
            left = sum(thread.is_alive() for thread in threads) if not self._waiting else left
        for thread in threads:
            thread.join(WAIT_S)
        if self._errors:
            raise self._errors[0]

    def _main(self, process: VirtualProcess, program: Callable[[VirtualProcess], None]) -> None:
        try:
            self.wait(process, 0)
            program(process)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._yielded.release()


class SlowStore(ObjectStore):
    """An object store that takes its time: each request lands in the middle of its latency."""

    def __init__(
        self,
        shared: MemoryStore,
        process: VirtualProcess,
        *,
        latency_ms: tuple[float, float],
        seed: int,
    ) -> None:
        super().__init__(shared, "memory://", clock=process)
        self._process = process
        self._latency_ms = latency_ms
        self._random = random.Random(f"{seed} {process.number}")

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        half_ms = self._random.uniform(*self._latency_ms) / 2
        self._process.sleep_ms(half_ms)
        try:
            return super()._call(verb, path, call)
        finally:
            self._process.sleep_ms(half_ms)
