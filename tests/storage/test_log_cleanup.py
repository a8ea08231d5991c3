"""Log clean-up keeps what is young, and all that it takes to open it (R70)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.number_log import HOUR_MS, OFF, TABLE, checkpoint, created, opened, slots, write
from txnlog.errors import ConfigError, CorruptLogError
from txnlog.process.clock import VirtualClock
from txnlog.storage.delta import log_files
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_cleanup import checkpoint_and_clean_up, clean_up, find_expired
from txnlog.storage.delta.log_files import LogFiles, checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectMeta, ObjectStore
from txnlog.testing.faults import Fault, SharedMemory


def test_clean_up_without_checkpoint_deletes_nothing(store: ObjectStore) -> None:
    """The log is all there is."""
    created(store, 3)
    assert clean_up(store, TABLE, retention_ms=-1) == []


def test_clean_up_goes_by_the_stores_clock() -> None:
    """A machine whose clock runs days ahead must not delete what others still read (R34)."""
    shared = SharedMemory()
    log = created(shared.open(), 3)
    checkpoint(shared.open())
    wrong = VirtualClock(shared.clock.now_ms() + 365 * 24 * HOUR_MS)
    store = shared.open(clock=wrong)
    assert clean_up(store, TABLE, retention_ms=OFF.log_retention_ms) == []
    shared.clock.advance_ms(OFF.log_retention_ms + 1)
    write(log, 4)
    wrong.advance_ms(OFF.log_retention_ms + 1)
    assert len(clean_up(store, TABLE, retention_ms=OFF.log_retention_ms)) == 3


def test_clean_up_keeps_the_retention_and_what_the_newest_checkpoint_needs() -> None:
    """What stays must have no hole, and must begin with a checkpoint."""
    shared = SharedMemory()
    store = shared.open()
    log = created(store, 2)
    for number in range(3, 30):
        shared.clock.advance_ms(HOUR_MS)
        log.refresh()
        write(log, number)
        if number % 5 == 0:
            checkpoint(store)
            clean_up(store, TABLE, retention_ms=4 * HOUR_MS)
            files = log_files.list_log(store, TABLE)
            assert files.commits == list(range(files.commits[0], number + 1))
            kept_ms = (
                store.now_ms() - store.head(commit_path(TABLE, files.commits[0])).last_modified_ms
            )
            assert kept_ms <= 5 * HOUR_MS
        assert opened(shared.open())[0].version == number
    assert len(files.commits) <= 7


def test_version_superseded_a_moment_ago_can_still_be_opened(tmp_path: Path) -> None:
    """A reader pinned the head of an idle table; one commit later it was gone."""
    from deltalake import DeltaTable

    store = ObjectStore.from_url(str(tmp_path / "root"))
    log = created(store, 12)
    folder = str(tmp_path / "root" / TABLE)
    old_s = (store.now_ms() - 2 * OFF.log_retention_ms) / 1000
    for entry in os.scandir(f"{folder}/_delta_log"):
        os.utime(entry.path, (old_s, old_s))
    write(log, 13)
    assert checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms()) == 0
    assert log_files.list_log(store, TABLE).checkpoints == [13]
    assert DeltaTable(folder, version=12).transaction_version("12") == 12
    for entry in os.scandir(f"{folder}/_delta_log"):
        os.utime(entry.path, (old_s, old_s))
    assert checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms()) == 13
    assert DeltaTable(folder, version=13).transaction_version("12") == 12


def checkpoint_twice(shared: SharedMemory, store: ObjectStore) -> None:
    """At 5, which has expired, and at 6, which is young."""
    log = created(store, 5)
    checkpoint(store)
    shared.clock.advance_ms(OFF.log_retention_ms + 1)
    log.refresh()
    write(log, 6)
    checkpoint(store)


def test_damaged_checkpoint_that_young_versions_are_built_from_keeps_what_it_replaces() -> None:
    """A younger one is whole and the table opens; the versions between would be lost (R66)."""
    shared = SharedMemory()
    store = shared.open()
    checkpoint_twice(shared, store)
    path = checkpoint_path(TABLE, 5)
    good = store.get(path)
    store.put(path, good[:-100] + bytes(100))
    before = slots(store)
    with pytest.raises(CorruptLogError, match=f"{5:020}.checkpoint.parquet"):
        checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms())
    assert slots(store) == before
    store.put(path, good)
    assert checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms()) == 5


def test_clean_up_that_another_overtakes_deletes_nothing() -> None:
    """Writers clean their logs while housekeeping does: what it was about to read is gone."""
    shared = SharedMemory()
    store, other = shared.open(), shared.open()
    checkpoint_twice(shared, store)

    def overtaken(verb: str, path: str) -> Fault:
        if (verb, path) == ("get", checkpoint_path(TABLE, 5)):
            store.plan = lambda verb, path: Fault.NONE
            shared.clock.advance_ms(OFF.log_retention_ms + 1)
            assert checkpoint_and_clean_up(other, TABLE, OFF, now_ms=other.now_ms()) > 0
        return Fault.NONE

    store.plan = overtaken
    assert checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms()) == 0
    assert log_files.list_log(store, TABLE).checkpoints == [6]


def is_overtaken_at(call: int) -> bool:
    """Clean a log up; before this call another process replaces all files by a newer checkpoint.

    Whether there was such a call.
    """
    shared = SharedMemory()
    store, other = shared.open(), shared.open()
    log = created(store, 12)
    checkpoint(store)
    log.refresh()
    for number in range(13, 30):
        write(log, number)
    shared.clock.advance_ms(OFF.log_retention_ms + 1)
    seen = 0

    def overtaken(verb: str, path: str) -> Fault:
        nonlocal seen
        seen += 1
        if seen == call:
            create_checkpoint(other, TABLE, trust_ms=OFF.trust_ms)
            clean_up(other, TABLE, retention_ms=-1)
        return Fault.NONE

    store.plan = overtaken
    checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms())
    assert opened(shared.open())[0].version == 29
    return seen >= call


def test_clean_up_that_another_one_overtakes_at_any_call_is_no_error() -> None:
    """A process lists the log; what it was about to read is gone then."""
    calls = next(call for call in itertools.count(1) if not is_overtaken_at(call))
    assert calls > 10


BEFORE_MS = 8
TIMES_MS = st.integers(0, 10)


@st.composite
def logs(draw: st.DrawFn) -> LogFiles:
    """Any log, with a hole or two; a checkpoint is written after the commits that are in it."""
    times_ms = draw(st.lists(TIMES_MS, min_size=1, max_size=10))
    head = len(times_ms) - 1
    holes = draw(st.sets(st.integers(0, 9), max_size=2)) - {head}
    commits = [version for version in range(head + 1) if version not in holes]
    versions = sorted(draw(st.sets(st.integers(0, head), max_size=3)))
    objects = [ObjectMeta(commit_path(TABLE, v), 1, times_ms[v]) for v in commits]
    for version in versions:
        at_ms = max(draw(TIMES_MS), *times_ms[: version + 1])
        objects.append(ObjectMeta(checkpoint_path(TABLE, version), 1, at_ms))
    return LogFiles(TABLE, commits, versions, objects)


def buildable(files: LogFiles, version: int) -> bool:
    """A reader finds a checkpoint at or below it, or the first commit, and all commits after."""
    if version not in files.commits and version not in files.checkpoints:
        return False
    start = max((v for v in files.checkpoints if v <= version), default=-1)
    return all(v in files.commits for v in range(start + 1, version + 1))


def without(files: LogFiles, doomed: list[ObjectMeta]) -> LogFiles:
    left = [item for item in files.objects if item not in doomed]
    return log_files.sort_files(TABLE, left)


@given(files=logs())
def test_clean_up_keeps_every_version_that_was_the_newest_within_the_retention(
    files: LogFiles,
) -> None:
    """A version can be read for the retention after it is superseded; the head always stays."""
    doomed = find_expired(files, before_ms=BEFORE_MS)
    left = without(files, doomed)
    assert all(item.last_modified_ms <= BEFORE_MS for item in doomed)
    head = files.commits[-1]
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    young = [v for v in files.commits if written_ms[commit_path(TABLE, v)] > BEFORE_MS]
    for version in range(young[0] - 1 if young else head, head + 1):
        assert buildable(left, version) == buildable(files, version)


@given(files=logs())
def test_clean_up_below_an_expired_checkpoint_leaves_nothing_expired(files: LogFiles) -> None:
    """A reader that pinned an older version has had the retention to read it."""
    newest = files.newest_checkpoint
    doomed = find_expired(files, before_ms=BEFORE_MS)
    left = without(files, doomed)
    assert find_expired(left, before_ms=BEFORE_MS) == []
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    if newest is not None and written_ms[checkpoint_path(TABLE, newest)] <= BEFORE_MS:
        assert left.commits == [version for version in files.commits if version >= newest]
        below = [checkpoint_path(TABLE, version) for version in left.checkpoints[:-1]]
        assert all(written_ms[path] > BEFORE_MS for path in below)


def test_log_of_an_ordinary_life_gets_shorter_all_the_time() -> None:
    """What waits for a checkpoint to grow old must not wait for ever."""
    shared = SharedMemory()
    settings = LogSettings(checkpoint_interval=10, checkpoint_mode="inline")
    store = shared.open()
    log = created(store, 0, settings)
    lengths = []
    for number in range(1, 120):
        shared.clock.advance_ms(HOUR_MS)
        log.refresh()
        write(log, number)
        lengths.append(len(log_files.list_whole_log(store, TABLE).commits))
    day = OFF.log_retention_ms // HOUR_MS
    assert max(lengths) <= day + 2 * settings.checkpoint_interval
    assert min(lengths[60:]) >= day


def test_settings_with_a_retention_shorter_than_what_is_trusted_are_refused() -> None:
    """Half of the retention is how long a reader trusts what it has read (R70)."""
    with pytest.raises(ConfigError, match="log_retention_ms"):
        LogSettings(log_retention_ms=HOUR_MS // 2)


def test_clean_up_deletes_one_after_the_other_oldest_first() -> None:
    """A list is deleted in any order: a slot would be free while the commit before it is there.

    A process that was paused with all its clocks takes such a slot for the next one (D3).
    """
    shared = SharedMemory()
    store = shared.open()
    checkpoint_twice(shared, store)
    store.calls.clear()
    assert checkpoint_and_clean_up(store, TABLE, OFF, now_ms=store.now_ms()) == 5
    deleted = [path for verb, path in store.calls if verb == "delete" and TABLE in path]
    assert deleted == [commit_path(TABLE, version) for version in range(5)]
