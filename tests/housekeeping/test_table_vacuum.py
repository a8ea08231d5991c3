"""Vacuum of what transactions have staged for Delta tables of others (R72)."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cases import Some
from tests.coordinator.test_tables import NARROW, blocked, change_before_publication
from tests.faults import Trial, meetings
from tests.housekeeping.steps import DAY_MS, HOUR_MS, vacuum
from tests.protocol.enlisted_tables import add
from tests.tables import NAME, URL, ForeignTable, appended, definition, rows, with_table
from tests.world import consumed, faults, outcome_of, owned, process, recover, world
from txnlog.admin.tables import restage
from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging
from txnlog.coordinator.tables import TableChange
from txnlog.errors import SnapshotNotFoundError, StagedFileTooOldError
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.protocol.enlisted.parts import new_part
from txnlog.testing.faults import Fault, PausedClock, SharedMemory, no_faults

WEEK_MS = 7 * DAY_MS


def staged_files(shared: SharedMemory) -> set[str]:
    """Names of what is below the staging folder."""
    pages = obstore.list(shared.places[URL], "_txnlog")
    return {PurePosixPath(item["path"]).name for page in pages for item in page}


def data(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("part-")}


def begun(shared: SharedMemory) -> Cluster:
    cluster = process(shared)
    with_table(shared, cluster)
    return cluster


def test_vacuum_deletes_what_no_transaction_has_committed() -> None:
    """Data files after the vacuum age, part files a day later; live ones stay."""
    shared = world()
    cluster = begun(shared)
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, appended(cluster, 1)))
    recover(shared)
    live = staged_files(shared)
    (never,) = appended(process(shared), 2)
    never.write(cluster)
    assert len(staged_files(shared)) == 4
    shared.clock.advance_ms(WEEK_MS - HOUR_MS)
    assert vacuum(shared) == 0
    shared.clock.advance_ms(HOUR_MS)
    found = [item for item in Vacuum(process(shared)).find() if URL in item.path]
    assert len(found) == 1
    assert vacuum(shared) == 1
    assert data(staged_files(shared)) == data(live)
    shared.clock.advance_ms(DAY_MS)
    vacuum(shared)
    assert staged_files(shared) == data(live)
    assert ForeignTable(shared).ours() == [1]


def test_vacuum_keeps_what_a_removed_file_may_be_read_for() -> None:
    """A reader of an older version may have it, as long as the table has the tombstone."""
    shared = world()
    cluster = begun(shared)
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, appended(cluster, 1)))
    (path,) = [a["add"]["path"] for a in ForeignTable(shared).commits()[-1] if "add" in a]
    shared.clock.advance_ms(WEEK_MS)
    now_ms = shared.clock.now_ms()
    ForeignTable(shared).commit({"remove": {"path": path, "deletionTimestamp": now_ms}})
    assert vacuum(shared) == 0
    assert data(staged_files(shared)) == {PurePosixPath(path).name}


def test_vacuum_keeps_what_a_named_snapshot_shows(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the table has forgotten the tombstone, and if the version cannot be read. What other
    tools may delete, it cannot keep: creating the snapshot says so.
    """
    shared = world()
    cluster = begun(shared)
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, appended(cluster, 1)))
    recover(shared)
    cluster.snapshot("kept", ttl_ms=2 * WEEK_MS)
    assert "may lose what the snapshot shows after 7.0 days" in caplog.text
    table = ForeignTable(shared)
    (path,) = [a["add"]["path"] for a in table.commits()[-1] if "add" in a]
    table.commit({"remove": {"path": path, "deletionTimestamp": 0}})
    table.commit()
    table.checkpoint()
    shared.clock.advance_ms(WEEK_MS + DAY_MS)
    # The part file only.
    assert vacuum(shared) == 1
    assert cluster.read(NAME, snapshot="kept").to_pydict() == {"id": [1], "day": ["1"]}
    shared.places[URL].delete(f"_delta_log/{0:020}.json")
    assert vacuum(shared) == 0
    cluster.drop_snapshot("kept")
    assert vacuum(shared) == 1


def test_vacuum_goes_on_where_the_table_has_cleaned_up_what_a_snapshot_shows() -> None:
    """Its properties may keep less than the names of each night: nothing was ever deleted."""
    shared = world()
    cluster = begun(shared)
    cluster.snapshot("kept", ttl_ms=10 * WEEK_MS)
    (never,) = appended(process(shared), 2)
    never.write(cluster)
    ForeignTable(shared).commit()
    ForeignTable(shared).checkpoint()
    shared.places[URL].delete(f"_delta_log/{0:020}.json")
    shared.clock.advance_ms(WEEK_MS + DAY_MS)
    with pytest.raises(SnapshotNotFoundError, match="its log was cleaned up"):
        cluster.read(NAME, snapshot="kept")
    assert vacuum(shared) == 2
    assert not staged_files(shared)


def staging_table(cluster: Cluster, *names: str) -> tuple[TableChange, ...]:
    """What Spark would stage: a table with these files; the change is of the first one."""
    store, folder = cluster.table_log(URL).store, f"_txnlog/{cluster.cluster_id}/{'a' * 32}"
    data = pa.BufferOutputStream()
    pq.write_table(rows(1).drop_columns("day"), data)
    for name in ("_delta_log/00000000000000000000.json", "_delta_log/_last_checkpoint", *names):
        store.put_new(f"{folder}/{name}", data.getvalue().to_pybytes())
    log = cluster.table_log(URL)
    log.refresh()
    file = add(f"{folder}/{names[0]}", rows=1, day="1")
    part = new_part(log.state.as_staged_under(), (file,), mode="append")
    now_ms = cluster.store.now_ms()
    return (TableChange(name=NAME, url=URL, part=part, staged_ms=now_ms),)


def test_vacuum_deletes_staging_tables_but_what_was_adopted() -> None:
    """Of a driver that is dead, and of one that committed (R72)."""
    shared = world()
    cluster = begun(shared)
    row = owned(cluster, "run")
    tables = staging_table(cluster, "day=1/part-0.snappy.parquet", "part-1.snappy.parquet")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, tables))
    recover(shared)
    shared.clock.advance_ms(WEEK_MS - HOUR_MS)
    assert vacuum(shared) == 0
    shared.clock.advance_ms(HOUR_MS)
    assert vacuum(shared) == 3
    assert data(staged_files(shared)) == {"part-0.snappy.parquet"}
    assert ForeignTable(shared).ours() == [1]


def test_vacuum_keeps_deletion_vectors_and_change_data() -> None:
    """No path in the log is theirs, or only that of a commit (R72)."""
    shared = world()
    cluster = begun(shared)
    table, store = ForeignTable(shared), cluster.table_log(URL).store
    table.commit(definition(**{"delta.deletedFileRetentionDuration": "interval 10 days"}))
    folder = f"_txnlog/{cluster.cluster_id}/{'a' * 32}"
    kept, feed = f"xy/deletion_vector_{uuid.UUID(int=0)}.bin", "_change_data/cdc-0.parquet"
    for name in (kept, feed, f"xy/deletion_vector_{uuid.UUID(int=1)}.bin"):
        store.put_new(f"{folder}/{name}", b"1")
    vector = {"storageType": "u", "pathOrInlineDv": f"{folder}/xy{'0' * 20}", "sizeInBytes": 1}
    file = {"path": "a", "deletionVector": {**vector, "cardinality": 1}}
    add = {"partitionValues": {"day": "1"}, "size": 1, "modificationTime": 0, "dataChange": True}
    table.commit({"add": {**file, **add, "stats": '{"numRecords":1}'}})
    names = {PurePosixPath(name).name for name in (kept, feed)}
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) == 1
    assert staged_files(shared) == names
    process(shared).snapshot("kept", ttl_ms=20 * DAY_MS)
    table.commit({"remove": {**file, "deletionTimestamp": 0}})
    shared.clock.advance_ms(3 * DAY_MS)
    assert vacuum(shared) == 1
    table.commit({"txn": {"appId": "a", "version": 1}})
    shared.clock.advance_ms(DAY_MS)
    assert vacuum(shared) == 0
    assert staged_files(shared) == {PurePosixPath(kept).name}
    # The table forgets the tombstone; the snapshot shows it.
    table.checkpoint()
    assert vacuum(shared) == 0
    cluster.drop_snapshot("kept")
    assert vacuum(shared) == 1


def test_vacuum_keeps_the_part_of_a_blocked_transaction() -> None:
    """It may be published a month later (R72, R74)."""
    shared = world()
    blocked(shared)
    for _ in range(5):
        shared.clock.advance_ms(WEEK_MS)
        vacuum(shared)
    ForeignTable(shared).commit(definition())
    recover(shared)
    assert ForeignTable(shared).ours() == [1, 2]


def test_vacuum_keeps_former_files_of_a_blocked_transaction() -> None:
    """A process that holds the row before it was restaged may publish them (R72, R76)."""
    shared = world()
    blocked(shared)
    former = staged_files(shared)
    ForeignTable(shared).commit(definition((("id", "double"), ("day", "string"))))
    cluster = process(shared)
    change_before_publication(shared, cluster, definition(NARROW))
    assert outcome_of(partial(restage, cluster, NAME)) == "TableChangedError"
    restaged = staged_files(shared)
    for _ in range(5):
        shared.clock.advance_ms(WEEK_MS)
        vacuum(shared)
    assert data(staged_files(shared)) == data(restaged) > data(former)
    ForeignTable(shared).commit(definition())
    assert restage(process(shared), NAME) == 1
    assert ForeignTable(shared).ours() == [1, 2]
    shared.clock.advance_ms(WEEK_MS + DAY_MS)
    vacuum(shared)
    assert len(data(staged_files(shared))) == 2


def test_vacuum_that_runs_while_rows_are_restaged_refuses_them() -> None:
    """The row would name files that vacuum has taken (R72, R76)."""
    shared = world()
    blocked(shared)
    ForeignTable(shared).commit(definition((("id", "double"), ("day", "string"))))
    cluster = process(shared)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith(f"{URL}/_txnlog/") and path.endswith(".json"):
            shared.clock.advance_ms(WEEK_MS)
            vacuum(shared)
        return Fault.NONE

    faults(cluster).plan = plan
    assert outcome_of(partial(restage, cluster, NAME)) == "StagedFileTooOldError"
    faults(cluster).plan = no_faults
    assert restage(cluster, NAME) == 1
    assert ForeignTable(shared).ours() == [1, 2]


def test_files_that_vacuum_may_have_taken_are_refused() -> None:
    """A transaction that was open for long stages again (R72)."""
    shared = world()
    cluster = begun(shared)
    row = owned(cluster, "run")
    tables = appended(cluster, 1)
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) == 1
    with pytest.raises(StagedFileTooOldError):
        cluster.coordinator.commit(
            row, Staging(frozenset(), tuple, tables), offsets=[consumed(0, 10)]
        )


@pytest.mark.parametrize("hours", [80, 90, 168])
def test_vacuum_met_at_any_call_by_a_commit_takes_no_file_of_it(
    hours: int, some: Some[Any]
) -> None:
    """Half of the vacuum age are 84 hours: later the commit is refused, by the time of a barrier
    if its own clocks were paused (R72).
    """

    def begin() -> Trial:
        shared = world()
        cluster = begun(shared)
        row, tables = owned(cluster, "run"), appended(cluster, 1)
        appended(cluster, 2)
        clock = PausedClock(shared.clock)
        paused = process(shared, clock=clock)
        paused.existing_shards()
        paused.store.now_ms()
        with clock.paused():
            shared.clock.advance_ms(hours * HOUR_MS)
        commit = partial(paused.coordinator.commit, row, Staging(frozenset(), tuple, tables))
        vacuuming = process(shared)
        age_ms = 2 * 84 * HOUR_MS if hours < 168 else HOUR_MS * 24
        return Trial(shared, vacuuming, Vacuum(vacuuming, age_ms=age_ms).run, more=commit)

    outcomes = set()
    for trial in meetings(begin, lambda trial: outcomes.add(outcome_of(trial.more)), some):
        assert trial.outcome == "done"
        recover(trial.shared)
        assert ForeignTable(trial.shared).ours() in ([], [1])
    assert outcomes


def test_table_that_cannot_be_read_keeps_all() -> None:
    """Nobody knows what is live there; other tables are vacuumed."""
    shared = world()
    cluster = begun(shared)
    appended(cluster, 1)
    ForeignTable(shared).commit(definition(NARROW, table_id="another"))
    shared.clock.advance_ms(WEEK_MS)
    assert vacuum(shared) == 0
    assert len(staged_files(shared)) == 1
