"""A root as of a time is what it was then, also after all that has happened since."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.moments.worlds import Lake, comparable, taken, written
from txnlog.admin.moments import Moments
from txnlog.errors import ConfigError
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.protocol.moments import Moment
from txnlog.storage.delta.delta_log import LogSettings

DAY_MS = 86_400_000


def differences(then: Moment, again: Moment) -> list[str]:
    """The fields that differ, with both values."""
    one, other = comparable(then), comparable(again)
    return [
        f"{field.name} at {then.at_ms}:\n{getattr(one, field.name)}\n{getattr(other, field.name)}"
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    ]


def check_same(recorded: Sequence[Moment], later: Moments) -> None:
    wrong = [text for one in recorded for text in differences(one, later.at(one.at_ms))]
    assert not wrong, "\n\n".join(wrong)


def test_each_moment_is_the_same_when_it_is_asked_for_later() -> None:
    """A slider over time that shows another past than the one that was is worse than none."""
    lake = Lake()
    recorded = taken(lake, lake.moments())
    lake.later(60_000)
    assert len({comparable(one).at_ms for one in recorded}) == len(recorded) > 10
    check_same(recorded, lake.moments())
    check_same(recorded[::-1], lake.moments())


def test_past_moments_survive_compaction_vacuum_and_checkpoints() -> None:
    """What housekeeping changes is how the tables are now: their history is in their logs."""
    lake = Lake(settings=LogSettings(checkpoint_interval=3, checkpoint_mode="inline"))
    live = lake.moments()
    recorded = taken(lake, live)
    lake.admin().abort_transaction("stuck", reason="it hung").result()
    many = lake.producer("many")
    for _ in range(40):
        written(many, {"orders": 1})
    lake.later(60_000)
    recorded.append(live.now())
    lake.later(1_000)
    lake.keep_house()
    lake.later(1_000)
    kept = lake.moments()
    assert kept.now().topics["orders"].partitions[0].num_files < 20
    check_same(recorded, kept)


def test_moment_that_logs_no_longer_show_is_an_error_that_names_the_first_one() -> None:
    """A past of which half is missing must not be shown as if nobody had written then."""
    lake = Lake(settings=LogSettings(checkpoint_interval=3, checkpoint_mode="inline"))
    recorded = taken(lake, lake.moments())
    assert recorded[-1].earliest_ms <= recorded[0].at_ms
    lake.later(2 * DAY_MS)
    written(lake.producer("new"), {"orders": 1, "stock": 1})
    assert LogCleanup(lake.process()).run() > 0
    lake.later(10_000)
    moments = lake.moments()
    earliest_ms = moments.now().earliest_ms
    assert recorded[-1].at_ms > earliest_ms > recorded[0].at_ms
    for one in recorded:
        if one.at_ms < earliest_ms:
            with pytest.raises(ConfigError, match=str(earliest_ms)):
                moments.at(one.at_ms)
        else:
            again = moments.at(one.at_ms)
            assert again.problems == one.problems
            assert comparable(again).upkeep == comparable(one).upkeep
            for name, topic in one.topics.items():
                assert again.topics[name].partitions == topic.partitions
            for name, group in one.groups.items():
                assert again.groups[name].positions == group.positions
            assert any("clean-up" in note for note in again.notes)


def test_moment_before_the_cluster_existed_is_refused() -> None:
    lake = Lake()
    moments = lake.moments()
    first_ms = moments.now().earliest_ms
    assert moments.at(first_ms).at_ms == first_ms
    with pytest.raises(ConfigError, match=str(first_ms)):
        moments.at(first_ms - 1)


def test_time_to_come_is_now() -> None:
    lake = Lake()
    now_ms = lake.shared.clock.now_ms()
    assert lake.moments().at(now_ms + DAY_MS).is_now


def test_long_log_is_searched_in_few_requests() -> None:
    """A page that reads every commit to find one time reads a busy root for minutes."""
    lake = Lake()
    producer = lake.producer("many")
    times = []
    for _ in range(60):
        lake.later(7)
        written(producer, {"orders": 1})
        times.append(lake.shared.clock.now_ms())
    lake.later(10_000)
    # Listing times are of another clock here: only the commits tell.
    for number in (0, 31, 59):
        moment = lake.moments().at(times[number])
        assert moment.topics["orders"].partitions[0].high_watermark == number + 1


def test_later_moment_is_read_from_the_one_before() -> None:
    """Fifty moments of a root with a thousand topics must not open its logs fifty times."""
    lake = Lake()
    recorded = taken(lake, lake.moments())
    cluster = lake.process()
    moments = Moments(cluster)
    moments.at(recorded[0].at_ms)
    calls = cluster.store.calls  # type: ignore[attr-defined]
    calls.clear()
    check_same(recorded[1:6], moments)
    known = {f"{table}/_delta_log" for table in ("orders", "stock", "__cluster")}
    assert not known & {path for verb, path in calls if verb == "list"}
