"""How long a store takes for a put: the unit of waits for other writers. One for each store."""

from __future__ import annotations

import threading

_STEP = 0.1
LATENCY_MS_MIN = 0.1
"""A put on a local disk without fsync; a clock of whole milliseconds measures nothing shorter."""
LATENCY_MS_MAX = 1_000.0
"""A longer put is an outage or a suspended machine, not the store's latency."""


class Latency:
    """The median of recent puts, in ms.

    Each measurement moves it by a tenth, up or down: half of the recent ones are above it, and one
    that took a thousand times as long moves it no further than any other. Thread-safe.
    """

    def __init__(self, latency_ms_max: float = LATENCY_MS_MAX) -> None:
        """A put that takes longer counts as `latency_ms_max`."""
        self._ms: float | None = None
        self._ms_max = latency_ms_max
        self._lock = threading.Lock()

    @property
    def ms(self) -> float:
        return LATENCY_MS_MIN if self._ms is None else self._ms

    def record(self, duration_ms: float) -> None:
        """Add one measurement."""
        duration_ms = max(LATENCY_MS_MIN, min(duration_ms, self._ms_max))
        with self._lock:
            if self._ms is None:
                self._ms = duration_ms
            elif duration_ms > self._ms:
                self._ms = min(duration_ms, self._ms * (1 + _STEP))
            elif duration_ms < self._ms:
                self._ms = max(duration_ms, self._ms / (1 + _STEP))
