"""Time as an argument: one real clock, and a virtual one for tests."""

from __future__ import annotations

import random
import time
import uuid
from time import clock_gettime_ns
from typing import Protocol

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_PROCESS_ID = uuid.uuid4().hex


class Clock(Protocol):
    """The source of time for code with I/O; protocol code takes plain numbers instead."""

    @property
    def boot_id(self) -> str:
        """Identifies the origin of `boot_ms`: one for all processes of a machine until it boots."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. For display and rows, not for decisions.

        But for one: whether so much time has passed that a log must be opened again (D3).
        """

    def boot_ms(self) -> int:
        """Milliseconds since boot, including those while suspended; never goes back."""

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clocks; CLOCK_BOOTTIME where there is one (Linux), else monotonic."""

    @property
    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            # Not Linux: valid in this process only.
            return _PROCESS_ID

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


class VirtualClock:
    """A clock that only `advance_ms`, `sleep_ms` and `step_wall_ms` move."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._boot_ms = 1_000_000
        self._boot_id = uuid.uuid4().hex

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def now_ms(self) -> int:
        return self._now_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.advance_ms(max(1, int(duration_ms)))

    def advance_ms(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
        self._boot_ms += duration_ms

    def step_wall_ms(self, delta_ms: int) -> None:
        """Step the wall clock by delta_ms; the boot clock does not change (R34)."""
        self._now_ms += delta_ms


OPERATION_ATTEMPTS_MAX = 50
"""Maximum number of attempts at an operation that others keep interrupting, `backoff_ms` apart."""


def backoff_ms(attempt: int, *, backoff_ms_max: float) -> float:
    """Wait before retry number `attempt` (0, 1, ...): exponential with jitter."""
    if attempt < 3:
        return 0.0
    return random.uniform(0.5, 1.0) * min(backoff_ms_max, 0.5 * 2.0 ** min(attempt - 3, 9))
