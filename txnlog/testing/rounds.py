"""Counts how many store calls of a piece of work wait for one another: its sequential rounds.

An object store answers after tens of milliseconds, so this number, not the number of calls, is the
time that a commit takes. Each call counts one round; calls made together count as long as the
longest of them. The calls themselves are made in turn, so that the count is the same every time.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TypeVar

from txnlog.testing.faults import FaultyStore, SharedMemory

__all__ = ["RoundsStore"]

T = TypeVar("T")


class RoundsStore(FaultyStore):
    """An in-memory store that counts `rounds`; for one thread."""

    def __init__(self, shared: SharedMemory) -> None:
        super().__init__(shared.backing, clock=shared.clock, shared=shared)
        self.rounds = 0

    @property
    def is_remote(self) -> bool:
        """It stands for an object store."""
        return True

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """As ObjectStore's; the rounds of the longest call are counted."""
        begun = longest = self.rounds

        def in_its_own_time(call: Callable[[], T]) -> T:
            nonlocal longest
            self.rounds = begun
            try:
                return call()
            finally:
                longest = max(longest, self.rounds)

        def counted(call: Callable[[], T]) -> Callable[[], T]:
            return lambda: in_its_own_time(call)

        try:
            return super().together([counted(call) for call in calls])
        finally:
            self.rounds = longest

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.rounds += 1
        return super()._call(verb, path, call)
