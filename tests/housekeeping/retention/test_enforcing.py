"""Retention under faults at every storage call, and beside everything else that writes a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts, meetings
from tests.housekeeping.retention.worlds import (
    HOUR_MS,
    TOPIC,
    Idempotent,
    bounds,
    commit,
    enforce,
    files,
    open_eagerly,
    owned,
    staged,
    topic,
    world,
)
from tests.world import faults, process
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import TopicAuthorizationError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.retention import EXPIRED_BATCH, Retention
from txnlog.messages import OFFSET_END, TopicPartition
from txnlog.protocol.metadata import StagedBatch
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_cluster

OLD_MS = 3 * HOUR_MS


def filled() -> SharedMemory:
    """Partition 0 has offsets 0 to 13: 0 to 9 are past retention, 4 to 7 an idempotent
    producer's; partition 1 has nothing that is left to keep."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    commit(cluster, *(staged(cluster, age_ms=OLD_MS) for _ in range(2)))
    made = Idempotent(cluster)
    for _ in range(2):
        made.send(staged(cluster, age_ms=OLD_MS))
    commit(cluster, staged(cluster, age_ms=OLD_MS), staged(cluster, age_ms=OLD_MS, partition=1))
    commit(cluster, staged(cluster), staged(cluster))
    return shared


def check_done(shared: SharedMemory) -> None:
    fresh = process(shared)
    check_cluster(fresh)
    assert bounds(fresh) == (10, 14, 14)
    assert bounds(fresh, 1) == (2, 2, 2)
    assert files(fresh) == [4, 6, 10, 12]


# --- Faults ---------------------------------------------------------------------------------------


def enforcing() -> Trial:
    shared = filled()
    cluster = process(shared)
    return Trial(shared, cluster, partial(enforce, cluster, files_max=2))


def test_retention_cut_at_any_call_loses_nothing_and_is_finished_by_the_next(
    some: Some[int],
) -> None:
    """A commit that may have landed is not an error to repeat; the young records stay (R22)."""
    for trial in cuts(enforcing, some):
        assert trial.outcome in ("done", "crashed", *RETRIABLE)
        between = process(trial.shared)
        assert bounds(between)[0] <= 10
        assert bounds(between)[1:] == (14, 14)
        assert {10, 12} <= set(files(between))
        if trial.outcome != "crashed":
            enforce(trial.cluster)
        enforce(process(trial.shared))
        check_done(trial.shared)


def test_retention_of_one_topic_is_not_held_up_by_another() -> None:
    """No permission for a topic delays its own files, and is said (R37, R68)."""
    shared = filled()
    process(shared).create_topic("a-first", partitions=1)
    cluster = process(shared)
    first = cluster.topic("a-first")
    first.alter(lambda config: {**config, "retention.ms": "0"})
    Idempotent(cluster).send(_of(cluster, "a-first"))
    shared.clock.advance_ms(1)
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("a-first/_delta_log") else Fault.NONE
    )
    with pytest.raises(TopicAuthorizationError, match="a-first"):
        enforce(cluster)
    check_done(shared)


def _of(cluster: Cluster, name: str) -> StagedBatch:
    return replace(staged(cluster), topic=name, topic_id=cluster.topic(name).topic_id)


def test_dry_run_of_retention_lists_files_and_commits_nothing() -> None:
    """An operator shortens retention.ms and checks first: files, ages and bytes; no commit."""
    shared = filled()
    cluster = process(shared)
    named = {batch.path: batch for batch in cluster.topic(TOPIC).view.by_path.values()}
    version = cluster.topic(TOPIC).log.version
    cluster.create_topic("other", partitions=1)
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if path.startswith("other/_delta_log") else Fault.NONE
    )
    found = Retention(cluster).find()
    faults(cluster).plan = lambda verb, path: Fault.NONE
    assert process(shared).topic(TOPIC).log.version == version
    assert {item.reason for item in found} == {EXPIRED_BATCH}
    assert all(OLD_MS <= item.age_ms < OLD_MS + HOUR_MS for item in found)
    before = set(process(shared).topic(TOPIC).view.by_path)
    assert enforce(process(shared)) == len(found)
    gone = before - set(process(shared).topic(TOPIC).view.by_path)
    assert {item.path: item.size_bytes for item in found} == {
        f"{TOPIC}/{path}": named[path].size_bytes for path in gone
    }
    assert [item for item in Housekeeper(process(shared)).find() if item in found] == []


# --- Beside others --------------------------------------------------------------------------------


def append_young(cluster: Cluster) -> None:
    commit(cluster, staged(cluster), tid="other")


def append_old(cluster: Cluster) -> None:
    commit(cluster, staged(cluster, age_ms=OLD_MS), tid="other")


def send(cluster: Cluster) -> None:
    Idempotent(cluster).send(staged(cluster))


def open_transaction(cluster: Cluster) -> None:
    open_eagerly(cluster, staged(cluster, age_ms=OLD_MS))


def delete_all(cluster: Cluster) -> None:
    asked = TopicPartition(TOPIC, 0, OFFSET_END)
    AdminClient({}, cluster=cluster).delete_records([asked])[asked].result()


def keep_all(cluster: Cluster) -> None:
    topic(cluster).alter(lambda config: {**config, "retention.ms": "-1"})


def second(cluster: Cluster) -> None:
    enforce(cluster, files_max=1)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (append_young, (10, 16, 16)),
        (append_old, (10, 16, 16)),
        (send, (10, 16, 16)),
        (open_transaction, (10, 14, 16)),
        (delete_all, (14, 14, 14)),
        (second, (10, 14, 14)),
    ],
)
def test_retention_decides_again_when_others_write_in_between(
    act: Callable[[Cluster], None], expected: tuple[int, int, int], some: Some[int]
) -> None:
    """Appends, open transactions, operators and a second housekeeper, at every call (R14, R22)."""
    for trial in meetings(enforcing, lambda trial: act(process(trial.shared)), some):
        enforce(process(trial.shared))
        fresh = process(trial.shared)
        check_cluster(fresh)
        assert bounds(fresh) == expected


def test_retention_switched_off_in_between_stops() -> None:
    """Limits are read in the decision, not before it."""
    shared = filled()
    cluster, other = process(shared), process(shared)
    before = files(cluster)
    keeper = Retention(cluster, files_max=1)
    log = topic(cluster)
    keep_all(other)
    assert log.config["retention.ms"] == str(HOUR_MS)
    assert keeper.enforce_all() == 0
    assert files(process(shared)) == before


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_that_ends_during_retention_is_settled_whole(
    is_commit: bool, some: Some[int]
) -> None:
    """The marker commit and the removal race for each version; both land, in any order (R13)."""

    def begin() -> Trial:
        shared = filled()
        other = process(shared)
        row = open_eagerly(other, staged(other, age_ms=OLD_MS), staged(other, age_ms=OLD_MS))
        delete_all(other)
        cluster = process(shared)
        end = other.coordinator.commit if is_commit else other.coordinator.abort
        return Trial(shared, cluster, partial(enforce, cluster, files_max=2), partial(end, row))

    for trial in meetings(begin, lambda trial: trial.more(), some):
        fresh = process(trial.shared)
        check_cluster(fresh, settled=True)
        enforce(fresh)
        assert bounds(process(trial.shared)) == (18, 18, 18)
        assert files(process(trial.shared)) == [4, 6]


def test_topic_deleted_during_retention_stays_deleted(some: Some[int]) -> None:
    """A removal brings no log to life, nor touches the topic that takes the name next (R71)."""

    def again(trial: Trial) -> None:
        other = process(trial.shared)
        other.delete_topic(TOPIC)
        other.create_topic(TOPIC, partitions=2)
        commit(other, staged(other, age_ms=OLD_MS))

    for trial in meetings(enforcing, again, some):
        assert bounds(process(trial.shared)) == (14, 16, 16)


def test_owner_of_a_prepared_transaction_appends_after_retention() -> None:
    """What retention removed is not in the way of a batch that was staged before it (R22)."""
    shared = filled()
    cluster = process(shared)
    batch = staged(cluster)
    row = owned(cluster, "late")
    enforce(process(shared))
    cluster.coordinator.commit(row, [batch])
    assert bounds(process(shared)) == (10, 16, 16)
    check_cluster(process(shared))


def test_housekeeping_enforces_retention_every_five_minutes() -> None:
    """Kafka's log.retention.check.interval.ms; a file may outlive its time by as much."""
    shared = world(retention_ms=HOUR_MS)
    cluster = process(shared)
    keeper = Housekeeper(process(shared))
    keeper.step()
    commit(cluster, staged(cluster, age_ms=OLD_MS))
    shared.clock.advance_ms(5 * 60_000 - 1)
    keeper.step()
    assert files(process(shared)) == [0]
    shared.clock.advance_ms(1)
    keeper.step()
    assert files(process(shared)) == []
