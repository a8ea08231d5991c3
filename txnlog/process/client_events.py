"""What a client reports to its application: errors to `error_cb`, statistics to `stats_cb`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

Callback = Callable[[Any], Any] | None


class ClientEvents:
    """Errors of a client's background work, and when its statistics are due.

    Any thread may call `failed` and `recovered`. `serve`, in the thread of the application's poll,
    calls the callbacks. Of errors in a row that are alike, only the first is reported.
    """

    def __init__(
        self,
        *,
        error_cb: Callback,
        stats_cb: Callback,
        interval_ms: int,
        boot_ms: Callable[[], int],
    ) -> None:
        self._error_cb = error_cb
        self._stats_cb = stats_cb
        self._interval_ms = interval_ms
        self._boot_ms = boot_ms
        self._due_ms = boot_ms() + interval_ms
        self._errors: deque[Exception] = deque()
        self._newest: tuple[type[Exception], object] | None = None

    def failed(self, error: Exception) -> None:
        """Report an error, unless the one before it was alike."""
        alike = (type(error), getattr(error, "code", None))
        if self._error_cb is not None and alike != self._newest:
            self._newest = alike
            self._errors.append(error)

    def recovered(self) -> None:
        """The work succeeded: the next error is reported, whatever it is."""
        self._newest = None

    def serve(self, statistics: Callable[[], Mapping[str, Any]]) -> int:
        """Call the callbacks that are due; returns how many were called."""
        served = 0
        while self._errors and self._error_cb is not None:
            error = self._errors.popleft()
            served += 1
            self._error_cb(error)
        if self._stats_cb is not None and self._interval_ms and self._boot_ms() >= self._due_ms:
            self._due_ms = self._boot_ms() + self._interval_ms
            served += 1
            self._stats_cb(json.dumps(statistics()))
        return served
