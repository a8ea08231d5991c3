"""What decides a transaction in a log that others write, too: the change, or a fence, once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.storage.foreign_table import (
    ForeignTable,
    actions_up_to,
    decided,
    metadata,
    opened,
    part_of,
    slot,
    write_checkpoint,
    yes,
)
from tests.storage.test_enlisted_log import drop
from txnlog.errors import TableConflictError
from txnlog.protocol.enlisted.parts import Operation, Part
from txnlog.storage.tables.enlisted_log import (
    AlreadyPublished,
    AlreadyRefused,
    EnlistedLog,
    Published,
    TableReplaced,
)
from txnlog.testing.faults import FaultsAt, SharedMemory

FENCE = ("txnlog/c/7/fence", 0)


def change_of(log: EnlistedLog) -> Part:
    """One that has read all of the table, and adds a file."""
    return replace(part_of(log), mode="merge", change=Operation(operation="MERGE"))


def test_change_without_a_conflict_decides_and_is_there(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Its own commit is in no conflict with it, for nobody (R77)."""
    log = opened(shared.open())
    change = change_of(log)
    found = log.publish(change, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert not found.refused
    foreign.append()
    for each in (log, opened(shared.open())):
        again = each.publish(change, decided(log), is_still_decided=yes)
        assert isinstance(again, AlreadyPublished)
    assert foreign.paths() == ["_txnlog/c/part-1.parquet", "foreign-2"]


@pytest.mark.parametrize("foreign_act", [(), (metadata(comment="x"),)], ids=["append", "alter"])
@pytest.mark.parametrize("beside", [False, True], ids=["before", "beside"])
def test_conflict_puts_a_fence_that_all_find(
    shared: SharedMemory, foreign: ForeignTable, foreign_act: tuple[Any, ...], beside: bool
) -> None:
    """Before the put, or in the slot that it was to take (R77)."""
    store = shared.open()
    log = opened(store)
    change = change_of(log)
    if beside:
        act = partial(foreign.append, *foreign_act)
        store.plan = FaultsAt({}, interlude=act, interlude_at=0)
    else:
        foreign.append(*foreign_act)
        log.refresh()
        with pytest.raises(TableConflictError, match="version 1"):
            log.check(change)
    found = log.publish(change, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert "version 1" in found.refused
    assert log.prove(found, change, decided(log))
    again = opened(shared.open()).publish(change, decided(log), is_still_decided=yes)
    assert again == AlreadyRefused(found.refused)
    assert foreign.txns() == [FENCE]
    assert not any("add" in action for action in foreign.commits()[2])
    later = change_of(opened(shared.open()))
    assert isinstance(log.publish(later, decided(log, 1), is_still_decided=yes), Published)


def test_change_is_refused_where_what_came_since_cannot_be_read(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Its commits were cleaned up, so nobody knows what they were (R77)."""
    store = shared.open()
    log = opened(store)
    change = change_of(log)
    foreign.append()
    foreign.append()
    write_checkpoint(store, 2, "json", actions_up_to(foreign, 2))
    store.delete([slot(0), slot(1)])
    found = opened(shared.open()).publish(change, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert found.refused == "commits since version 0 are gone from its log"


def test_fence_in_a_log_that_was_made_again_is_none(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """It is deleted; a table that was made again decides nothing (R77)."""
    store = shared.open()
    log = opened(store)
    change, transaction = change_of(log), decided(log)
    foreign.append()
    log.refresh()

    def make_again() -> None:
        drop(foreign)
        foreign.create("t-2")
        foreign.append()

    # The first call reads what came since.
    store.plan = FaultsAt({}, interlude=make_again, interlude_at=1)
    found = log.publish(change, transaction, is_still_decided=yes)
    assert isinstance(found, Published)
    assert found.refused
    assert not log.prove(found, change, transaction)
    assert foreign.txns() == []
    again = log.publish(change, transaction, is_still_decided=yes)
    assert again == TableReplaced("t-2")
