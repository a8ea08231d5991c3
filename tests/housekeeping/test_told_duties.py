"""What the lease tells of the duties: who, since when, the last runs, and what is overdue."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cli.runner import Command
from tests.housekeeping.test_housekeeper import HOUR_MS, SELDOM, keep
from tests.world import MINUTE_MS, process, world
from txnlog.admin import AdminClient, HousekeepingDescription
from txnlog.cluster import Cluster
from txnlog.errors import StorePermissionError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.retention import Retention
from txnlog.protocol.duties import DUTIES, HELD_MS, DutyRun, told_parameters, told_runs
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.store.clock import FOLDER
from txnlog.storage.tables import cluster_log
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore


def described(shared: SharedMemory) -> HousekeepingDescription:
    return AdminClient({}, cluster=process(shared)).describe_housekeeping().result()


def test_runs_move_between_clocks_and_back() -> None:
    """The holder's boot clock, the commit, the store's clock: no wall clock of a machine."""
    runs = {
        "a": DutyRun(at_ms=90, due_ms=150, count=3),
        "b": DutyRun(at_ms=95, due_ms=99, error="x"),
    }
    told = told_parameters(runs, held_ms=40, now_ms=100)
    since_ms, found = told_runs(told, at_ms=1_000)
    assert since_ms == 960
    assert found["a"] == DutyRun(at_ms=990, due_ms=1_050, count=3)
    assert found["b"] == DutyRun(at_ms=995, due_ms=999, error="x")
    assert found["b"].is_overdue(now_ms=1_100, slack_ms=100)
    assert not found["b"].is_overdue(now_ms=1_099, slack_ms=100)
    assert told_parameters({}, held_ms=1, now_ms=1) == {}


@pytest.mark.parametrize(
    "told",
    [{}, {HELD_MS: "1"}, {DUTIES: "{}"}, {HELD_MS: "x", DUTIES: "{}"}, {HELD_MS: "1", DUTIES: "["},
     {HELD_MS: "1", DUTIES: '{"a": 1}'}, {HELD_MS: "1", DUTIES: '{"a": {"atMs": 1e99}}'},
     {HELD_MS: "1", DUTIES: "[" * 9_999}],
)  # fmt: skip
def test_what_others_wrote_there_is_no_news_and_no_error(told: dict[str, str]) -> None:
    """commitInfo is anybody's; housekeeping must not stop at it."""
    assert told_runs(told, at_ms=5) == (-1, {})


def test_each_duty_is_told_with_its_time_and_result() -> None:
    """Also by the next holder, who does them again."""
    shared = world()
    start_ms = process(shared).store.now_ms()
    keeper = Housekeeper(process(shared))
    keep(shared, keeper, 10 * MINUTE_MS)
    found = described(shared)
    assert found.upkeep.holder.startswith("process ")
    assert abs(found.upkeep.since_ms - start_ms) < 1_000
    assert found.overdue == []
    runs = found.upkeep.duties
    assert set(runs) == {duty.name for duty in keeper._duties}
    assert 0 <= found.now_ms - runs["transactions and offsets settled"].at_ms <= 40_000
    assert abs(runs["files vacuumed"].at_ms - start_ms) < 1_000
    assert runs["files vacuumed"].due_ms - runs["files vacuumed"].at_ms == 6 * HOUR_MS
    keeper.close()
    released = described(shared)
    assert released.upkeep.holder == ""
    assert released.upkeep.duties.keys() == runs.keys()


def test_a_failed_duty_is_told_with_its_error() -> None:
    """Its log line is on a machine that nobody looks at."""
    shared = world()
    with patch.object(Retention, "enforce_all", side_effect=StorePermissionError("no right")):
        keep(shared, Housekeeper(process(shared)), MINUTE_MS)
    told = {name: run.error for name, run in described(shared).upkeep.duties.items() if run.error}
    assert told == {"files past their retention removed": "no right"}


def test_a_duty_is_overdue_when_its_holder_is_gone() -> None:
    """What was due an hour after the last news; retention is checked each five minutes."""
    shared = world()
    keep(shared, Housekeeper(process(shared)), MINUTE_MS)
    shared.clock.advance_ms(8 * MINUTE_MS)
    assert set(described(shared).overdue) == {
        "transactions and offsets settled", "groups of dead members emptied", "files compacted",
        "files past their retention removed",
    }  # fmt: skip


def test_a_round_of_cron_is_due_again_after_a_day() -> None:
    """Nobody knows its interval; it was overdue ten seconds later otherwise."""
    shared = world()
    keeper = Housekeeper(process(shared))
    assert keeper.run_once() is not None
    keeper.close()
    shared.clock.advance_ms(23 * HOUR_MS)
    assert described(shared).overdue == []
    shared.clock.advance_ms(2 * HOUR_MS)
    assert len(described(shared).overdue) == len(keeper._duties)


def test_telling_takes_no_request_of_its_own() -> None:
    """The renewal is written anyway, every third of the lease."""
    shared = world()
    store = RoundsStore(shared)
    keeper = Housekeeper(Cluster.open(store), SELDOM)
    keeper.step()
    shared.clock.advance_ms(keeper.step())
    store.calls.clear()
    keeper._take()
    assert [kind for kind, path in store.calls if kind.startswith("put")] == ["put"]
    assert described(shared).upkeep.duties


def test_older_news_is_found_below_a_checkpoint() -> None:
    """A process that opens `__cluster` reads what is above it only."""
    shared = world()
    keep(shared, Housekeeper(process(shared)), MINUTE_MS)
    before = described(shared).upkeep.duties
    cluster = process(shared)
    create_checkpoint(cluster.store, cluster_log.PATH, trust_ms=cluster.settings.trust_ms)
    assert process(shared).read_lease("housekeeping").told == {}
    assert described(shared).upkeep.duties == before


def test_status_says_who_what_when_and_writes_nothing(tmp_path: Path) -> None:
    """As an operator reads it; a table has its small files, checkpoint and vacuum."""
    command = Command(tmp_path)
    command.cluster()
    root = Path(command.root)

    def files() -> set[str]:
        found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        return {name for name in found if not name.startswith(FOLDER)}

    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    for number in range(12):
        command.ok("produce", "-t", "t", "--transactional-id", "tx", input=b"%d\n" % number)
    before = files()
    idle = command.ok("housekeeping", "--status")
    assert idle.startswith("Nothing overdue, nothing failed.\nNobody holds the lease.\n")
    [table] = [
        one for one in command.json("housekeeping", "--status")["tables"] if one["table"] == "t"
    ]
    assert (table["files"], table["smallFiles"], table["vacuumedMs"]) == (12, 12, None)
    assert files() == before
    command.ok("housekeeping", "--once")
    found = command.json("housekeeping", "--status")
    assert found["holder"] is None
    [merged] = [one for one in found["duties"] if one["duty"] == "files compacted"]
    assert (merged["count"], merged["error"], merged["isOverdue"]) == (12, None, False)
    assert "files compacted" in command.ok("housekeeping", "--status")
