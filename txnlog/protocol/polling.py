"""When an idle reader checks its topics again: each check of a topic is one request.

A check soon finds a record, and costs the same whether it finds one or not. So the checks of a
reader that finds nothing come at growing intervals, up to the one that a new record may wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

LOCAL_MS = 10
LOCAL_TOPICS_PER_MS = 2
"""A check takes 10 microseconds on a local disk: with many topics, a fiftieth of a core."""
REMOTE_MS = 1_000
REMOTE_MS_PER_TOPIC = 10
"""At most 100 requests per second, however many topics there are."""
_FIRST_LOCAL_MS = 1
_FIRST_REMOTE_MS = 50


def poll_interval_ms(configured_ms: int | None, *, is_remote: bool, topics: int) -> int:
    """The longest interval of the checks: metadata.poll.interval.ms, or its default."""
    if configured_ms is not None:
        return configured_ms
    if is_remote:
        return max(REMOTE_MS, REMOTE_MS_PER_TOPIC * topics)
    return max(LOCAL_MS, topics // LOCAL_TOPICS_PER_MS)


@dataclass(slots=True)
class Polling:
    """The checks of one reader, by its boot clock in ms. It is due at first."""

    checked_ms: int | None = None
    _wait_ms: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether the topics are to be checked."""
        return self.left_ms(now_ms) <= 0

    def left_ms(self, now_ms: int) -> int:
        """Time until the next check, 0 or less if it is due."""
        return 0 if self.checked_ms is None else self.checked_ms + self._wait_ms - now_ms

    def checked(self, now_ms: int, *, interval_ms: int, is_remote: bool) -> None:
        """The topics were checked; if nothing is found there, the next wait is twice as long."""
        first_ms = _FIRST_REMOTE_MS if is_remote else _FIRST_LOCAL_MS
        self.checked_ms = now_ms
        self._wait_ms = min(interval_ms, max(first_ms, 2 * self._wait_ms))

    def found(self) -> None:
        """There was a record: more may follow soon."""
        self._wait_ms = 0

    def wake(self) -> None:
        """Something else than a record has changed what is to be read: check now."""
        self.checked_ms = None
