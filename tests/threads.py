"""Threads of tests: calls that are made at the same time, or in an order that the test gives."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

WAIT_S = 600
"""A test whose threads wait longer fails."""


def in_threads(*works: Callable[[], object]) -> None:
    """Do all at the same time; raise what any of them raises.

    Threads change at almost every instruction meanwhile.
    """
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait(WAIT_S)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval_s)
    if errors:
        raise errors[0]


class Thread(threading.Thread):
    """A call in a thread, and its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.start()

    def run(self) -> None:
        try:
            self._result: Any = self._call()
        except BaseException as error:
            self._result = error

    def result(self) -> Any:
        self.join(WAIT_S)
        assert not self.is_alive()
        return self._result
