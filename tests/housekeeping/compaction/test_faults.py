"""Every storage call of a compaction fails, or meets the write of another process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import Trial, cuts, meetings
from tests.housekeeping.compaction.logs import (
    TOPIC,
    Idempotent,
    Record,
    append,
    begin,
    bounds,
    commit,
    live,
    records_of,
    snapshot,
    world,
)
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite
from txnlog.protocol.compaction import Compacted, CompactionSettings, Obsolete, plan
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
DAY_MS = 86_400_000


def filled(config: dict[str, str] | None = None) -> SharedMemory:
    """Committed, aborted and plain batches, and an open transaction at the end."""
    shared = world(config=config)
    cluster = process(shared)
    row, eager = begin(cluster), begin(cluster, "eager")
    producer = Idempotent.start(cluster)
    # Key compaction rewrites two files, merging wants ten; and every call of it is a case.
    sends, rounds = (6, 5) if config is None else (2, 2)
    for number in range(sends):
        producer.send([Record(b"p", b"%d" % number)])
    for number in range(rounds):
        row = commit(cluster, row, [Record(b"a", b"%d" % number), Record(b"b%d" % number, None)])
        eager = append(cluster, eager, [Record(b"a", b"never")])
        eager = cluster.coordinator.abort(eager)
    append(cluster, eager, [Record(b"a", b"open")])
    return shared


def compacting(cluster: Cluster) -> int:
    """Merge and key-compact all there is, with few files to a segment."""
    return Compactor(cluster).compact(TOPIC)


def begun(original: SharedMemory) -> Trial:
    """A compaction of a copy."""
    shared = copied(original)
    cluster = process(shared)
    return Trial(shared, cluster, partial(compacting, cluster))


def copied(shared: SharedMemory) -> SharedMemory:
    """Another store with the same objects."""
    twin = SharedMemory()
    for page in shared.backing.list():
        for item in page:
            twin.backing.put(item["path"], shared.backing.get(item["path"]).bytes())
    twin.modified_ms.update(shared.modified_ms)
    return twin


def newest(cluster: Cluster) -> dict[bytes | None, bytes | None]:
    """Key -> value, for who reads all of the topic."""
    return {r.key: r.value for _, r in records_of(cluster.topic(TOPIC)) if r.key is not None}


@pytest.mark.parametrize("config", [None, COMPACTED], ids=["merge", "key-compact"])
def test_compaction_that_meets_a_fault_anywhere_loses_and_doubles_nothing(
    config: dict[str, str] | None, some: Some[Any]
) -> None:
    """Before a call, after it, instead of its reply: the next one finds all there (R20, R22)."""
    original = filled(config)
    before = snapshot(process(original).topic(TOPIC))
    known = newest(process(original))
    undisturbed = begun(original)
    assert undisturbed.act()
    files = live(undisturbed.cluster.topic(TOPIC).view)
    for trial in cuts(partial(begun, original), some):
        after = process(trial.shared)
        assert newest(after) == known
        compacting(after)
        assert newest(after) == known
        found = snapshot(after.topic(TOPIC))
        assert found[1:] == before[1:]
        if config is None:
            assert found == before
        assert live(after.topic(TOPIC).view) == files
        check_key_compacted(after)
        check_cluster(after)


def check_key_compacted(cluster: Cluster) -> None:
    """Below the end of the newest pass each key has one record."""
    log = cluster.topic(TOPIC)
    cleaned_offset = log.view.partitions[0].cleaned_offset
    keys = [record.key for offset, record in records_of(log) if offset < cleaned_offset]
    assert len(set(keys)) == len(keys)


def others(shared: SharedMemory) -> dict[str, Callable[[], None]]:
    """What another process may do in the midst of a compaction."""
    other = process(shared)

    def write() -> None:
        commit(other, begin(other, "other"), [Record(b"new", b"1")])

    def end() -> None:
        other.coordinator.abort(begin(other, "eager"))

    def compact() -> None:
        compacting(other)

    def merge_pairs() -> None:
        settings = CompactionSettings(segment_bytes=100_000, inputs_min=2, inputs_max=2)
        for group in plan(other.topic(TOPIC).view, TOPIC, settings):
            commit_segment(other, group, rewrite(other.store, group))

    def recreate() -> None:
        other.delete_topic(TOPIC)
        other.create_topic(TOPIC, partitions=1)
        commit(other, begin(other, "other"), [Record(b"new", b"1")])

    return {
        "write": write,
        "end": end,
        "compact": compact,
        "merge pairs": merge_pairs,
        "recreate": recreate,
    }


@pytest.mark.parametrize("config", [None, COMPACTED], ids=["merge", "key-compact"])
@pytest.mark.parametrize("act", ["write", "end", "compact", "merge pairs", "recreate"])
def test_compaction_beside_another_process_at_any_call_loses_nothing(
    config: dict[str, str] | None, act: str, some: Some[Any]
) -> None:
    """An append, an end, a second compactor, another topic of the name (R20, R22, R71)."""
    original = filled(config)
    before = newest(process(original))
    ((_, _, end),) = bounds(process(original).topic(TOPIC).view)
    for trial in meetings(partial(begun, original), lambda t: others(t.shared)[act](), some):
        for after in (trial.cluster, process(trial.shared)):
            assert newest(after) == ({b"new": b"1"} if act == "recreate" else before)
            check_key_compacted(after)
            if act == "write":
                assert bounds(after.topic(TOPIC).view)[0][2] == end + 1
            check_cluster(after)


# --- Rules of the commit --------------------------------------------------------------------------

MERGE = CompactionSettings(segment_bytes=100_000, inputs_min=2)


@pytest.fixture
def shared() -> SharedMemory:
    shared = world()
    cluster = process(shared)
    row = begin(cluster)
    for number in range(6):
        row = commit(cluster, row, [Record(b"k", b"%d" % number)])
    return shared


def test_segment_staged_too_long_ago_is_not_committed(shared: SharedMemory) -> None:
    """Vacuum may have taken it (R72)."""
    cluster = process(shared)
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, MERGE)
    segment = rewrite(cluster.store, group)
    shared.clock.advance_ms(7 * DAY_MS // 2 + 1_000)
    assert isinstance(commit_segment(cluster, group, segment), Obsolete)
    assert len(live(cluster.topic(TOPIC).view)) == 6


def test_segment_committed_twice_is_recognised(shared: SharedMemory) -> None:
    """The compactor that lost the reply calls again."""
    cluster = process(shared)
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, MERGE)
    segment = rewrite(cluster.store, group)
    assert isinstance(commit_segment(cluster, group, segment), TopicCommit)
    assert isinstance(commit_segment(process(shared), group, segment), Compacted)
    again = rewrite(cluster.store, group)
    assert isinstance(commit_segment(process(shared), group, again), Obsolete)


def test_reader_in_the_midst_of_files_reads_on_after_they_were_merged(
    shared: SharedMemory,
) -> None:
    """It planned the old files, which stay until vacuum; and plans the new one from there (R20)."""
    reader = process(shared)
    log = reader.topic(TOPIC)
    whole = records_of(log)
    planned = log.view.batches(0, 0, 6, True)
    compacting(process(shared))
    assert len(live(process(shared).topic(TOPIC).view)) == 6, "too few to be worth it"
    (group,) = plan(process(shared).topic(TOPIC).view, TOPIC, MERGE)
    other = process(shared)
    commit_segment(other, group, rewrite(other.store, group))
    old = [
        header.base_offset + delta
        for header in planned
        for batch in read_batch_file(reader.store, FileSpan(f"{TOPIC}/{header.path}"))
        for delta in batch.column("offset_delta").to_pylist()
    ]
    assert old == [seen.offset for seen in whole]
    log.refresh()
    (segment,) = log.view.batches(0, 3, 6, True)
    span = FileSpan(f"{TOPIC}/{segment.path}", first_delta=3)
    rest = read_batch_file(reader.store, span)
    assert [d for batch in rest for d in batch.column("offset_delta").to_pylist()] == [3, 4, 5]
    assert bounds(log.view) == [(0, 6, 6)]
