"""Vacuum: which files it deletes and keeps, beside any other process (R72)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import KILLS, Trial, cuts, meetings
from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    LOGGED,
    SHORT,
    WEEK_MS,
    check_files,
    names,
    vacuum,
    written,
    written_both,
)
from tests.staged_files import append_ongoing
from tests.world import (
    MINUTE_MS,
    eager,
    faults,
    outcome_of,
    owned,
    planned,
    prepared,
    process,
    row_of,
    staged,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete, finish
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.protocol.metadata import Owner
from txnlog.protocol.vacuum import BATCH_FILE, NEVER_COMMITTED, REMOVED, StoredFile, find_old
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster

# --- What goes and what stays ---------------------------------------------------------------------


def test_vacuum_deletes_only_old_unreferenced_files() -> None:
    """Foreign files, files in other folders, young and referenced files stay."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    cluster.coordinator.commit(row, written_both(cluster, "live"))
    written(cluster, "orders", "orphan")
    foreign = ["orders/notes.txt", "orders/sub/part-0-x.parquet", "orders/_own/part-0-x.parquet",
               "elsewhere/part-0-x.parquet", "orders/row-1.parquet", "part-0-x.parquet",
               "orders/part-0-x.parquet.crc", "orders/_delta_log/part-0-x.parquet"]  # fmt: skip
    for path in foreign:
        cluster.store.put(path, b"not ours")
    shared.clock.advance_ms(WEEK_MS - HOUR_MS)
    written(cluster, "orders", "young")
    assert vacuum(shared) == 0
    shared.clock.advance_ms(HOUR_MS)
    found = Housekeeper(process(shared, settings=LOGGED)).find()
    assert [(item.path, item.reason, item.size_bytes) for item in found if "part" in item.path] == [
        (f"orders/{staged(cluster, 'orders', 'orphan').path}", NEVER_COMMITTED, 7)
    ]
    assert vacuum(shared) == 1
    left = names(cluster, "orders")
    assert {name for name in left if name.startswith("part-")} == {
        staged(cluster, "orders", "live").path,
        staged(cluster, "orders", "young").path,
        "part-0-x.parquet.crc",
    }
    for path in foreign:
        assert cluster.store.get(path) == b"not ours"
    assert vacuum(shared) == 0
    check_files(process(shared))


def test_vacuum_keeps_files_in_manifests_at_any_age() -> None:
    """An unfinished decided transaction, and a two-phase one, a month later (R36, R72)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    prepared(shared)
    for topic in ("orders", "stock"):
        written(cluster, topic, "mine")
    row = owned(cluster, "b", tid="two-phase")
    held = cluster.coordinator.prepare(row, written_both(cluster, "held"))
    shared.clock.advance_ms(30 * DAY_MS)
    assert vacuum(shared) == 0
    after = process(shared)
    check_files(after)
    after.coordinator.commit(held)
    decided = row_of(after)
    finish(after, decided)
    for name in ("mine", "held"):
        assert visible(process(shared), name) == (True, True)
    assert vacuum(shared) == 0
    check_files(process(shared))


def test_vacuum_beside_a_helper_at_any_call_keeps_published_files(some: Some[Any]) -> None:
    """Its manifest is gone, and it is live since the barrier: tables are read last (R72)."""

    def begin() -> Trial:
        shared = world(config=FOREVER)
        row = prepared(shared)
        for topic in ("orders", "stock"):
            written(process(shared), topic, "mine")
        shared.clock.advance_ms(30 * DAY_MS)
        cluster = process(shared)
        return Trial(shared, cluster, Vacuum(cluster).run, more=row)

    def meanwhile(trial: Trial) -> None:
        finish(process(trial.shared), trial.more)

    for trial in meetings(begin, meanwhile, some):
        check_files(process(trial.shared))


def test_vacuum_keeps_removed_files_for_readers_of_older_versions() -> None:
    """A file of last year that was removed an hour ago is young (R20): checkpoints say so, too."""
    shared = world(config=FOREVER)
    cluster = process(shared, settings=SHORT)
    row = cluster.coordinator.commit(owned(cluster, "a"), written_both(cluster, "x"))
    complete(cluster, row)
    shared.clock.advance_ms(52 * WEEK_MS)
    cluster.delete_topic("orders")
    for number in range(20):
        cluster.create_topic("orders", exist_ok=True)
        cluster.topic_log("orders").alter(lambda known, n=number: {**known, "n": str(n)})
    shared.clock.advance_ms(WEEK_MS - MINUTE_MS)
    log = cluster.topic_log("orders")
    log.refresh()
    path = staged(cluster, "orders", "x").path
    assert set(read_tombstones(cluster.store, "orders", version=log.log.version)) == {path}
    assert vacuum(shared) == 0
    shared.clock.advance_ms(MINUTE_MS)
    found = [
        item
        for item in Housekeeper(process(shared, settings=LOGGED)).find()
        if item.path == f"orders/{path}"
    ]
    assert [(item.reason, item.age_ms) for item in found] == [(REMOVED, WEEK_MS)]
    assert vacuum(shared) == 1
    check_files(process(shared))


def test_vacuum_of_row_tables_deletes_files_of_commits_that_lost() -> None:
    """Each attempt to commit a row writes a file of its own first."""
    shared = world(config=FOREVER)
    dying = process(shared)
    first = owned(dying, "a", tid="first")
    shard = dying.shard(dying.shard_of("first"))
    with planned(dying, {}) as counted:
        faults(dying).plan = lambda verb, path: (
            Fault.CRASH_BEFORE
            if verb == "put" and path.startswith("__transaction") and path.endswith(".json")
            else counted(verb, path)
        )
        with suppress(SimulatedCrash):
            owned(dying, "b", tid="second")
    cluster = process(shared)
    tables = [cluster.shard(n).path for n in range(cluster.shards)]
    before = {name for table in tables for name in names(cluster, table)}
    assert len({name for name in before if name.startswith("row-")}) == 2
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) == 1
    after = {name for table in tables for name in names(cluster, table)}
    assert {name for name in after if name.startswith("row-")} == set(shard.view.sizes)
    check_cluster(process(shared))
    again = process(shared).coordinator.describe("first")
    assert again is not None
    assert again.producer_id == first.producer_id


def test_vacuum_continues_past_a_topic_it_may_not_write() -> None:
    """Without a barrier its files stay; files of the other tables are deleted (R37)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    written_both(cluster, "orphan")
    shared.clock.advance_ms(WEEK_MS)
    worker = process(shared, settings=SHORT)
    faults(worker).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders") else Fault.NONE
    )
    assert outcome_of(Vacuum(worker).run) == "StorePermissionError"
    assert [len(names(cluster, topic)) for topic in ("orders", "stock")] == [1, 0]


# --- Who may be at work meanwhile -----------------------------------------------------------------


def test_vacuum_killed_at_any_call_is_harmless_and_is_repeated(some: Some[Any]) -> None:
    """Some files are deleted, others not: the next run deletes the rest."""

    def begin() -> Trial:
        shared = world(config=FOREVER)
        first = process(shared)
        first.coordinator.commit(owned(first, "a"), written_both(first, "live"))
        for name in ("one", "two"):
            written_both(first, name)
        shared.clock.advance_ms(WEEK_MS)
        dying = process(shared, settings=SHORT)
        return Trial(shared, dying, Vacuum(dying).run)

    for trial in cuts(begin, some, KILLS):
        vacuum(trial.shared)
        after = process(trial.shared)
        check_files(after)
        assert len(names(after, "orders")) == len(names(after, "stock")) == 1
        check_cluster(after)


@pytest.mark.parametrize("step", ["commit", "prepare"])
def test_vacuum_during_any_commit_deletes_nothing_that_becomes_live(
    step: str, some: Some[Any]
) -> None:
    """A writer is stopped at each of its calls, for half a day or a week, while vacuum runs.

    Files of two-phase transactions are referenced, too: their clients may commit them at any time
    (KIP-939).
    """
    outcomes = set()
    for pause_ms in (12 * HOUR_MS, WEEK_MS):
        for number in some(range(60)):
            shared = world(config=FOREVER)
            writer = process(shared)
            row = owned(writer, "a")
            batches = written_both(writer, "x")
            shared.clock.advance_ms(3 * DAY_MS)

            def interlude(shared: SharedMemory = shared, pause_ms: int = pause_ms) -> None:
                shared.clock.advance_ms(pause_ms)
                vacuum(shared)

            faults(writer).plan = FaultsAt({}, interlude=interlude, interlude_at=number)
            call = getattr(writer.coordinator, step)
            outcome = outcome_of(lambda call=call, r=row, b=batches: call(r, b))
            outcomes.add(outcome)
            check_files(process(shared))
            if step == "prepare":
                continue
            row_now = row_of(process(shared))
            if outcome == "done":
                assert visible(process(shared), "x") == (True, True)
            elif not row_now.state.is_prepared:
                assert visible(process(shared), "x") == (False, False)
    assert {"done", "StagedFileTooOldError"} <= outcomes


@pytest.mark.parametrize("late", ["PREPARE", "append"])
def test_vacuum_and_a_put_that_lands_late(late: str) -> None:
    """The put was sent when the file was young: the barrier is in its slot (R72)."""
    shared = world(config=FOREVER)
    writer = process(shared)
    row = owned(writer, "a")
    if late == "append":
        row = eager(writer, row, "first")
        for batch in ("orders", "stock"):
            written(writer, batch, "first")
    batches = [written(writer, "orders", "x")]
    shared.clock.advance_ms(3 * DAY_MS)
    row = writer.coordinator.init_producer_id("tx", Owner(run_id="a")) if late == "PREPARE" else row
    table = "__transaction_state" if late == "PREPARE" else "orders/_delta_log"
    faults(writer).plan = lambda verb, path: (
        Fault.LAND_LATE if verb == "put" and path.startswith(table) else Fault.NONE
    )
    if late == "PREPARE":
        outcome = outcome_of(lambda: writer.coordinator.commit(row, batches))
    else:
        outcome = outcome_of(
            lambda: append_ongoing(writer, row, batches, {batches[0].partition: 2})
        )
    assert outcome == "CommitStateUnknownError"
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) == 1
    assert shared.land_late() == []
    check_files(process(shared))


@pytest.mark.parametrize("table", ["__transaction_state", "__consumer_offsets-0"])
def test_vacuum_and_the_commit_of_a_row_that_lands_late(table: str) -> None:
    """It names a file that was young when it was sent: the barrier is in its slot (R72)."""
    shared = world(config=FOREVER)
    writer = process(shared)
    writer.groups.start("g")
    for number in range(writer.shards):
        writer.shard(number)
    faults(writer).plan = lambda verb, path: (
        Fault.LAND_LATE
        if verb == "put" and path.startswith(table) and path.endswith(".json")
        else Fault.NONE
    )
    if table == "__transaction_state":
        outcome = outcome_of(lambda: owned(writer, "a"))
    else:
        outcome = outcome_of(lambda: writer.groups.start("new"))
    assert outcome == "CommitStateUnknownError"
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) >= 1
    assert shared.land_late() == []
    check_files(process(shared))


def test_two_vacuums_at_once_take_the_same() -> None:
    """Every step of one between any two of the other."""
    for number in range(0, 40, 3):
        shared = world(config=FOREVER)
        first = process(shared)
        first.coordinator.commit(owned(first, "a"), written_both(first, "live"))
        written_both(first, "orphan")
        shared.clock.advance_ms(WEEK_MS)
        slow = process(shared)
        faults(slow).plan = FaultsAt({}, interlude=lambda s=shared: vacuum(s), interlude_at=number)
        Vacuum(slow).run()
        after = process(shared)
        check_files(after)
        assert len(names(after, "orders")) == 1


def test_only_our_names_are_ever_old() -> None:
    """Vacuum checks the name of a file first."""
    paths = ["part-0-a.parquet", "x/part-0-a.parquet", "PART-0.parquet", "part-0-a.parquet#1"]
    files = [StoredFile(path, 1, 0) for path in paths]
    old = find_old(files, BATCH_FILE, now_ms=10, age_ms=1)
    assert [file.path for file in old] == ["part-0-a.parquet"]


# --- On a local disk ------------------------------------------------------------------------------


def test_vacuum_on_a_local_disk_goes_by_the_times_of_files(tmp_path: Path) -> None:
    """A file cut off by a kill is an orphan like any other; what a folder hides is not listed."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True, shards=2)
    cluster.create_topic("orders", partitions=1)
    folder = tmp_path / "root" / "orders"
    (folder / "part-0-cut.parquet").write_bytes(b"PAR1")
    (folder / "part-0-young.parquet").write_bytes(b"PAR1")
    (folder / "part-0-folder.parquet").mkdir()
    (folder / "part-0-folder.parquet" / "part-0-in.parquet").write_bytes(b"x")
    week_ago_s = (cluster.store.now_ms() - WEEK_MS) / 1000 - 10
    for path in (folder / "part-0-cut.parquet", folder / "part-0-folder.parquet/part-0-in.parquet"):
        os.utime(path, (week_ago_s, week_ago_s))
    assert Vacuum(cluster).run() == 1
    left = sorted(path.name for path in folder.glob("part-*"))
    assert left == ["part-0-folder.parquet", "part-0-young.parquet"]
    assert list((folder / "part-0-folder.parquet").iterdir())
