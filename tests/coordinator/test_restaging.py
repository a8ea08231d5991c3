"""A decided part that its table takes no more is staged again, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.cases import Some
from tests.coordinator.test_crashes import sweep, take_over
from tests.coordinator.test_tables import (
    NARROW,
    OTHER_URL,
    blocked,
    change_before_publication,
    recover_what_can,
)
from tests.faults import ERRORS, Trial, cuts, meetings
from tests.tables import NAME, URL, ForeignTable, appended, definition, with_table
from tests.world import (
    outcome_of,
    owned,
    position,
    process,
    recover,
    row_of,
    state_of,
    visible,
    world,
)
from txnlog.admin import tables
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import publish
from txnlog.coordinator.staged_files import Staging
from txnlog.coordinator.tables import file_of
from txnlog.errors import ConfigError, TableDataError
from txnlog.protocol.enlisted.parts import decode_part
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import SharedMemory

DOUBLE = (("id", "double"), ("day", "string"))
"""Another type, to which the rows can be cast; files that have the former one do not fit."""


def restage(cluster: Cluster) -> int:
    return tables.restage(cluster, NAME)


def begun() -> Trial:
    shared = world()
    blocked(shared)
    ForeignTable(shared).commit(definition(DOUBLE))
    cluster = process(shared)
    return Trial(shared, cluster, partial(restage, cluster))


def judge(shared: SharedMemory) -> None:
    """All of the transaction is there, once."""
    after = recover(shared)
    assert ForeignTable(shared).ours() == [1, 2]
    assert ForeignTable(shared, OTHER_URL).ours() == [2]
    assert visible(after, "mine") == (True, True)
    assert position(after) == 20
    assert state_of(after) is TransactionState.COMPLETE_COMMIT


def test_restaged_rows_have_the_tables_schema_and_end_the_transaction() -> None:
    """The topics, the other table and the offsets were there, or are now (R76)."""
    trial = begun()
    trial.act()
    judge(trial.shared)
    [add] = [one["add"] for one in ForeignTable(trial.shared).commits()[-1] if "add" in one]
    assert '"id":2.0' in add["stats"]
    assert restage(process(trial.shared)) == 0


def test_table_that_has_another_name_by_now_is_restaged_by_either() -> None:
    """Describe shows what waits for the table, and advises its name of now."""
    for name in (NAME, "renamed"):
        trial = begun()
        cluster = process(trial.shared)
        there = cluster.enlisted()[NAME]
        cluster.delist(NAME)
        cluster.enlist("renamed", there)
        assert len(tables.describe(cluster, "renamed").waiting) == 1
        assert tables.restage(cluster, name) == 1
        judge(trial.shared)


def test_rows_that_do_not_fit_stop_no_others() -> None:
    """Those of the older transaction have to be given up, or their values to be lost (R76)."""
    shared = world()
    cluster = process(shared)
    with_table(shared, cluster)
    for tid, number in (("older", 300), ("newer", 2)):
        staging = Staging(frozenset(), tuple, appended(cluster, number))
        change_before_publication(shared, cluster, definition(NARROW))
        commit = partial(cluster.coordinator.commit, owned(cluster, tid, tid=tid), staging)
        assert outcome_of(commit) == "TableChangedError"
        assert state_of(cluster, tid) is TransactionState.PREPARE_COMMIT
        ForeignTable(shared).commit(definition())
        shared.clock.advance_ms(1_000)
    ForeignTable(shared).commit(definition((("id", "byte"), ("day", "string"))))
    with pytest.raises(TableDataError, match="300"):
        restage(process(shared))
    assert state_of(cluster, "older") is TransactionState.PREPARE_COMMIT
    assert ForeignTable(shared).ours() == [2]


def test_restaging_cut_at_any_call_leaves_it_blocked_or_ends_it(some: Some[int]) -> None:
    """Restaged again, the rows are there once (R36, R76)."""
    is_there = set()
    for trial in cuts(begun, some):
        recover_what_can(trial.shared)
        is_there.add(ForeignTable(trial.shared).ours() == [1, 2])
        restage(process(trial.shared))
        judge(trial.shared)
    assert is_there == {True, False}


def test_restaging_repeated_after_an_error_ends_it(some: Some[int]) -> None:
    """A lost reply of the row's commit is settled by reading the row (R36, R76)."""
    for trial in cuts(begun, some, ERRORS):
        trial.again()
        judge(trial.shared)


def undo(other: Cluster, shared: SharedMemory) -> None:
    """The table takes the former files again, and a helper publishes them."""
    ForeignTable(shared).commit(definition())
    outcome_of(lambda: sweep(other))


def change_and_sweep(other: Cluster, shared: SharedMemory) -> None:
    """Neither files fit any more."""
    ForeignTable(shared).commit(definition((("id", "float"), ("day", "string"))))
    outcome_of(lambda: sweep(other))


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize(
    "other_act",
    [
        undo,
        change_and_sweep,
        lambda other, _: restage(other),
        lambda other, _: outcome_of(lambda: take_over(other)),
    ],
    ids=["undo", "change", "restage", "take over"],
)
def test_restaging_met_at_any_call_publishes_one_of_both(
    other_act: Callable[[Cluster, SharedMemory], None], late: bool, some: Some[int]
) -> None:
    """The `txn` of the one that is published first refuses the other (R74, R76)."""

    def meanwhile(trial: Trial) -> None:
        other_act(process(trial.shared), trial.shared)

    for trial in meetings(begun, meanwhile, some, late=late):
        recover_what_can(trial.shared)
        assert ForeignTable(trial.shared).ours() in ([1], [1, 2])
        restage(process(trial.shared))
        judge(trial.shared)


def test_helper_that_holds_the_former_row_publishes_nothing_more() -> None:
    """It has read the row before it was restaged, and the table takes the files again (R74)."""
    trial = begun()
    helper = process(trial.shared)
    row = row_of(helper)
    [old] = [table for table in row.tables if table.name == NAME]
    part = helper.table_log(URL).read_part(file_of(old))
    trial.act()
    ForeignTable(trial.shared).commit(definition())
    publish(helper, row)
    judge(trial.shared)
    store = helper.table_log(URL).store
    paths = [item.path for item in store.list("_txnlog") if item.path.endswith(".json")]
    found = [decode_part(store.get(path), source=path) for path in paths]
    [again] = [each for each in found if each.former]
    # By these an old decision is looked for, and vacuum keeps them as long as it is pending.
    assert set(again.former) == part.file_names
    assert part.file_names < again.file_names


def test_columns_that_are_gone_are_lost_only_by_name() -> None:
    """Refused with the column's name; nothing has changed (R76)."""
    shared = world()
    blocked(shared)
    ForeignTable(shared).commit(definition((("other", "long"), ("day", "string"))))
    cluster = process(shared)
    with pytest.raises(TableDataError, match="has no column 'id' any more.*--drop-columns id"):
        restage(cluster)
    with pytest.raises(ConfigError, match="'other'"):
        tables.restage(cluster, NAME, ["id", "other"])
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    assert tables.restage(cluster, NAME, ["id"]) == 1
    assert state_of(cluster) is TransactionState.COMPLETE_COMMIT
    [add] = [one["add"] for one in ForeignTable(shared).commits()[-1] if "add" in one]
    assert '"numRecords":1' in add["stats"]
