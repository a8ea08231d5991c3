"""A change of rows that were read, in a table of others, which decides: others commit meanwhile.

For every failing call, and other processes at each, see tests.coordinator.test_tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cases import Some
from tests.coordinator.restoring import backup, restore
from tests.coordinator.test_tables import OTHER, OTHER_ID, OTHER_URL, WithChange, begun, files
from tests.coordinator.test_tables import judge as judge_kind
from tests.faults import Trial, meetings
from tests.tables import NAME, ForeignTable, appended, changed, definition
from tests.world import (
    GROUP,
    TOPICS,
    faults,
    outcome_of,
    owned,
    process,
    recover,
    row_of,
    state_of,
    visible,
)
from txnlog.admin import tables
from txnlog.admin.transactions import (
    abort_transaction,
    describe_transaction,
    fence_producer,
)
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.staged_files import Staging
from txnlog.coordinator.tables import check_files
from txnlog.coordinator.versions import topic_at
from txnlog.errors import CorruptLogError, LogGapError
from txnlog.protocol.enlisted.actions import ChangesFile, DeletionVector
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import read_committed

change = partial(begun, WithChange)
judge = partial(judge_kind, WithChange)


def append(shared: SharedMemory) -> None:
    ForeignTable(shared, OTHER_URL).append()


def alter(shared: SharedMemory) -> None:
    ForeignTable(shared, OTHER_URL).commit(definition(table_id=OTHER_ID, owner="us"))


@pytest.mark.parametrize("dies", [False, True], ids=["", "dies"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("foreign", [append, alter])
def test_foreign_change_of_what_was_read_at_any_call_refuses_the_transaction_or_follows_it(
    foreign: Callable[[SharedMemory], None], late: bool, dies: bool, some: Some[Any]
) -> None:
    """What others commit before the change refuses all of the transaction; dead, too (R77)."""

    def meanwhile(trial: Trial) -> None:
        foreign(trial.shared)
        if dies:
            raise SimulatedCrash

    outcomes = set()
    for trial in meetings(change, meanwhile, some, late=late):
        outcomes.add((trial.outcome, judge(trial)))
    assert ("TableConflictError", True) not in outcomes
    assert dies or late or {("TableConflictError", False), ("done", True)} <= outcomes


def test_conflict_leaves_the_id_free_for_the_next_transaction() -> None:
    """The whole transaction is run again, with what was read anew (R77)."""
    trial = change()
    shared, cluster = trial.shared, trial.cluster
    ForeignTable(shared, OTHER_URL).append()
    assert outcome_of(trial.act) == "TableConflictError"
    row = row_of(cluster)
    again = Staging(frozenset(), tuple, changed(cluster, 3, name=OTHER))
    cluster.coordinator.commit(row, again)
    assert ForeignTable(shared, OTHER_URL).ours() == [3]
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT


def look(shared: SharedMemory, snapshot: Snapshot | None = None) -> bool:
    """Whether a snapshot shows the transaction; it is whole in it."""
    cluster = process(shared)
    taken = snapshot or cluster.snapshot()
    is_there = cluster.read(OTHER, snapshot=taken)["id"].to_pylist() == [2]
    assert is_there or cluster.read(OTHER, snapshot=taken)["id"].to_pylist() == [1]
    assert sorted(cluster.read(NAME, snapshot=taken)["id"].to_pylist()) == [1, 2][: 1 + is_there]
    log = topic_at(cluster, TOPICS[0], taken)
    paths = [batch.path for batches in read_committed(log.view).values() for batch in batches]
    assert any(path.endswith("-mine.parquet") for path in paths) == is_there
    assert taken.offsets[GROUP]["input"][0] == (20 if is_there else 10)
    return is_there


@pytest.mark.parametrize("dies", [False, True], ids=["", "dies"])
def test_snapshot_between_two_calls_shows_tables_and_topics_alike(
    dies: bool, some: Some[Any]
) -> None:
    """The table's log says that it is decided before the row does (R77)."""
    seen = set()

    def meanwhile(trial: Trial) -> None:
        seen.add(look(trial.shared))
        if dies:
            raise SimulatedCrash

    for trial in meetings(change, meanwhile, some):
        judge(trial)
    assert seen == {True, False}


@pytest.mark.parametrize("dies", [Fault.NONE, Fault.CRASH_AFTER], ids=["", "dies"])
def test_snapshot_beside_a_change_shows_tables_and_topics_alike(
    dies: Fault, some: Some[Any]
) -> None:
    """The change is asked for, and decided, between two calls of the snapshot; its process dies
    before the row says so (R77).
    """
    seen = set()
    for trial in meetings(snapshots, lambda trial: trial.more.act(dies), some):
        assert trial.outcome == "done"
        seen.add(look(trial.shared, trial.more.taken[0]))
        judge(trial)
    assert seen == {True, False}


def snapshots() -> Trial:
    trial = change()
    reader = process(trial.shared)
    reader.snapshot()
    taken: list[Snapshot] = []
    more = SimpleNamespace(act=partial(dying, trial), taken=taken)
    return Trial(trial.shared, reader, lambda: taken.append(reader.snapshot()), more)


def dying(trial: Trial, fault: Fault) -> None:
    """The change, with a fault at its commit to the table."""

    def plan(verb: str, path: str) -> Fault:
        is_commit = verb == "put" and path.startswith(f"{OTHER_URL}/_delta_log/")
        return fault if is_commit else Fault.NONE

    faults(trial.cluster).plan = plan
    trial.outcome = outcome_of(trial.act)
    assert trial.outcome == ("done" if fault is Fault.NONE else "crashed")


def died_before_the_table() -> Trial:
    """Asked for, and its process is gone."""
    trial = change()
    dying(trial, Fault.CRASH_BEFORE)
    return trial


@pytest.mark.parametrize("is_refused", [False, True])
def test_operator_who_aborts_lets_the_table_decide(is_refused: bool) -> None:
    """An abort in the row alone might meet the change in the table (R43, R77)."""
    trial = died_before_the_table()
    if is_refused:
        ForeignTable(trial.shared, OTHER_URL).append()
    cluster = process(trial.shared)
    assert describe_transaction(cluster, "tx").decider == OTHER
    abort = partial(abort_transaction, cluster, "tx", by="ops", reason="test")
    assert outcome_of(abort) == ("done" if is_refused else "InvalidTxnStateError")
    assert judge(trial) is not is_refused
    assert describe_transaction(cluster, "tx").decider == ""


@pytest.mark.parametrize("dies", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_operator_who_restages_or_republishes_changes_nothing(dies: Fault) -> None:
    """The row names no part that is decided (R76, R77)."""
    trial = change()
    dying(trial, dies)
    cluster = process(trial.shared)
    before = cluster.coordinator.describe("tx")
    for name in (NAME, OTHER):
        assert tables.restage(cluster, name) == 0
        assert tables.republish(cluster, name) == 0
    assert cluster.coordinator.describe("tx") == before
    assert judge(trial)


def test_operator_who_fences_lets_the_table_decide() -> None:
    """Its run is refused from then on, and what it asked for is whole (R43, R77)."""
    trial = died_before_the_table()
    row = fence_producer(process(trial.shared), "tx", by="ops", reason="test")
    assert row.owner.former_runs == ("first",)
    assert judge(trial)


def test_table_that_cannot_be_read_delays_the_transaction() -> None:
    """Nobody can tell whether it was decided; the row says which table it is (R37, R77)."""
    trial = died_before_the_table()
    head = f"{OTHER_URL}/_delta_log/"
    cluster = process(trial.shared)

    def plan(verb: str, path: str) -> Fault:
        return Fault.FAIL_BEFORE if path.startswith(head) else Fault.NONE

    faults(cluster).plan = plan
    row = row_of(cluster)
    assert outcome_of(partial(finish, cluster, row)) == "StorageError"
    assert cluster.coordinator.describe("tx") == row
    assert judge(trial)


NEW_ID = "0b1c7c6e-0000-4000-8000-00000000000f"


def test_table_that_was_made_again_decides_nothing() -> None:
    """What was read is gone: nothing of the transaction is committed (R77)."""
    trial = died_before_the_table()
    ForeignTable(trial.shared, OTHER_URL).commit(definition(table_id=NEW_ID))
    after = recover(trial.shared)
    assert visible(after, "mine") == (False, False)
    assert state_of(after) is TransactionState.COMPLETE_ABORT


def test_table_that_is_replaced_in_its_own_log_has_decided_before() -> None:
    """The new table may be made of what was changed: no second time then (R77)."""
    trial = change()
    dying(trial, Fault.CRASH_AFTER)
    ForeignTable(trial.shared, OTHER_URL).commit(definition(table_id=NEW_ID))
    assert judge(trial)


def test_owner_who_finds_another_table_is_told_what_was_decided() -> None:
    """A helper has finished the transaction before the table was dropped and made again (R77)."""

    def meanwhile(trial: Trial) -> None:
        recover(trial.shared)
        other = trial.shared.places[OTHER_URL]
        other.delete([each["path"] for page in other.list("_delta_log") for each in page])
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        new = ForeignTable(trial.shared, OTHER_URL)
        new.commit({"protocol": protocol}, definition(table_id=NEW_ID))
        for _ in range(5):
            new.append()

    seen = set()
    for trial in meetings(change, meanwhile):
        outcome = trial.again()
        is_there = visible(recover(trial.shared), "mine")
        assert is_there[0] == is_there[1]
        assert (outcome, is_there[0]) not in {("TableConflictError", True), ("done", False)}
        seen.add((outcome, is_there[0]))
    assert ("done", True) in seen


@pytest.mark.parametrize("hours", [0, 20])
def test_owner_who_finds_two_later_ones_is_not_told_that_it_has_committed(hours: int) -> None:
    """The row of the second start does not say how the transaction ended (R77)."""

    def meanwhile(trial: Trial) -> None:
        ForeignTable(trial.shared, OTHER_URL).append()
        for run in ("second", "third"):
            owned(process(trial.shared), run)
        trial.shared.clock.advance_ms(hours * 3_600_000)

    for trial in meetings(change, meanwhile):
        judge(trial)


@pytest.mark.parametrize("days", [0, 8])
def test_row_of_a_restored_shard_is_not_taken_for_published(days: int) -> None:
    """A later transaction is in all tables; its files may be of any age (R72, R77)."""
    trial = died_before_the_table()
    shared, name = trial.shared, process(trial.shared).shard_for("tx").path
    kept = backup(shared, name)
    ForeignTable(shared, OTHER_URL).append()
    later = owned(recover(shared), "second")
    cluster = process(shared)
    cluster.coordinator.commit(later, files(cluster, "theirs", appended(cluster, 5, name=OTHER)))
    recover(shared)
    restore(shared, name, kept)
    shared.clock.advance_ms(days * 86_400_000)
    cluster = process(shared)
    row = row_of(cluster)
    with pytest.raises(LogGapError, match="never had its file"):
        finish(cluster, row)


def lose(shared: SharedMemory, name: str) -> None:
    """Delete what the change has staged: its part file, or its rows."""
    store = shared.places[OTHER_URL]
    found = sorted(
        (each["last_modified"], each["path"])
        for page in store.list("_txnlog")
        for each in page
        if each["path"].endswith(name)
    )
    store.delete(found[-1][1])


@pytest.mark.parametrize("name", [".json", ".parquet"])
def test_change_that_has_lost_a_file_is_given_up(name: str) -> None:
    """Nothing is decided yet: the id goes on, and a batch is computed again (R77)."""
    trial = died_before_the_table()
    lose(trial.shared, name)
    assert not judge(trial)
    assert (
        ForeignTable(trial.shared, OTHER_URL).commits()[-1][0]["commitInfo"]["operation"] == "FENCE"
    )


def test_change_that_is_there_needs_no_part_file() -> None:
    """The table says that it is decided (R77)."""
    trial = change()
    dying(trial, Fault.CRASH_AFTER)
    lose(trial.shared, ".json")
    assert judge(trial)


def test_helper_looks_for_deletion_vectors_and_change_feeds() -> None:
    """Readers would fail without them (R77)."""
    cluster = change().cluster
    [mine] = changed(cluster, 3, name=OTHER)
    log, live = cluster.table_log(OTHER_URL), mine.part.removes[0]
    check_files(log, mine.part, "tx")
    name = f"_txnlog/c{'0' * 20}"
    vector = DeletionVector(
        storage_type="u", path_or_inline_dv=name, size_in_bytes=1, cardinality=1
    )
    fewer = replace(mine.part.adds[0], path=live.path, deletion_vector=vector)
    with pytest.raises(CorruptLogError, match="_txnlog/c/deletion_vector_"):
        check_files(log, replace(mine.part, adds=(fewer,)), "tx")
    feed = ChangesFile(path="_txnlog/c%201", partition_values={}, size=1, data_change=False)
    with pytest.raises(CorruptLogError, match="_txnlog/c 1"):
        check_files(log, replace(mine.part, cdc=(feed,)), "tx")
