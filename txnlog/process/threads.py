"""Threads of the process that do work for others; an interrupted caller leaves no lock behind.

A signal handler may raise in the main thread wherever a Python function begins or a C function
returns. A Condition is Python, so it then may stay locked, and the next caller waits for ever: that
happens in ThreadPoolExecutor.submit. Here callers take no lock and keep no count; the threads do,
in which no handler runs.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # pyarrow imports it, which fails at the exit
import logging
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from txnlog.process.forking import watch

logger = logging.getLogger("txnlog")


class Threads:
    """At most `size` threads, each started when it is needed; a forked child starts its own."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self.forked()
        watch(self)
        # As ThreadPoolExecutor does: before the functions of atexit, and in forked children of
        # multiprocessing, which call none of those.
        threading._register_atexit(self.end)  # type: ignore[attr-defined]

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._is_over = False
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._free: deque[None] = deque(maxlen=self._size)
        """An item for each thread that waits for work. An interrupt may lose one: then a thread is
        started that was not needed."""

    def submit(self, work: Callable[[], object]) -> bool:
        """Do `work` when a thread is free; False if there is none, nor can one be started."""
        if self._is_over or not (self._take_free() or self._start()):
            return False
        self._queue.put(work)
        return True

    def end(self) -> None:
        """Return when all work is done; from then on none is taken.

        For the exit: Python kills a thread that is then inside a store's library, which ends the
        process with an error. Work whose thread had not begun is done here.
        """
        with self._lock:
            self._is_over = True
        for _ in range(self._running):
            self._queue.put(None)
        while self._running:
            self._ended.get()
            self._running -= 1
        while not self._queue.empty():
            self._do_next()

    def _take_free(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def _start(self) -> bool:
        """Start a thread, if there may be more; whether there is any."""
        if self._running < self._size:
            try:
                # Thread.start would wait for the thread by an Event, which has a Condition.
                start_new_thread(self._run, ())
            except RuntimeError:
                # The process has no thread left, or is ending.
                return self._running > 0
        return True

    def _run(self) -> None:
        """A thread counts itself: its starter may be interrupted before or after the start."""
        with self._lock:
            if self._is_over or self._running == self._size:
                return
            self._running += 1
        threading.current_thread().name = self._name
        while self._do_next():
            self._free.append(None)
        self._ended.put(None)

    def _do_next(self) -> bool:
        """Do the next work; False at the end. What was done is not kept while waiting for more."""
        work = self._queue.get()
        if work is None:
            return False
        try:
            work()
        except BaseException:
            logger.exception("Work of thread %s failed", self._name)
        return True
