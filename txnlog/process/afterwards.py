"""Work on a thread, beside what its caller does next; who comes back waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from txnlog.process.threads import Threads

PATIENCE_S = 5.0

_THREADS = Threads("txnlog-afterwards", 8)


class Afterwards:
    """One work at a time. Where the process ends, the work may end unfinished."""

    def __init__(self) -> None:
        self._busy: SimpleQueue[None] | None = None
        """Gets an item when the work is done; None when there is none."""
        self._waited_ns = 0

    def do(self, work: Callable[[], object]) -> None:
        """Do `work` on a thread; what it uses is used by no other until `wait` returns True."""
        done: SimpleQueue[None] = SimpleQueue()

        def act() -> None:
            try:
                work()
            finally:
                self._busy = None
                done.put(None)

        self._busy = done
        try:
            is_taken = _THREADS.submit(act)
        except BaseException:
            # An interrupt: nobody may wait for what was perhaps never taken.
            done.put(None)
            raise
        if not is_taken:
            act()

    def wait(self) -> bool:
        """Wait until the work is done; False if that takes longer than PATIENCE_S."""
        busy, began_ns = self._busy, time.perf_counter_ns()
        if busy is None:
            return True
        try:
            busy.get(timeout=PATIENCE_S)
        except Empty:
            return False
        finally:
            self._waited_ns += time.perf_counter_ns() - began_ns
        return True

    def take_waited_ns(self) -> int:
        """How long `wait` has taken since the last call of this."""
        waited_ns, self._waited_ns = self._waited_ns, 0
        return waited_ns
