"""What decides a transaction in a log that others write, too: the change, or a fence, once."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.storage.foreign_table import (
    ForeignTable,
    actions_up_to,
    decided,
    file,
    metadata,
    opened,
    part_of,
    slot,
    write_checkpoint,
    yes,
)
from tests.storage.test_enlisted_log import MONTH, drop
from txnlog.errors import TableChangedError, TableConflictError
from txnlog.protocol.enlisted.actions import ChangesFile, DeletionVector
from txnlog.protocol.enlisted.features import DAY_MS
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
    change = Operation(operation="MERGE")
    return replace(part_of(log), mode="merge", change=change, read_digest=log.state.digest)


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


def test_change_is_found_in_a_table_that_was_replaced_after_it(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """CREATE OR REPLACE in the same log: what was decided stays so, for the new table may be made
    of it (R77).
    """
    log = opened(shared.open())
    change, transaction = change_of(log), decided(log)
    assert isinstance(log.publish(change, transaction, is_still_decided=yes), Published)
    foreign.append(metadata("t-2"))
    again = opened(shared.open()).publish(change, transaction, is_still_decided=yes)
    assert again == AlreadyPublished(2)


def test_old_change_whose_txn_was_forgotten_is_found_by_its_deletion_vector(
    shared: SharedMemory,
) -> None:
    """It has no other new file; else its own commit would refuse it (R77)."""
    foreign = ForeignTable(shared.open())
    foreign.create(**MONTH)
    foreign.append(file("a"))
    log = opened(shared.open())
    log.refresh_files()
    vector = DeletionVector(
        storage_type="u", path_or_inline_dv=f"_txnlog/c{'0' * 20}", size_in_bytes=1, cardinality=1
    )
    live = (log.state.files or {})["a"]
    change = replace(
        change_of(log),
        removes=(live,),
        adds=(replace(part_of(log).adds[0], path="a", deletion_vector=vector),),
    )
    transaction = decided(log)
    assert isinstance(log.publish(change, transaction, is_still_decided=yes), Published)
    actions = [action for action in foreign.commits()[-1] if "txn" not in action]
    shared.open().put(slot(2), "\n".join(map(json.dumps, actions)).encode())
    shared.clock.advance_ms(8 * DAY_MS)
    again = opened(shared.open()).publish(change, transaction, is_still_decided=yes)
    assert again == AlreadyPublished(2)


def test_old_change_without_a_file_that_the_table_would_have_waits(shared: SharedMemory) -> None:
    """Whether it was decided cannot be told, if there is no fence: it only removes files (R77)."""
    foreign = ForeignTable(shared.open())
    foreign.create(**MONTH)
    log = opened(shared.open())
    cdc = ChangesFile(path="_txnlog/c/x", partition_values={}, size=1, data_change=False)
    change = replace(change_of(log), adds=(), cdc=(cdc,))
    transaction = decided(log)
    shared.clock.advance_ms(8 * DAY_MS)
    with pytest.raises(TableChangedError, match="cannot decide .*'txnlog/c/7/fence'"):
        opened(shared.open()).publish(change, transaction, is_still_decided=yes)
    foreign.append({"txn": {"appId": FENCE[0], "version": FENCE[1]}})
    again = opened(shared.open()).publish(change, transaction, is_still_decided=yes)
    assert isinstance(again, AlreadyRefused)


def test_table_that_needs_an_unknown_feature_gets_no_fence(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Nobody may commit to it who does not know the feature: the change waits (R77)."""
    log = opened(shared.open())
    change, transaction = change_of(log), decided(log)
    features = {"readerFeatures": [], "writerFeatures": ["catalogManaged"]}
    foreign.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    with pytest.raises(TableChangedError, match="'catalogManaged', which txnlog does not know"):
        log.publish(change, transaction, is_still_decided=yes)
    assert foreign.txns() == []
    foreign.append({"txn": {"appId": FENCE[0], "version": FENCE[1]}})
    assert isinstance(log.publish(change, transaction, is_still_decided=yes), AlreadyRefused)


def test_change_is_refused_where_what_came_since_is_garbled(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Others read it, perhaps; nothing is decided by then (R77)."""
    log = opened(shared.open())
    change = change_of(log)
    foreign.append({"add": {"path": "a"}})
    found = log.publish(change, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert "a version after 0 cannot be understood" in found.refused


@pytest.mark.parametrize("more", [0, 1])
def test_change_is_refused_where_what_was_read_is_another_version_now(
    shared: SharedMemory, foreign: ForeignTable, more: int
) -> None:
    """The table was restored from a backup, and has gone on from there (R77)."""
    foreign.append(file("read"))
    log = opened(shared.open())
    change = log.read_part(log.put_part(change_of(log), cluster_id="c"))
    shared.open().delete([slot(1)])
    for _ in range(1 + more):
        foreign.append({"add": {**file("other")["add"], "dataChange": False}})
    found = opened(shared.open()).publish(change, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert found.refused == "version 1 is another one than was read"


def test_conflict_is_found_without_reading_all_that_came_since(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A busy table, and a change that was asked for days ago, are more than memory holds (R77)."""
    change = change_of(opened(shared.open()))
    for version in range(1, 251):
        foreign.put(version, file(f"foreign-{version}"))
    log = opened(store := shared.open())
    store.calls.clear()
    assert "version 1 " in log.conflict(change)
    assert len(store.calls) <= 100
    assert log.conflict(replace(change, partitions=())) == ""
