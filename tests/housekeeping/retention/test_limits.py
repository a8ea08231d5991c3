"""Which files retention removes, by example: Kafka's rules, a file in the place of a segment."""

from __future__ import annotations

import pytest

from tests.housekeeping.retention.worlds import (
    DAY_MS,
    HOUR_MS,
    TOPIC,
    UNKNOWN_MS,
    Idempotent,
    bounds,
    commit,
    enforce,
    files,
    open_eagerly,
    staged,
    topic,
    world,
)
from tests.world import SETTINGS, process
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import DuplicateSequenceError, OutOfOrderSequenceError
from txnlog.housekeeping.retention import Retention
from txnlog.messages import OFFSET_END, TopicPartition
from txnlog.protocol import retention as decisions
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.txn_memory import EXPIRED_PRODUCERS
from txnlog.storage.delta.actions import Add
from txnlog.testing.invariants import check_cluster


def delete_records(cluster: Cluster, offset: int, partition: int = 0) -> None:
    asked = TopicPartition(TOPIC, partition, offset)
    AdminClient({}, cluster=cluster).delete_records([asked])[asked].result()


# --- retention.ms ---------------------------------------------------------------------------------


def test_retention_ms_removes_the_oldest_files_and_stops_at_the_first_that_is_young() -> None:
    """As in Kafka an old file behind a younger one stays: offsets go from the front only (R22)."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, 5 * HOUR_MS):
        commit(cluster, staged(cluster, age_ms=age_ms))
    commit(cluster, staged(cluster, age_ms=2 * HOUR_MS, partition=1))
    assert enforce(process(shared)) == 3
    fresh = process(shared)
    assert bounds(fresh) == (4, 8, 8)
    assert files(fresh) == [4, 6]
    assert bounds(fresh, 1) == (2, 2, 2)
    check_cluster(cluster)
    assert enforce(cluster) == 0


def test_retention_ms_is_exceeded_not_reached() -> None:
    """A record lives for retention.ms, to the millisecond (Kafka: now - largest > limit)."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    commit(cluster, staged(cluster, age_ms=HOUR_MS))
    assert enforce(cluster) == 0
    shared.clock.advance_ms(1)
    assert enforce(cluster) == 1


def test_retention_default_is_a_week_and_minus_one_is_for_ever() -> None:
    """A topic without settings keeps what Kafka would keep."""
    shared = world()
    cluster = process(shared)
    commit(cluster, staged(cluster))
    shared.clock.advance_ms(7 * DAY_MS)
    assert enforce(cluster) == 0
    topic(cluster).alter(lambda config: {**config, "retention.ms": "-1"})
    shared.clock.advance_ms(365 * DAY_MS)
    assert enforce(cluster) == 0
    topic(cluster).alter(lambda config: {**config, "retention.ms": str(7 * DAY_MS)})
    assert enforce(cluster) == 1


def test_retention_of_records_from_the_future_waits_for_them() -> None:
    """As in Kafka: a producer's wrong clock must not lose its records; bytes still bound it."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    commit(cluster, staged(cluster, age_ms=-DAY_MS))
    shared.clock.advance_ms(DAY_MS)
    assert enforce(cluster) == 0
    topic(cluster).alter(lambda config: {**config, "retention.bytes": "0"})
    assert enforce(cluster) == 1


@pytest.mark.parametrize("time_ms", [UNKNOWN_MS, -1, -DAY_MS])
def test_retention_of_records_without_a_time_goes_by_the_age_of_their_file(time_ms: int) -> None:
    """Unknown is not "never": Kafka takes the segment's last modification then."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    for _ in range(2):
        commit(cluster, staged(cluster, time_ms=time_ms))
        shared.clock.advance_ms(HOUR_MS // 2)
    assert enforce(cluster) == 0
    shared.clock.advance_ms(1)
    assert enforce(cluster) == 1
    shared.clock.advance_ms(HOUR_MS)
    assert enforce(process(shared)) == 1


def test_retention_of_a_file_without_statistics_goes_by_its_age() -> None:
    """Another tool may have rewritten a file and left `stats` out."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    commit(cluster, staged(cluster))
    log = topic(cluster)
    [header] = log.view.by_path.values()
    values = dict(header.to_values())
    log.log.commit([Add(header.path, values, header.size_bytes, 0, True)], operation="REWRITE")
    assert enforce(process(shared)) == 0
    shared.clock.advance_ms(HOUR_MS + 1)
    assert enforce(process(shared)) == 1


# --- retention.bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "first"), [(0, 8), (99, 6), (100, 6), (101, 4), (400, 0)])
def test_retention_bytes_keeps_at_least_the_limit(limit: int, first: int) -> None:
    """As in Kafka, the oldest file is removed only if the rest has the limit or more."""
    cluster = process(world(retention_bytes=limit))
    for _ in range(4):
        commit(cluster, staged(cluster, size_bytes=100))
    enforce(cluster)
    assert bounds(cluster) == (first, 8, 8)
    check_cluster(cluster)


def test_retention_bytes_is_per_partition() -> None:
    """A busy partition must not cost a quiet one its records."""
    cluster = process(world(retention_bytes=100))
    commit(cluster, staged(cluster, partition=1))
    for _ in range(5):
        commit(cluster, staged(cluster))
    assert enforce(cluster) == 4
    assert bounds(cluster, 1) == (0, 2, 2)


# --- Files that always stay -----------------------------------------------------------------------


def test_retention_stops_below_the_lso() -> None:
    """Undecided batches, and those above them, stay: the LSO must not move (R14, R22)."""
    shared = world(retention_ms=HOUR_MS, retention_bytes=0)
    cluster = process(shared)
    old = 2 * HOUR_MS
    commit(cluster, staged(cluster, age_ms=old))
    row = open_eagerly(cluster, staged(cluster, age_ms=old))
    commit(cluster, staged(cluster, age_ms=old))
    assert enforce(process(shared)) == 1
    assert bounds(cluster) == (2, 2, 6)
    cluster.coordinator.abort(row)
    assert enforce(process(shared)) == 2
    assert bounds(cluster) == (6, 6, 6)
    check_cluster(cluster)


def test_retention_of_the_last_file_keeps_the_end() -> None:
    """Offsets are never given out twice: the same commit writes the end (R22)."""
    shared = world(settings=SETTINGS, retention_ms=HOUR_MS)
    cluster = process(shared, settings=SETTINGS)
    commit(cluster, staged(cluster))
    shared.clock.advance_ms(2 * HOUR_MS)
    before = topic(cluster).log.version
    assert enforce(cluster) == 1
    assert topic(cluster).log.version == before + 1
    for number in range(SETTINGS.checkpoint_interval):
        topic(cluster).alter(lambda config, n=number: {**config, "delete.retention.ms": str(n)})
    # Opened from a checkpoint that lacks the file.
    late = process(shared, settings=SETTINGS)
    assert bounds(late) == (2, 2, 2)
    commit(late, staged(late))
    assert bounds(process(shared)) == (2, 4, 4)
    assert files(late) == [2]


def test_retention_keeps_a_producers_last_five_batches_below_the_log_start() -> None:
    """A repeat of one is acknowledged with its offset, not written twice (R2, R22)."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    made = Idempotent(cluster)
    for _ in range(7):
        made.send(staged(cluster, age_ms=2 * HOUR_MS))
    commit(cluster, staged(cluster))
    assert enforce(process(shared)) == 2
    made.cluster = fresh = process(shared)
    assert bounds(fresh) == (14, 16, 16)
    assert files(fresh) == [4, 6, 8, 10, 12, 14]
    for back in range(5):
        again, before = made.repeat(0, back)
        assert again == before
    with pytest.raises(DuplicateSequenceError):
        made.repeat(0, 5)
    assert made.send(staged(fresh)) == 16
    check_cluster(fresh)


def test_retention_removes_the_files_of_an_expired_producer() -> None:
    """producer.id.expiration.ms after its last batch; what comes then is still accepted (R8)."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    made, other = Idempotent(cluster), Idempotent(cluster)
    for producer in (made, made, other):
        producer.send(staged(cluster))
    shared.clock.advance_ms(DAY_MS)
    other.send(staged(cluster, age_ms=2 * HOUR_MS))
    assert enforce(process(shared)) == 0
    assert bounds(cluster) == (8, 8, 8)
    expire_producers(process(shared), before_ms=shared.clock.now_ms() - HOUR_MS)
    assert enforce(process(shared)) == 2
    assert files(cluster) == [4, 6]
    expire_producers(process(shared), before_ms=shared.clock.now_ms() + 1)
    assert enforce(process(shared)) == 2
    made.cluster = fresh = process(shared)
    assert files(fresh) == []
    shared.clock.advance_ms(HOUR_MS)
    with pytest.raises(OutOfOrderSequenceError):
        made.send(staged(fresh))
    assert Idempotent(fresh).send(staged(fresh)) == 8
    check_cluster(fresh)


def expire_producers(cluster: Cluster, *, before_ms: int) -> None:
    """What housekeeping commits about producers that wrote nothing since then."""
    commit = TopicCommit(operation="EXPIRE PRODUCERS", txns={EXPIRED_PRODUCERS: before_ms})

    def decide(state: TopicState) -> TopicCommit | None:
        return None if state.txns.producers_expired_ms >= before_ms else commit

    topic(cluster).transact(decide)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_retention_of_a_compacted_topic_only_with_delete(policy: str) -> None:
    """A changelog keeps the newest value of every key for ever, whatever retention.ms says."""
    shared = world(retention_ms=HOUR_MS, retention_bytes=0, cleanup_policy=policy)
    cluster = process(shared)
    for _ in range(2):
        commit(cluster, staged(cluster, age_ms=2 * HOUR_MS))
    assert enforce(cluster) == (0 if policy == "compact" else 2)


# --- delete_records -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_deleted_records_leave_with_the_files_wholly_below_the_log_start(policy: str) -> None:
    """A file that holds the log start stays whole; any policy, as in Kafka."""
    shared = world(cleanup_policy=policy)
    cluster = process(shared)
    for _ in range(3):
        commit(cluster, staged(cluster))
    delete_records(cluster, 3)
    assert bounds(cluster) == (3, 6, 6)
    assert enforce(process(shared)) == 1
    assert bounds(process(shared)) == (3, 6, 6)
    assert files(cluster) == [2, 4]
    delete_records(cluster, OFFSET_END)
    assert enforce(process(shared)) == 2
    assert bounds(process(shared)) == (6, 6, 6)
    check_cluster(cluster)


def test_deleted_records_of_an_open_transaction_wait_for_its_marker() -> None:
    """delete_records may go past the LSO; the header is needed until it is settled (R32)."""
    shared = world()
    cluster = process(shared)
    row = open_eagerly(cluster, staged(cluster), staged(cluster))
    commit(cluster, staged(cluster))
    delete_records(cluster, OFFSET_END)
    assert enforce(process(shared)) == 1
    assert files(cluster) == [0, 2]
    assert bounds(cluster) == (6, 6, 6)
    cluster.coordinator.commit(row)
    assert enforce(process(shared)) == 2
    assert bounds(process(shared)) == (6, 6, 6)
    check_cluster(cluster, settled=True)


def test_deleted_topic_is_not_changed() -> None:
    """Its files are gone already, and its ends are what the next topic of the name starts at."""
    shared = world(retention_ms=0)
    cluster = process(shared)
    commit(cluster, staged(cluster))
    log = topic(cluster)
    cluster.delete_topic(TOPIC)
    version = log.log.version
    assert Retention(process(shared)).enforce(TOPIC) == 0
    log.refresh()
    assert log.log.version == version


# --- Cost -----------------------------------------------------------------------------------------


def test_large_removal_is_cut_into_commits_of_bounded_size() -> None:
    """A million expired files must not become one commit; each step is a whole one (R22)."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    made = Idempotent(cluster)
    for number in range(12):
        made.send(staged(cluster, age_ms=2 * HOUR_MS, partition=number % 2))
    commit(cluster, *(staged(cluster, age_ms=2 * HOUR_MS) for _ in range(4)))
    before = topic(cluster).log.version
    assert enforce(cluster, files_max=2) == 6
    assert topic(cluster).log.version - before >= 3
    assert bounds(process(shared)) == (20, 20, 20)
    check_cluster(cluster)


def test_check_with_nothing_to_do_reads_only_the_oldest_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a million batches to keep, a check every five minutes must cost next to nothing."""
    cluster = process(world(retention_ms=HOUR_MS))
    commit(cluster, *(staged(cluster) for _ in range(50)))
    read: list[str] = []
    is_past = decisions._Scan._is_past
    monkeypatch.setattr(
        decisions._Scan,
        "_is_past",
        lambda scan, batch: read.append(batch.path) or is_past(scan, batch),
    )
    calls = cluster.store.calls
    enforce(cluster)
    calls.clear()
    assert enforce(cluster) == 0
    assert len(read) <= 4
    assert [verb for verb, path in calls if verb != "get"] == ["list"]


def test_ages_are_asked_for_once() -> None:
    """One request per file and check would cost more than the check."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    for _ in range(130):
        commit(cluster, staged(cluster, time_ms=UNKNOWN_MS))
    keeper = Retention(cluster)
    cluster.store.now_ms()
    calls = cluster.store.calls
    calls.clear()
    assert keeper.enforce_all() == 0
    assert sum(verb == "head" for verb, _ in calls) <= decisions.UNDATED_MAX
    calls.clear()
    assert keeper.enforce_all() == 0
    assert sum(verb == "head" for verb, _ in calls) == 0
    shared.clock.advance_ms(2 * HOUR_MS)
    cluster.store.now_ms()
    assert keeper.enforce_all() == 130
