"""What an observer may take for time that it has watched (R34)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnlog.protocol.watching import GAP_INTERVALS_MAX, Watch

INTERVAL_MS = 10_000
GAPS_MS = st.integers(0, 10 * INTERVAL_MS) | st.integers(0, 10**9)


def watched(gaps_ms: list[int]) -> Watch:
    watch = Watch(0)
    for gap_ms in gaps_ms:
        watch = watch.observe(now_ms=watch.observed_ms + gap_ms, interval_ms=INTERVAL_MS)
    return watch


@given(st.lists(GAPS_MS, max_size=20))
def test_watch_counts_no_more_than_passed_and_two_intervals_a_check(gaps_ms: list[int]) -> None:
    """However far the clock jumps, one check adds little."""
    found = watched(gaps_ms).watched_ms
    assert found <= sum(min(gap_ms, GAP_INTERVALS_MAX * INTERVAL_MS) for gap_ms in gaps_ms)
    assert found >= sum(gap_ms for gap_ms in gaps_ms if gap_ms <= GAP_INTERVALS_MAX * INTERVAL_MS)


@given(
    st.lists(st.integers(0, GAP_INTERVALS_MAX * INTERVAL_MS), max_size=20),
    st.integers(0, 20),
    GAPS_MS,
)
def test_watch_of_an_observer_that_was_suspended_once_counts_nothing_of_it(
    gaps_ms: list[int], at: int, more_ms: int
) -> None:
    """A suspended process watched nothing, so it saw no idleness."""
    away_ms = GAP_INTERVALS_MAX * INTERVAL_MS + 1 + more_ms
    cut = min(at, len(gaps_ms))
    assert watched([*gaps_ms[:cut], away_ms, *gaps_ms[cut:]]).watched_ms == sum(gaps_ms)


def test_watch_of_an_observer_that_is_always_late_continues() -> None:
    """Else a hanging transaction would stay forever where observers check rarely."""
    assert watched([3_600_000] * 4).watched_ms == 3 * GAP_INTERVALS_MAX * INTERVAL_MS
