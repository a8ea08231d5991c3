"""cleanup.policy=compact: the newest committed record of each key stays (R23)."""

from __future__ import annotations

import pytest

from tests.housekeeping.compaction.key_passes import (
    CONFIG,
    RETENTION_MS,
    due,
    key_compact,
    keyed,
    shown,
    values,
)
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
    world,
)
from tests.world import process
from txnlog.housekeeping.compaction import segments
from txnlog.housekeeping.compaction.segments import commit_end_of_pass
from txnlog.protocol.compaction import Obsolete
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster


@pytest.fixture
def shared() -> SharedMemory:
    found = world(config=CONFIG)
    found.clock.advance_ms(1_000_000)
    return found


def test_aborted_value_does_not_shadow_the_committed_one(shared: SharedMemory) -> None:
    """The newest record of the key is aborted, so no reader may see it (R23)."""
    cluster = process(shared)
    commit(cluster, begin(cluster), [keyed("a", "1"), keyed("b", "2")])
    row = append(cluster, begin(cluster, "eager"), [keyed("a", "never"), keyed("b", None)])
    cluster.coordinator.abort(row)
    assert key_compact(cluster)
    assert shown(cluster) == [(0, "a", "1"), (1, "b", "2")]
    assert live(cluster.topic(TOPIC).view) == [(0, 3, "none")]


def test_open_transaction_ends_a_pass_where_it_begins(shared: SharedMemory) -> None:
    """Its records may be aborted, and later records are not stable (R12, R23)."""
    cluster = process(shared)
    row = commit(cluster, begin(cluster), [keyed("a", "1"), keyed("a", "2")])
    opened = append(cluster, begin(cluster, "eager"), [keyed("a", "3")])
    commit(cluster, row, [keyed("a", "4")])
    assert key_compact(cluster)
    log = cluster.topic(TOPIC)
    assert [seen.offset for seen in records_of(log, read_committed=False)] == [1, 2, 3]
    assert bounds(log.view) == [(0, 2, 4)]
    cluster.coordinator.commit(opened, [])
    assert key_compact(cluster)
    assert shown(cluster) == [(3, "a", "4")]
    assert bounds(cluster.topic(TOPIC).view) == [(0, 4, 4)]


def test_records_without_a_key_go_as_in_kafka(shared: SharedMemory) -> None:
    """There is nothing that one of them could be the newest of."""
    cluster = process(shared)
    commit(cluster, begin(cluster), [keyed("a", "1"), Record(None, b"x"), Record(b"", b"empty")])
    assert key_compact(cluster)
    assert shown(cluster) == [(0, "a", "1"), (2, "", "empty")]


def test_tombstone_stays_until_the_pass_after_its_retention(shared: SharedMemory) -> None:
    """A reader that was away for less learns of the deletion; it goes at last (R23)."""
    cluster = process(shared)
    row = commit(cluster, begin(cluster), [keyed("a", "1"), keyed("a", None)])
    assert key_compact(cluster)
    shared.clock.advance_ms(RETENTION_MS - 1)
    row = commit(cluster, row, [keyed("b", "1")])
    assert key_compact(cluster)
    assert shown(cluster) == [(1, "a", None), (2, "b", "1")]
    shared.clock.advance_ms(1)
    assert key_compact(cluster) is False, "as in Kafka, it waits for something to compact"
    commit(cluster, row, [keyed("c", "1")])
    assert key_compact(cluster)
    assert shown(cluster) == [(2, "b", "1"), (3, "c", "1")]


def test_tombstone_of_a_killed_pass_stays_with_what_it_deletes(shared: SharedMemory) -> None:
    """Dropped by a later pass while the older value is still there, it would raise the dead."""
    cluster = process(shared)
    row = begin(cluster)
    for number in range(8):
        row = commit(cluster, row, [keyed(f"k{number}", "x"), keyed("a", str(number))])
    row = commit(cluster, row, [keyed("a", None)])
    killed = 0
    while True:
        key_compact(process(shared), steps=killed + 1)
        assert b"a" not in values(records_of(cluster.topic(TOPIC)))
        assert shown(cluster)[-1] == (16, "a", None)
        if cluster.topic(TOPIC).view.partitions[0].cleaned_offset:
            break
        killed += 1
        shared.clock.advance_ms(2 * RETENTION_MS)
    assert killed > 9
    shared.clock.advance_ms(RETENTION_MS)
    commit(cluster, row, [keyed("z", "1")])
    assert key_compact(cluster)
    assert b"a" not in {record.key for _, record in records_of(cluster.topic(TOPIC))}


def test_record_younger_than_min_compaction_lag_stays_with_all_after_it(
    shared: SharedMemory,
) -> None:
    """min.compaction.lag.ms is for readers that want every change, for a while."""
    cluster = process(shared)
    cluster.topic_log(TOPIC).alter(lambda config: {**config, "min.compaction.lag.ms": "500"})
    now_ms = cluster.store.now_ms()
    row = commit(cluster, begin(cluster), [keyed("a", "1", at_ms=now_ms)])
    row = commit(cluster, row, [keyed("a", "2", at_ms=now_ms + 400)])
    commit(cluster, row, [keyed("a", "3", at_ms=now_ms)])
    assert not key_compact(cluster)
    shared.clock.advance_ms(500)
    assert key_compact(cluster)
    assert [offset for offset, *_ in shown(cluster)] == [0, 1, 2]
    shared.clock.advance_ms(400)
    assert key_compact(cluster)
    assert [offset for offset, *_ in shown(cluster)] == [2]


def test_pass_waits_for_the_dirty_ratio_and_not_longer_than_the_lag_allows(
    shared: SharedMemory,
) -> None:
    """min.cleanable.dirty.ratio saves rewriting; max.compaction.lag.ms is a promise."""
    cluster = process(shared)
    change = {"min.cleanable.dirty.ratio": "0.5", "max.compaction.lag.ms": "60000"}
    cluster.topic_log(TOPIC).alter(lambda config: {**config, **change})
    now_ms = cluster.store.now_ms()
    records = [keyed(f"k{n:04}", str(n * 7_919), at_ms=now_ms) for n in range(2_000)]
    row = commit(cluster, begin(cluster), records)
    assert key_compact(cluster)
    commit(cluster, row, [keyed("k0000", "new", at_ms=now_ms)])
    assert not key_compact(cluster)
    shared.clock.advance_ms(60_000)
    assert not key_compact(cluster)
    shared.clock.advance_ms(1)
    assert key_compact(cluster)
    assert [offset for offset, *_ in shown(cluster)] == list(range(1, 2_001))


def test_batch_that_may_be_repeated_loses_records_and_keeps_its_header(
    shared: SharedMemory,
) -> None:
    """Only its sequences distinguish a repeat from new records (R2, R22, R23)."""
    cluster = process(shared)
    producer = Idempotent.start(cluster)
    for number in range(3):
        producer.send([keyed("a", str(number)), keyed(f"k{number}", "x")])
    assert key_compact(cluster)
    assert [offset for offset, *_ in shown(cluster)] == [1, 3, 4, 5]
    assert live(cluster.topic(TOPIC).view) == [(0, 1, "none"), (2, 3, "none"), (4, 5, "none")]
    for number, (batch, sequence) in enumerate(producer.sent):
        assert producer.repeat(batch, sequence) == 2 * number
    cold = process(shared)
    producer.cluster = cold
    for number, (batch, sequence) in enumerate(producer.sent):
        assert producer.repeat(batch, sequence) == 2 * number
    assert producer.send([keyed("b", "1")]) == 6
    check_cluster(cold)


def test_topic_created_again_is_cleaned_from_its_own_start(shared: SharedMemory) -> None:
    """A pass over the old topic must not count for the new one (R71)."""
    cluster = process(shared)
    commit(cluster, begin(cluster), [keyed("a", "1"), keyed("a", "2")])
    assert key_compact(cluster)
    late = due(cluster)
    assert late is None
    cluster.delete_topic(TOPIC)
    cluster.create_topic(TOPIC, partitions=1, config=CONFIG)
    commit(cluster, begin(cluster, "new"), [keyed("a", "3"), keyed("a", "4")])
    assert key_compact(cluster)
    assert shown(cluster) == [(3, "a", "4")]


def test_pass_that_another_has_overtaken_is_not_written_down(shared: SharedMemory) -> None:
    """The end of the newest pass, and its time, must not go back."""
    cluster = process(shared)
    row = commit(cluster, begin(cluster), [keyed("a", "1"), keyed("a", None)])
    late = due(cluster)
    assert late is not None
    commit(cluster, row, [keyed("b", "1")])
    assert key_compact(process(shared))
    before = process(shared).topic(TOPIC).view.partitions[0]
    assert isinstance(commit_end_of_pass(cluster, late), Obsolete)
    after = process(shared).topic(TOPIC).view.partitions[0]
    assert after == before
    assert after.cleaned_offset == 3


def test_pass_that_ends_inside_a_file_keeps_the_rest_of_it(
    shared: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not read the records after its end, and must not change them."""
    cluster = process(shared)
    none = Record(None, b"x")
    commit(cluster, begin(cluster), [keyed("a", "1"), keyed("a", "2"), none, keyed("a", "3"), none])
    monkeypatch.setattr(segments, "READ_ROWS", 2)
    assert key_compact(cluster, buffer_bytes=1)
    assert [offset for offset, *_ in shown(cluster)] == [1, 2, 3, 4]
    assert cluster.topic(TOPIC).view.partitions[0].cleaned_offset == 2
    while key_compact(cluster, buffer_bytes=1):
        pass
    assert [offset for offset, *_ in shown(cluster)] == [3]


def test_pass_ends_where_its_memory_is_full(shared: SharedMemory) -> None:
    """A topic whose keys do not fit in memory is compacted in several passes."""
    cluster = process(shared)
    records = [keyed(f"key {n % 500}", str(n)) for n in range(1_000)]
    row = begin(cluster)
    for at in range(0, 1_000, 100):
        row = commit(cluster, row, records[at : at + 100])
    passes = 0
    while key_compact(cluster, buffer_bytes=4_000):
        passes += 1
    assert passes > 3
    assert [offset for offset, *_ in shown(cluster)] == list(range(500, 1_000))
