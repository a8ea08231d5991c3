"""When an idle reader checks its topics: often after a record, seldom later, never too late."""

from __future__ import annotations

import pytest

from txnlog.protocol.polling import Polling, poll_interval_ms


@pytest.mark.parametrize(
    ("configured", "is_remote", "topics", "interval_ms"),
    [
        (None, False, 1, 10),
        (None, False, 20, 10),
        (None, False, 2_000, 1_000),
        (None, True, 1, 1_000),
        (None, True, 100, 1_000),
        (None, True, 2_000, 20_000),
        (250, True, 2_000, 250),
        (250, False, 1, 250),
    ],
)
def test_interval_depends_on_the_store_and_the_topics(
    configured: int | None, is_remote: bool, topics: int, interval_ms: int
) -> None:
    """A setting is taken as it is; a default bounds what idling costs."""
    assert poll_interval_ms(configured, is_remote=is_remote, topics=topics) == interval_ms


def test_checks_that_find_nothing_come_at_growing_intervals_up_to_the_longest() -> None:
    """An idle month is priced by the last of these waits."""
    polling = Polling()
    now_ms, waits = 0, []
    for _ in range(8):
        assert polling.is_due(now_ms)
        polling.checked(now_ms, interval_ms=1_000, is_remote=True)
        waits.append(polling.left_ms(now_ms))
        assert not polling.is_due(now_ms + waits[-1] - 1)
        now_ms += waits[-1]
    assert waits == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]


def test_record_and_new_partitions_shorten_the_wait() -> None:
    """More records may follow at once, and a partition just assigned must not wait."""
    polling = Polling()
    for _ in range(8):
        polling.checked(0, interval_ms=1_000, is_remote=True)
    polling.found()
    assert polling.is_due(0)
    polling.checked(0, interval_ms=1_000, is_remote=True)
    assert polling.left_ms(0) == 50
    polling.wake()
    assert polling.is_due(0)


def test_interval_below_the_first_wait_is_kept() -> None:
    """metadata.poll.interval.ms is an upper bound, also a short one."""
    polling = Polling()
    polling.checked(0, interval_ms=5, is_remote=True)
    assert polling.left_ms(0) == 5
