"""How long an observer has watched something, when its machine may be suspended in between.

A clock that counts suspended time says how old a thing is, not for how long it was looked at: after
a suspend, or a pause of its process, an observer must not take the jump for the idleness of others,
which may have stood still with it (R34). So ages are differences of `watched_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKS_MAX = 2
"""A gap between two looks counts up to so many of the observer's intervals."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The looks of one observer. `looked_ms`: its newest look, by its boot clock."""

    looked_ms: int
    watched_ms: int = 0
    was_away: bool = False

    def look(self, *, now_ms: int, interval_ms: int) -> Watch:
        """The watch after another look; the observer means to look every `interval_ms`.

        A longer gap does not count. An observer that is away before every look, because nothing
        calls it more often, counts LOOKS_MAX intervals for each gap: late, but not never.
        """
        gap_ms_max = LOOKS_MAX * interval_ms
        gap_ms = max(0, now_ms - self.looked_ms)
        is_away = gap_ms > gap_ms_max
        if is_away:
            gap_ms = gap_ms_max if self.was_away else 0
        return Watch(now_ms, self.watched_ms + gap_ms, is_away)
