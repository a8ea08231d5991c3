"""Expiry, log clean-up and vacuum: duties of the housekeeper, and a dry run of all."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    WEEK_MS,
    check_files,
    log_names,
    names,
    written_both,
)
from tests.staged_files import append_idempotent
from tests.world import both, faults, owned, process, world
from txnlog.admin import AdminClient
from txnlog.cli.app import app
from txnlog.cli.session import Session
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.one_off import commit_one_off
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.housekeeping.log_cleanup import EXPIRED_LOG_FILE
from txnlog.housekeeping.producer_expiry import EXPIRED_MARKER, EXPIRED_SEQUENCE
from txnlog.protocol.metadata import Owner
from txnlog.protocol.vacuum import NEVER_COMMITTED, REMOVED
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster

SELDOM = HousekeepingSettings(
    abort_interval_ms=6 * HOUR_MS,
    remove_interval_ms=6 * HOUR_MS,
    retention_check_interval_ms=DAY_MS,
    cleaner_backoff_ms=DAY_MS,
    vacuum_interval_ms=DAY_MS,
    lease_ms=3 * DAY_MS,
)
"""Weeks pass in fewer steps."""
DUTIES = ("producers expired", "log files cleaned up", "files vacuumed")


def lived_in() -> SharedMemory:
    """Something of everything, a week and a day ago."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(12):
        row = cluster.coordinator.commit(row, written_both(cluster, f"n{number}"))
    complete(cluster, row)
    commit_one_off(cluster, written_both(cluster, "batch"), Owner(run_id="w"))
    idle = written_both(cluster, "idle")[0]
    append_idempotent(cluster, 77, [idle], {idle.partition: 0})
    written_both(cluster, "orphan")
    shared.clock.advance_ms(WEEK_MS + DAY_MS)
    return shared


def kept(shared: SharedMemory) -> Mapping[str, object]:
    cluster = process(shared)
    return {meta.path: meta.size_bytes for meta in cluster.store.list("")}


def test_dry_run_lists_what_would_be_removed_and_writes_nothing() -> None:
    """An operator checks before the first housekeeping of a store."""
    shared = lived_in()
    before = kept(shared)
    keeper = Housekeeper(process(shared))
    found = keeper.find()
    assert kept(shared) == before
    by_reason = {item.reason for item in found}
    assert by_reason == {
        EXPIRED_LOG_FILE,
        EXPIRED_MARKER,
        EXPIRED_SEQUENCE,
        NEVER_COMMITTED,
        REMOVED,
    }
    assert all(item.age_ms >= DAY_MS for item in found)
    files = {item.path for item in found if "txnlog/" not in item.path}
    assert files <= set(before)
    assert {item.size_bytes for item in found if item.reason == NEVER_COMMITTED} == {7}
    keeper.run_once()
    # Expiry of a producer is a commit: the version below it stays for the log retention.
    shared.clock.advance_ms(DAY_MS + HOUR_MS)
    keeper.run_once()
    assert files.isdisjoint(kept(shared))
    check_files(process(shared))
    check_cluster(process(shared))


def test_housekeeper_does_every_duty_and_returns_counts() -> None:
    """Each duty by its own interval, and again when there is something new."""
    shared = lived_in()
    keeper = Housekeeper(process(shared), SELDOM)
    first = keeper.run_once()
    assert first is not None
    assert first["files vacuumed"] == 4
    assert first["log files cleaned up"] > 10
    assert first["producers expired"] == 1
    shared.clock.advance_ms(HOUR_MS)
    second = keeper.run_once()
    assert second is not None
    assert second["producers expired"] == 2
    assert second["files vacuumed"] == 0
    end_ms = shared.clock.boot_ms() + 2 * WEEK_MS
    while shared.clock.boot_ms() < end_ms:
        shared.clock.advance_ms(keeper.step())
    assert len(log_names(process(shared), "orders")) <= 12
    check_cluster(process(shared))


def test_housekeeping_that_finds_nothing_commits_nothing() -> None:
    """A commit per round would keep every idle table growing."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    complete(cluster, cluster.coordinator.commit(owned(cluster, "a"), both(cluster, "x")))
    keeper = process(shared)
    faults(keeper).calls.clear()
    done = Housekeeper(keeper).run_once()
    assert done is not None
    assert [done[name] for name in DUTIES] == [0, 0, 0]
    logs = [p for verb, p in faults(keeper).calls if verb == "put" and "_delta_log" in p]
    assert {path.partition("/")[0] for path in logs} <= {"__cluster"}
    assert names(keeper, "orders") == {"part-0-x.parquet"}


@pytest.mark.parametrize("flag", [["--dry-run"], ["--once", "--dry-run"]])
def test_dry_run_on_the_command_line(flag: list[str]) -> None:
    """PATH, REASON, AGE-MS and BYTES of each, and a line that nothing was removed."""
    shared = lived_in()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "admin", lambda _: AdminClient({}, cluster=process(shared)))
        shown = CliRunner().invoke(app, ["--root", "x", "housekeeping", *flag])
        assert shown.exit_code == 0, shown.output
        assert shown.output.startswith("PATH")
        assert "Nothing was removed." in shown.output
        rows = CliRunner().invoke(app, ["--root", "x", "--output", "json", "housekeeping", *flag])
        found = json.loads(rows.output)
    assert {row["REASON"] for row in found} >= {EXPIRED_LOG_FILE, NEVER_COMMITTED}
    assert len(kept(shared)) > len(found)
