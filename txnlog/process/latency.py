"""How long a store takes for a put: the measure of back-offs. One owner for each store."""

from __future__ import annotations

import threading

_STEP = 0.1
_MS_MAX = 1_000.0
"""A longer put is an outage or a suspended machine, not the store's latency."""


class Latency:
    """The median of recent puts, in ms; 0 before the first.

    Each measurement moves it by a tenth, up or down: half of the recent ones are above it, and one
    that took a thousand times as long moves it no further than any other. Thread-safe.
    """

    def __init__(self) -> None:
        self._ms = 0.0
        self._lock = threading.Lock()

    @property
    def ms(self) -> float:
        return self._ms

    def record(self, duration_ms: float) -> None:
        """Add one measurement."""
        duration_ms = min(duration_ms, _MS_MAX)
        with self._lock:
            if self._ms < 1.0:
                self._ms = duration_ms
            elif duration_ms > self._ms:
                self._ms = min(duration_ms, self._ms * (1 + _STEP))
            elif duration_ms < self._ms:
                self._ms = max(duration_ms, self._ms / (1 + _STEP))
