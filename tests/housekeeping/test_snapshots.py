"""Named snapshots beside vacuum, log clean-up, retention and deleted topics."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.housekeeping.steps import DAY_MS, HOUR_MS, SHORT, WEEK_MS, names, vacuum, written_both
from tests.world import PLAIN, eager, owned, process, world
from txnlog.cluster import Cluster
from txnlog.coordinator.pins import remove_expired
from txnlog.coordinator.versions import topic_at
from txnlog.errors import CorruptLogError, SnapshotNotFoundError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.retention import Retention
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.protocol.snapshots import Snapshot
from txnlog.testing.faults import Fault, SharedMemory

MONTH_MS = 30 * DAY_MS


def shown(cluster: Cluster, snapshot: Snapshot) -> list[set[str]]:
    """The files that the snapshot shows, of each topic; all of them are there."""
    found = [set(topic_at(cluster, topic, snapshot).view.by_path) for topic in snapshot.topics]
    for topic, paths in zip(snapshot.topics, found, strict=True):
        assert paths <= names(cluster, topic)
    return found


def grown_old(shared: SharedMemory, cluster: Cluster) -> None:
    """A fortnight in which all records are removed, and others come, with all housekeeping."""
    row = owned(cluster, "later", tid="later")
    for day in range(14):
        shared.clock.advance_ms(DAY_MS)
        for number in range(8):
            row = cluster.coordinator.commit(row, written_both(cluster, f"{day}-{number}"))
        # Records of 1970.
        assert Retention(cluster).enforce_all()
        LogCleanup(process(shared, settings=SHORT)).run()
        vacuum(shared)


def test_named_snapshot_can_be_read_after_retention_clean_up_and_vacuum() -> None:
    """A fortnight later, as on the first day; a snapshot without a name cannot."""
    shared = world()
    cluster = process(shared, settings=SHORT)
    row = owned(cluster, "a")
    for name in ("one", "two", "three"):
        row = cluster.coordinator.commit(row, written_both(cluster, name))
    kept = cluster.snapshot("kept", ttl_ms=MONTH_MS)
    passing = cluster.snapshot()
    before = shown(cluster, kept)
    assert len(before[0]) == 3
    grown_old(shared, cluster)
    cluster.delete_topic("stock")
    shared.clock.advance_ms(WEEK_MS + HOUR_MS)
    vacuum(shared)
    other = process(shared)
    assert shown(other, other.find_snapshot("kept")) == before
    assert kept == other.find_snapshot("kept")
    other.drop_snapshot("kept")
    # The third of each topic is in the manifest of a row that nobody has completed.
    assert vacuum(shared) == 4
    LogCleanup(process(shared, settings=SHORT)).run()
    with pytest.raises(SnapshotNotFoundError, match="no longer has version"):
        topic_at(other, "orders", passing)


def test_what_a_named_snapshot_hides_is_kept_for_copies() -> None:
    """They have it as aborted: one that took longer than the vacuum age found no file (R75)."""
    shared = world()
    cluster = process(shared)
    with patch("tests.world.both", written_both):
        row = eager(cluster, owned(cluster, "a"), "open")
    cluster.snapshot("copy", ttl_ms=MONTH_MS)
    cluster.coordinator.abort(row)
    Retention(cluster).enforce_all()
    shared.clock.advance_ms(WEEK_MS + HOUR_MS)
    assert vacuum(shared) == 0
    cluster.drop_snapshot("copy")
    assert vacuum(shared) == 2


def test_vacuum_names_the_snapshot_of_a_topic_that_was_deleted_by_force() -> None:
    """It cannot know what the snapshot shows, and said only that a commit is damaged."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    for name in ("one", "two"):
        row = cluster.coordinator.commit(row, written_both(cluster, name))
    cluster.snapshot("kept", ttl_ms=MONTH_MS)
    cluster.store.put(f"orders/_delta_log/{0:020}.json", b"garbage")
    process(shared).delete_topic("orders", force=True)
    shared.clock.advance_ms(WEEK_MS + HOUR_MS)
    with pytest.raises(CorruptLogError, match="until the snapshot 'kept', which shows it, is drop"):
        vacuum(shared)
    cluster.drop_snapshot("kept")
    # The other one is in the manifest of a row that nobody has completed.
    assert vacuum(shared) == 1


def test_vacuum_reads_a_named_snapshot_once() -> None:
    """Not once for each topic that it shows."""
    shared = world()
    cluster = process(shared, settings=SHORT)
    row = owned(cluster, "a")
    row = cluster.coordinator.commit(row, written_both(cluster, "one"))
    cluster.snapshot("kept", ttl_ms=MONTH_MS)
    (pin,) = cluster.pins().values()
    grown_old(shared, cluster)
    shared.clock.advance_ms(WEEK_MS + HOUR_MS)
    housekeeper = process(shared, settings=SHORT)
    reads: list[str] = []

    def note(verb: str, path: str) -> Fault:
        reads.append(path)
        return Fault.NONE

    housekeeper.store.plan = note
    assert Vacuum(housekeeper, age_ms=WEEK_MS).run()
    assert reads.count(pin.file) == 1


def test_expired_snapshot_keeps_nothing_and_is_removed() -> None:
    """With its file; those of a process that died before it saved its snapshot, too."""
    shared = world()
    cluster = process(shared, settings=PLAIN)
    row = owned(cluster, "a")
    cluster.coordinator.commit(row, written_both(cluster, "one"))
    cluster.snapshot("short", ttl_ms=DAY_MS)
    cluster.snapshot("long", ttl_ms=MONTH_MS)
    cluster.store.put("__cluster/snapshot-orphan.json", b"{}")
    assert remove_expired(process(shared)) == 0
    assert "snapshot-orphan.json" in names(cluster, "__cluster")
    shared.clock.advance_ms(DAY_MS)
    assert list(cluster.snapshots()) == ["long"]
    assert remove_expired(process(shared)) == 1
    assert list(process(shared).pins()) == ["long"]
    assert len([name for name in names(cluster, "__cluster") if "snapshot" in name]) == 1
    assert remove_expired(process(shared)) == 0


def test_snapshot_stays_though_the_clock_of_the_store_was_ahead() -> None:
    """For one round of housekeeping: every name had expired, and was removed (R34)."""
    shared = world()
    process(shared).snapshot("kept")
    shared.clock.advance_ms(2 * HOUR_MS)
    for step_ms in (MONTH_MS, -MONTH_MS):
        shared.clock.step_wall_ms(step_ms)
        Housekeeper(process(shared)).run_once()
    assert list(process(shared).snapshots()) == ["kept"]


def test_writer_without_news_of_snapshots_deletes_no_log_file() -> None:
    """It cleans up the logs it writes; what it knows of `__cluster` may be hours old."""
    shared = world()
    cluster = process(shared)
    assert cluster.settings.kept_from_ms() == 2**63 - 1
    process(shared).snapshot("n")
    shared.clock.advance_ms(HOUR_MS)
    assert cluster.settings.kept_from_ms() == 0
    cluster.shard_tables()
    at_ms = cluster.snapshots()["n"].at_ms
    assert cluster.settings.kept_from_ms() == at_ms - HOUR_MS
    cluster.drop_snapshot("n")
    assert cluster.settings.kept_from_ms() == 2**63 - 1
