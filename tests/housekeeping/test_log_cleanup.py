"""Log files: bounded in number, and every file that a reader needs stays (R11, R70)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import KILLS, Trial, cuts
from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    LOGGED,
    WEEK_MS,
    keep_house,
    log_cleanup,
    log_names,
    names,
    watched_for_two_hours,
    written_both,
)
from tests.storage.foreign_checkpoints import garbled
from tests.world import (
    PLAIN,
    TOPICS,
    both,
    faults,
    outcome_of,
    owned,
    process,
    row_of,
    staged,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import ConfigError, CorruptLogError, StorageError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.lease import LeaseHolder
from txnlog.housekeeping.log_cleanup import EXPIRED_LOG_FILE, LogCleanup
from txnlog.producer import Producer
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import checkpoint_path
from txnlog.storage.store.local_disk import LocalDisk
from txnlog.testing.faults import Fault
from txnlog.testing.invariants import check_cluster


def test_idle_table_gets_a_checkpoint_that_replaces_its_log_files() -> None:
    """It has no writers left that would make a checkpoint."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(15):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
    keeper = log_cleanup(shared)
    assert keeper.run() == 0
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    found = Housekeeper(process(shared)).find()
    assert {item.reason for item in found} == {EXPIRED_LOG_FILE}
    assert {item.path.partition("/")[0] for item in found} == {
        "orders", "stock", cluster.shard(cluster.shard_of("tx")).path
    }  # fmt: skip
    assert keeper.run() == len(found)
    assert log_names(cluster, "orders") == [
        "00000000000000000015.checkpoint.parquet",
        "00000000000000000015.json",
    ]
    assert keeper.run() == 0
    check_cluster(process(shared))
    check_cluster(cluster)
    cluster.coordinator.commit(row, both(cluster, "last"))
    assert visible(process(shared), "last") == (True, True)


@pytest.mark.parametrize("column", ["protocol.minReaderVersion", "metaData.id", "txn.appId"])
def test_checkpoint_of_another_tool_that_does_not_decode_stops_no_table(column: str) -> None:
    """Only decoding shows the damage: readers skipped it, the next checkpoint was not made.

    The clean-up of all later tables ended with it (R37).
    """
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(3):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
    store, head = cluster.store, cluster.topic_log("orders").log.version
    assert create_checkpoint(store, "orders", trust_ms=PLAIN.trust_ms) == head
    path = checkpoint_path("orders", head)
    store.put(path, garbled(store.get(path), column))
    store.delete(["orders/_delta_log/_last_checkpoint"])
    for number in range(3, 20):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    assert log_cleanup(shared).run() > 2 * 17
    for topic in TOPICS:
        version = cluster.topic_log(topic).log.version
        assert log_names(cluster, topic) == [
            f"{version:020}.checkpoint.parquet", f"{version:020}.json",
        ]  # fmt: skip
    check_cluster(process(shared))
    cluster.coordinator.commit(row, both(cluster, "last"))
    assert visible(process(shared), "last") == (True, True)


def test_idle_table_is_checkpointed_once_while_its_last_commit_is_young() -> None:
    """The checkpoint replaces nothing before that commit is old; the next one would not either."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(15):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    cluster.coordinator.commit(row, both(cluster, "last"))
    keeper = log_cleanup(shared)
    assert Housekeeper(process(shared)).find() == []
    assert keeper.run() == 0
    before = log_names(cluster, "orders")
    assert "00000000000000000016.checkpoint.parquet" in before
    assert len(before) == 18
    assert_idle(keeper)
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    assert keeper.run() > 30
    assert log_names(cluster, "orders") == before[-2:]
    assert_idle(keeper)
    check_cluster(process(shared))


def assert_idle(keeper: LogCleanup) -> None:
    """One more round writes and deletes nothing but clock probes."""
    calls = faults(keeper._cluster).calls
    first = len(calls)
    assert keeper.run() == 0
    changed = [path for verb, path in calls[first:] if verb in ("put", "delete")]
    assert [path for path in changed if "/_clock/" not in path] == []


def test_slow_table_gets_a_checkpoint_per_ten_expired_commits() -> None:
    """A commit every six hours: its log stays short, and few checkpoints do that."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    keeper = log_cleanup(shared)
    row = owned(cluster, "a")
    most = 0
    for number in range(60):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
        shared.clock.advance_ms(6 * HOUR_MS)
        keeper.run()
        keeper.run()
        most = max(most, len(log_names(cluster, "orders")))
    puts = [path for verb, path in faults(keeper._cluster).calls if verb == "put"]
    made = [path for path in puts if path.startswith("orders/") and "checkpoint.parquet" in path]
    assert 4 <= len(made) <= 6
    assert most < 30
    check_cluster(process(shared))


def test_log_files_and_data_files_of_a_long_life_are_bounded() -> None:
    """Weeks of batch writes, renewed leases and deleted topics leave files of a week (R8)."""
    shared = world(config=FOREVER)
    counts: list[int] = []
    for day in range(17):
        cluster = process(shared, settings=LOGGED)
        for number in range(4):
            written = written_both(cluster, f"d{day}-{number}")
            commit_one_off(cluster, written, Owner(run_id="w"))
            written_both(cluster, f"lost{day}-{number}")
            LeaseHolder(cluster, "x", lease_ms=1_000).take()
            shared.clock.advance_ms(6 * HOUR_MS)
        for topic in TOPICS:
            cluster.delete_topic(topic)
            cluster.create_topic(topic, partitions=2, config=FOREVER)
        keep_house(process(shared, settings=LOGGED))
        every = cluster.store.list("")
        counts.append(len(every))
        assert len(log_names(cluster, "__cluster")) < 50
    bound = max(counts[8:12])
    assert max(counts[12:]) <= 1.1 * bound
    assert len(names(cluster, "orders")) < 9 * 8
    view = process(shared).topic("orders").view
    assert len(view.markers) < 9 * 4
    check_cluster(process(shared))


def test_many_commits_leave_a_bounded_number_of_log_files() -> None:
    """What a day keeps is the rate times the retention; before that there is one checkpoint."""
    shared = world(config=FOREVER)
    settings = LogSettings(checkpoint_mode="inline", log_retention_ms=HOUR_MS)
    cluster = process(shared, settings=settings)
    row = owned(cluster, "a")
    most = 0
    for number in range(600):
        row = cluster.coordinator.commit(row)
        row = cluster.coordinator.commit(row, [staged(cluster, "orders", f"n{number}")])
        shared.clock.advance_ms(30_000)
        if number % 250 == 249:
            log_cleanup(shared, settings=settings).run()
            shard = cluster.shard(cluster.shard_of("tx"))
            most = max(most, *(len(log_names(cluster, t)) for t in ("orders", shard.path)))
    assert most < 600
    assert process(shared).topic("orders").log.version > 500
    check_cluster(process(shared))


def test_newest_checkpoint_that_is_damaged_keeps_what_it_replaces(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing else could restore the table (R66)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(15):
        row = cluster.coordinator.commit(row, both(cluster, f"n{number}"))
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    dying = log_cleanup(shared)
    faults(dying._cluster).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if verb == "delete" and "_delta_log" in path else Fault.NONE
    )
    with pytest.raises(StorageError, match="injected"):
        dying.run()
    path = checkpoint_path("orders", 15)
    good = cluster.store.get(path)
    cluster.store.put(path, good[:-100] + bytes(100))
    before = log_names(cluster, "orders")
    faults(dying._cluster).plan = lambda verb, path: Fault.NONE
    with pytest.raises(CorruptLogError, match="checkpoint"):
        dying.run()
    assert log_names(cluster, "orders") == before
    assert len(log_names(cluster, "stock")) == 2
    with caplog.at_level("ERROR", "txnlog"), pytest.raises(CorruptLogError, match=path):
        log_cleanup(shared).run()
    assert "A damaged checkpoint is skipped" in caplog.text
    assert log_names(cluster, "orders") == before
    cluster.store.put(path, good)
    log_cleanup(shared).run()
    assert len(log_names(cluster, "orders")) == 2
    check_cluster(process(shared))


def test_logs_open_after_clean_up_was_killed_at_any_call(some: Some[Any]) -> None:
    """A log with a hole cannot be read (R66)."""

    def begin() -> Trial:
        shared = world(config=FOREVER)
        cluster = process(shared)
        row = owned(cluster, "a")
        for name in range(11):
            row = cluster.coordinator.commit(row, both(cluster, f"n{name}"))
        shared.clock.advance_ms(DAY_MS + HOUR_MS)
        dying = log_cleanup(shared)
        return Trial(shared, dying._cluster, dying.run, more=cluster)

    for trial in cuts(begin, some, KILLS):
        check_cluster(trial.more)
        log_cleanup(trial.shared).run()
        assert len(log_names(trial.more, "orders")) == 2
        check_cluster(process(trial.shared))


def test_process_that_slept_through_all_housekeeping_continues_at_the_head() -> None:
    """Its next slots are freed, its producers expired, its staged files deleted (R70)."""
    shared = world(config=FOREVER)
    sleeper = process(shared)
    row = sleeper.coordinator.commit(owned(sleeper, "s", tid="sleeper"), both(sleeper, "before"))
    late = written_both(sleeper, "late")
    for number in range(40):
        other = process(shared, settings=LOGGED)
        commit_one_off(other, written_both(other, f"n{number}"), Owner(run_id="w"))
        shared.clock.advance_ms(12 * HOUR_MS)
        if number % 8 == 7:
            keep_house(process(shared, settings=LOGGED))
    assert log_names(sleeper, "orders")[0] > "00000000000000000010"
    ends = [process(shared).topic("orders").view.high_watermark(n) for n in range(2)]
    assert sum(ends) == 82
    assert outcome_of(lambda: sleeper.coordinator.commit(row, late)) == "StagedFileTooOldError"
    sleeper.coordinator.commit(row, both(sleeper, "after"))
    assert visible(process(shared), "after") == (True, True)
    assert visible(process(shared), "late") == (False, False)
    after = process(shared)
    assert sum(after.topic("orders").view.high_watermark(n) for n in range(2)) == 84
    check_cluster(after)
    check_cluster(sleeper)


def test_log_retention_of_less_than_an_hour_is_refused() -> None:
    """Processes trust what they read for half of it (R70)."""
    with pytest.raises(ConfigError, match="log_retention_ms"):
        log_cleanup(world(), log_retention_ms=HOUR_MS - 1)


# --- On a local disk ------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Cluster:
    """A cluster on disk with a topic and some transactions, its clock watched for two hours."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True, shards=2, settings=PLAIN)
    cluster.create_topic("orders", partitions=2, config=FOREVER)
    config = {"txnlog.root": str(tmp_path / "root"), "transactional.id": "tx"}
    with Producer(config, cluster=cluster, background=False) as producer:
        producer.init_transactions()
        for number in range(15):
            with producer.transaction():
                producer.produce("orders", f"v{number}".encode(), partition=number % 2)
    watched_for_two_hours(cluster.store)
    return cluster


def age(cluster: Cluster, table: str) -> None:
    """Make every file of a table's log a week old."""
    folder = cluster.store.local_path(f"{table}/_delta_log")
    assert folder is not None
    week_ago_s = (cluster.store.now_ms() - WEEK_MS) / 1000
    for entry in os.scandir(folder):
        os.utime(entry.path, (week_ago_s, week_ago_s))


def test_temporary_files_of_killed_commits_go_when_they_are_old(local: Cluster) -> None:
    """No listing of the store's library shows them."""
    folder = local.store.local_path("orders/_delta_log")
    assert folder is not None
    for name in ("00000000000000000099.json#123", "00000000000000000007.checkpoint.parquet#45"):
        Path(folder, name).write_bytes(b"cut")
    age(local, "orders")
    Path(folder, "00000000000000000100.json#7").write_bytes(b"young")
    Path(folder, "notes#x").write_bytes(b"not ours")
    keeper = LogCleanup(local)
    listed = {item.path.rpartition("/")[2] for item in keeper.find() if "#" in item.path}
    assert listed == {
        "00000000000000000099.json#123",
        "00000000000000000007.checkpoint.parquet#45",
    }
    keeper.run()
    left = {entry.name for entry in os.scandir(folder) if "#" in entry.name}
    assert left == {"00000000000000000100.json#7", "notes#x"}


def test_commit_whose_temporary_file_was_taken_is_made_again(local: Cluster) -> None:
    """A process that was stopped for a day between writing the file and naming it."""
    real = LocalDisk._write_temporary
    taken = []

    def stopped(disk: LocalDisk, target: str, data: object) -> str:
        temporary = real(disk, target, data)
        if not taken:
            os.unlink(temporary)
            taken.append(temporary)
        return temporary

    row = owned(local, "a", tid="other")
    stopped_one = Cluster.open(local.root, settings=PLAIN)
    batch = staged(stopped_one, "orders", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalDisk, "_write_temporary", stopped)
        stopped_one.coordinator.commit(row, [batch])
    assert taken
    view = local.topic("orders").view
    assert sum(view.high_watermark(number) for number in range(2)) == 17


def test_delta_rs_reads_tables_after_all_housekeeping(local: Cluster) -> None:
    """Other readers see the same rows, with and without the help of a checkpoint (R11)."""
    from deltalake import DeltaTable

    folder = local.store.local_path("orders")
    assert folder is not None
    wanted = sorted(DeltaTable(folder).to_pyarrow_table().column("value").to_pylist())
    assert len(wanted) == 15
    tables = ("__cluster", *local.shard_tables())
    for table in ("orders", *tables):
        age(local, table)
    assert keep_house(local)[1] > 15
    opened = DeltaTable(folder)
    assert sorted(opened.to_pyarrow_table().column("value").to_pylist()) == wanted
    row = row_of(local)
    assert opened.transaction_version(f"txnlog/{row.producer_id}") == row.txn_epoch
    for table in tables:
        found = local.store.local_path(table)
        assert found is not None
        DeltaTable(found)
    check_cluster(Cluster.open(local.root, settings=PLAIN))
