"""History is bounded: so many commits of a table, and none twice."""

from __future__ import annotations

from unittest.mock import patch

from tests.moments.worlds import Lake, written
from txnlog.admin import recent
from txnlog.admin.moments import Moments
from txnlog.storage.delta.delta_log import LogSettings


def gets(moments: Moments) -> list[str]:
    calls = moments._base.store.calls  # type: ignore[attr-defined]
    found = [path for verb, path in calls if verb == "get" and path.startswith("orders/_delta_log")]
    calls.clear()
    return found


def test_only_the_newest_commits_of_a_busy_table_are_read() -> None:
    """A topic with a million commits must not be read back for its first picture."""
    lake = Lake(settings=LogSettings(checkpoint_interval=100, checkpoint_mode="inline"))
    producer = lake.producer("many")
    for _ in range(120):
        written(producer, {"orders": 1})
    lake.later(1_000)
    with patch.object(recent, "COMMITS_MAX", 30):
        moments = lake.moments()
        gets(moments)
        moment = moments.now()
        assert len(gets(moments)) < 80
        assert any("newest commits" in note and "orders" in note for note in moment.notes)
        assert sum(point.value for point in moment.topics["orders"].rates) > 0
        [lane] = moment.lanes
        assert 0 < len(lane.bars) <= 2 * 30


def test_open_page_reads_each_commit_once() -> None:
    lake = Lake()
    producer = lake.producer("many")
    written(producer, {"orders": 1})
    moments = lake.moments()
    moments.now()
    gets(moments)
    for _ in range(5):
        lake.later(20_000)
        written(producer, {"orders": 1})
        lake.later(20_000)
        moments.now()
    read = [path for path in gets(moments) if path.endswith(".json")]
    there = [path for path in read if lake.process().store.exists(path)]
    # A slot is asked for while it is empty, and once more when it is taken.
    assert len(set(there)) == 5
    assert len(there) <= 2 * 5


def test_window_moves_on() -> None:
    """What is older than the window is forgotten."""
    lake = Lake()
    written(lake.producer("old"), {"orders": 7})
    moments = lake.moments()
    assert [lane.title for lane in moments.now().lanes] == ["old"]
    for _ in range(4):
        lake.later(600_000)
        moment = moments.now()
    assert moment.lanes == []
    assert moment.topics["orders"].rate == 0
    assert moment == lake.moments().now()
    kept = [len(known) for known in moments._live._recent._tables.values()]  # type: ignore[union-attr]
    assert max(kept) <= 1
