"""Delta tables of others in a transaction: every storage call fails, and others commit meanwhile.

A transaction writes two topics, appends to one table, overwrites a partition of another, or changes
what it read there, and commits offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cases import Some
from tests.coordinator.test_crashes import Deferred, restart_group, sweep, take_over
from tests.faults import RETRIABLE, Trial, cuts, meetings
from tests.tables import (
    NAME,
    URL,
    ForeignTable,
    appended,
    changed,
    definition,
    overwritten,
    with_table,
)
from tests.world import (
    ERRORS,
    GROUP,
    PLAIN,
    TOPICS,
    both,
    consumed,
    decide,
    faults,
    outcome_of,
    owned,
    planned,
    position,
    process,
    recover,
    row_of,
    state_of,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.staged_files import Staging
from txnlog.coordinator.sweeper import Sweeper
from txnlog.coordinator.tables import TableChange
from txnlog.coordinator.versions import topic_at
from txnlog.errors import CorruptLogError, TableChangedError
from txnlog.protocol.metadata import LastBatch
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, SharedMemory

OTHER, OTHER_URL = "gold.days", "memory://gold"
OTHER_ID = "0b1c7c6e-0000-4000-8000-000000000002"
LAST = LastBatch(batch_id=7)
NARROW = (("day", "string"),)
"""Columns of the table without those of the rows: no part fits it."""


def files(cluster: Cluster, name: str, tables: tuple[TableChange, ...] = ()) -> Staging:
    batches = both(cluster, name)
    return Staging(frozenset(batch.topic for batch in batches), lambda: batches, tables)


def changes(cluster: Cluster, *ids: int) -> tuple[TableChange, ...]:
    return (*appended(cluster, *ids), *overwritten(cluster, *ids, name=OTHER))


class WithTables(Deferred):
    """The second transaction of a run is under way; the first has written 1 to both tables."""

    staging: Staging

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> WithTables:
        cluster = process(shared, settings=settings)
        with_table(shared, cluster)
        with_table(shared, cluster, name=OTHER, url=OTHER_URL, table_id=OTHER_ID)
        row = owned(cluster, "first")
        staging = files(cluster, "before", changes(cluster, 1))
        row = cluster.coordinator.commit(row, staging, offsets=[consumed(0, 10)])
        actor = cls(shared, cluster, row, [])
        actor.staging = files(cluster, "mine", changes(cluster, 2))
        return actor

    def act(self) -> None:
        self.cluster.coordinator.commit(self.row, self.staging, offsets=[consumed(10, 20)])


class OnlyTables(WithTables):
    """No topic, and no offsets: nothing else shows the transaction."""

    def act(self) -> None:
        staging = Staging(frozenset(), tuple, self.staging.tables)
        self.cluster.coordinator.commit(self.row, staging)


class WithChange(WithTables):
    """The second transaction changes 1 to 2 in the other table, which decides: 1 was read."""

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> WithChange:
        cluster = process(shared, settings=settings)
        with_table(shared, cluster)
        with_table(shared, cluster, name=OTHER, url=OTHER_URL, table_id=OTHER_ID)
        row = owned(cluster, "first")
        tables = (*appended(cluster, 1), *appended(cluster, 1, name=OTHER))
        row = cluster.coordinator.commit(
            row, files(cluster, "before", tables), offsets=[consumed(0, 10)]
        )
        actor = cls(shared, cluster, row, [])
        change = changed(cluster, 2, name=OTHER)
        actor.staging = files(cluster, "mine", (*appended(cluster, 2), *change))
        return actor

    def act(self) -> None:
        offsets = [consumed(10, 20)]
        self.cluster.coordinator.commit(self.row, self.staging, offsets=offsets, last_batch=LAST)


def begun(kind: type[WithTables]) -> Trial:
    shared = world(settings=PLAIN)
    actor = kind.begin(shared, PLAIN)
    return Trial(shared, actor.cluster, actor.act)


def judge(kind: type[WithTables], trial: Trial) -> bool:
    """After recovery the transaction is everywhere, once, or nowhere."""
    shared = trial.shared
    after = recover(shared)
    found = (ForeignTable(shared).ours(), ForeignTable(shared, OTHER_URL).ours())
    assert found in (([1, 2], [2]), ([1], [1])), f"torn: {found}"
    is_there = found == ([1, 2], [2])
    assert is_there or trial.outcome != "done"
    if kind is not OnlyTables:
        assert visible(after, "mine") == (is_there, is_there)
        assert position(after) == (20 if is_there else 10)
    row = after.coordinator.describe("tx")
    assert row is None or not row.is_ending
    if kind is WithChange:
        last = None if row is None else row.owner.last_batch
        assert last == (LAST if is_there else None)
    return is_there


KINDS = [WithTables, OnlyTables, WithChange]


@pytest.mark.parametrize("kind", KINDS)
def test_transaction_with_tables_cut_at_any_call_is_everywhere_or_nowhere(
    kind: type[WithTables], some: Some[Any]
) -> None:
    """Before PREPARE no table has it, after it any process publishes it (R36, R73, R74, R77)."""
    assert {judge(kind, trial) for trial in cuts(partial(begun, kind), some)} == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_transaction_with_tables_repeated_after_an_error_is_there_once(
    kind: type[WithTables], some: Some[Any]
) -> None:
    """A lost reply of a put to the table's log is settled by reading the log (R36, R74)."""
    for trial in cuts(partial(begun, kind), some, ERRORS):
        assert trial.outcome in ("done", *RETRIABLE)
        assert trial.again() == "done"
        assert judge(kind, trial)


@pytest.mark.parametrize("kind", [WithTables, WithChange])
def test_recovery_of_tables_cut_at_any_call_is_recovered_again(
    kind: type[WithTables], some: Some[Any]
) -> None:
    """A helper may die after any of its puts, too, and before the row (R36, R74, R77)."""
    for trial in cuts(partial(begun, kind), some, (Fault.CRASH_AFTER,)):
        for second in range(60):
            helper = process(trial.shared)
            sweeper = Sweeper(helper, interval_ms=120_000)
            sweeper.sweep()
            trial.shared.clock.advance_ms(120_000)
            with planned(helper, {second: Fault.CRASH_AFTER}):
                if outcome_of(sweeper.sweep) == "done":
                    break
        judge(kind, trial)


def foreign_append(other: Cluster, shared: SharedMemory) -> None:
    """The overwrite of day 1 removes such a file if it lands later."""
    for url in (URL, OTHER_URL):
        ForeignTable(shared, url).append()


def change_and_undo(other: Cluster, shared: SharedMemory) -> None:
    """An incompatible change, and its end, which another process meets in between."""
    table = ForeignTable(shared)
    table.commit(definition(NARROW))
    outcome_of(lambda: sweep(other))
    table.commit(definition())


def by(act: Callable[[Cluster], None]) -> Callable[[Cluster, SharedMemory], None]:
    return lambda other, _: act(other)


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize(
    ("kind", "other_act"),
    [
        (WithTables, foreign_append),
        (WithTables, change_and_undo),
        *(
            (kind, by(act))
            for kind in (WithTables, WithChange)
            for act in (take_over, sweep, restart_group)
        ),
    ],
)
def test_transaction_with_tables_met_at_any_call_is_everywhere_or_nowhere(
    kind: type[WithTables],
    other_act: Callable[[Cluster, SharedMemory], None],
    late: bool,
    some: Some[Any],
) -> None:
    """A zombie pauses at any call, others continue, and it resumes (R27, R31, R74, R77).

    `late`: its call at that moment is a put that lands only after the others have acted.
    """

    def meanwhile(trial: Trial) -> None:
        other_act(process(trial.shared), trial.shared)

    for trial in meetings(partial(begun, kind), meanwhile, some, late=late):
        judge(kind, trial)


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_table_that_changes_at_any_call_refuses_or_blocks_its_transaction(
    late: bool, some: Some[Any]
) -> None:
    """Refused, nothing has it; decided, all but this table, which gets it later (R37, R74)."""

    def meanwhile(trial: Trial) -> None:
        ForeignTable(trial.shared).commit(definition(NARROW))

    outcomes = set()
    for trial in meetings(partial(begun, WithTables), meanwhile, some, late=late):
        outcomes.add(trial.outcome)
        recover_what_can(trial.shared)
        found = ForeignTable(trial.shared).ours(), ForeignTable(trial.shared, OTHER_URL).ours()
        assert found in (([1], [1]), ([1], [2]), ([1, 2], [2]))
        ForeignTable(trial.shared).commit(definition())
        judge(WithTables, trial)
    assert outcomes <= {"done", "TableChangedError", *RETRIABLE}
    assert late or "TableChangedError" in outcomes


def recover_what_can(shared: SharedMemory) -> None:
    cluster = process(shared)
    sweeper = Sweeper(cluster, interval_ms=120_000)
    for _ in range(2):
        outcome_of(sweeper.sweep)
        shared.clock.advance_ms(120_000)


# --- Blocked ------------------------------------------------------------------------------------


def change_before_publication(
    shared: SharedMemory, cluster: Cluster, change: dict[str, Any]
) -> None:
    """Another writer commits before the next put to the table's log."""
    waiting = [change]

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith(f"{URL}/_delta_log/") and waiting:
            ForeignTable(shared).commit(waiting.pop())
        return Fault.NONE

    faults(cluster).plan = plan


def blocked(shared: SharedMemory) -> tuple[Cluster, TableChangedError]:
    """A transaction whose table is changed between its decision and its publication."""
    actor = WithTables.begin(shared, PLAIN)
    change_before_publication(shared, actor.cluster, definition(NARROW))
    with pytest.raises(TableChangedError) as raised:
        actor.act()
    return actor.cluster, raised.value


def test_table_that_changes_after_the_decision_blocks_its_transaction_only() -> None:
    """The topics, and the other table, have it; its offsets and COMPLETE wait (R37, R74)."""
    shared = world()
    cluster, error = blocked(shared)
    assert error.context["decided"]
    assert not error.abortable
    assert "id" in error.message
    assert visible(process(shared), "mine") == (True, True)
    assert ForeignTable(shared, OTHER_URL).ours() == [2]
    assert ForeignTable(shared).ours() == [1]
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    assert outcome_of(lambda: owned(cluster, "another run")) == "TableChangedError"
    ForeignTable(shared).commit(definition())
    after = recover(shared)
    assert state_of(after) is TransactionState.COMPLETE_COMMIT
    assert ForeignTable(shared).ours() == [1, 2]
    assert position(after) == 20


def test_table_that_was_made_again_after_the_decision_settles_the_part() -> None:
    """With another id it is as if the part had been published just before (R74)."""
    shared = world()
    actor = WithTables.begin(shared, PLAIN)
    change_before_publication(shared, actor.cluster, definition(table_id="another"))
    actor.act()
    assert state_of(recover(shared)) is TransactionState.COMPLETE_COMMIT
    assert len(ForeignTable(shared).commits()) == 3


def test_table_that_was_dropped_with_all_its_files_settles_the_part() -> None:
    """The part file is gone, too; another process finishes the transaction (R73, R74)."""
    shared = world()
    blocked(shared)
    store = shared.places[URL]
    for page in list(store.list()):
        store.delete([item["path"] for item in page])
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    ForeignTable(shared).commit({"protocol": protocol}, definition(table_id="another"))
    assert state_of(recover(shared)) is TransactionState.COMPLETE_COMMIT
    assert len(ForeignTable(shared).commits()) == 1


def test_staged_file_that_is_gone_is_named_and_not_published() -> None:
    """A version that names it would stop every reader of the table (R66, R74)."""
    shared = world()
    blocked(shared)
    ForeignTable(shared).commit(definition())
    store = shared.places[URL]
    paths = {item["path"] for page in store.list("_txnlog") for item in page}
    named = {a["add"]["path"] for one in ForeignTable(shared).commits() for a in one if "add" in a}
    [lost] = [path for path in paths - named if path.endswith(".parquet")]
    kept = bytes(store.get(lost).bytes())
    store.delete(lost)
    cluster = process(shared)
    row = row_of(cluster)
    with pytest.raises(CorruptLogError, match="is missing: nothing was published") as raised:
        finish(cluster, row)
    assert raised.value.file == f"{URL}/{lost}"
    assert ForeignTable(shared).ours() == [1]
    store.put(lost, kept)
    recover(shared)
    assert ForeignTable(shared).ours() == [1, 2]


def test_snapshot_has_no_table_that_does_not_take_a_decided_part() -> None:
    """The transaction's topics, other tables and offsets are the snapshot's (R37)."""
    shared = world()
    actor = WithTables.begin(shared, PLAIN)
    decide(actor.cluster, actor.row, actor.staging, offsets=[consumed(10, 20)])
    ForeignTable(shared).commit(definition(NARROW))
    reader = process(shared)
    snapshot = reader.snapshot()
    for topic in TOPICS:
        paths = topic_at(reader, topic, snapshot).view.by_path
        assert [path for path in paths if "mine" in path]
    assert snapshot.offsets[GROUP]["input"][0] == 20
    assert snapshot.tables[OTHER].version == 2
    assert list(snapshot.missing) == [NAME]
    assert "cannot be published as of version 2" in snapshot.missing[NAME]
    ForeignTable(shared).commit(definition())
    assert process(shared).snapshot().tables[NAME].version == 4


# --- Staging where others vacuum ----------------------------------------------------------------


HOURS = {"delta.deletedFileRetentionDuration": "interval 10 hours"}


def visible_table(shared: SharedMemory) -> Cluster:
    cluster = process(shared)
    with_table(shared, cluster)
    ForeignTable(shared).commit(definition(**HOURS))
    there = cluster.enlisted()[NAME]
    cluster.enlist(NAME, replace(there, staging="visible"))
    return cluster


def test_visible_rows_are_staged_in_the_tables_folders() -> None:
    """A DELETE and a VACUUM of other tools erase them."""
    shared = world()
    cluster = visible_table(shared)
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, appended(cluster, 1)))
    [add] = [one["add"] for one in ForeignTable(shared).commits()[-1] if "add" in one]
    assert add["path"].startswith("day=1/part-")
    assert cluster.read(NAME).to_pydict() == {"id": [1], "day": ["1"]}


@pytest.mark.parametrize(("minutes", "is_refused"), [(295, False), (305, True)])
def test_visible_files_that_others_may_vacuum_are_not_decided(
    minutes: int, is_refused: bool
) -> None:
    """Half of the table's retention is left for the publication (R72)."""
    shared = world()
    cluster = visible_table(shared)
    row, tables = owned(cluster, "run"), appended(cluster, 1)
    shared.clock.advance_ms(minutes * 60_000)
    commit = partial(cluster.coordinator.commit, row, Staging(frozenset(), tuple, tables))
    assert outcome_of(commit) == ("StagedFileTooOldError" if is_refused else "done")
    head = ForeignTable(shared).head()
    assert head == (1 if is_refused else 2)


def test_visible_files_that_others_have_vacuumed_since_the_decision_are_not_published() -> None:
    """A commit that is repeated looks for them: every reader of the table would fail (D146)."""
    shared = world()
    cluster = visible_table(shared)
    row, staging = owned(cluster, "run"), Staging(frozenset(), tuple, appended(cluster, 1))
    change_before_publication(shared, cluster, definition(NARROW, **HOURS))
    commit = partial(cluster.coordinator.commit, row, staging)
    assert outcome_of(commit) == "TableChangedError"
    shared.clock.advance_ms(11 * 3_600_000)
    foreign = ForeignTable(shared)
    foreign.commit(definition(**HOURS))
    [add] = staging.tables[0].part.adds
    shared.places[URL].delete([add.path])
    head = foreign.head()
    assert outcome_of(commit) == "CorruptLogError"
    assert foreign.head() == head
