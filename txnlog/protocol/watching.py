"""How long an observer has watched something, although its machine may be suspended.

A clock that counts suspended time measures ages, not for how long something was watched: after a
suspend, or a pause of its process, an observer must not take the jump as idleness of others, which
may have been suspended with it (R34). So ages are differences of `watched_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

GAP_INTERVALS_MAX = 2
"""What a gap between two observations counts at most, in intervals of the observer."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Watched time of one observer. `observed_ms`: its newest observation, by its boot clock."""

    observed_ms: int
    watched_ms: int = 0
    was_away: bool = False

    def observe(self, *, now_ms: int, interval_ms: int) -> Watch:
        """The watch after another observation; one is due every `interval_ms`.

        A longer gap does not count. If every gap is longer, because the observer is called too
        seldom, each counts GAP_INTERVALS_MAX intervals: ages are reached late, but reached.
        """
        gap_ms_max = GAP_INTERVALS_MAX * interval_ms
        gap_ms = max(0, now_ms - self.observed_ms)
        is_away = gap_ms > gap_ms_max
        if is_away:
            gap_ms = gap_ms_max if self.was_away else 0
        return Watch(now_ms, self.watched_ms + gap_ms, is_away)
