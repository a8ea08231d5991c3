"""Publications in a log that others write, too: once, whatever fails and whoever commits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

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
from txnlog.errors import (
    CorruptLogError,
    StorageError,
    TableChangedError,
    TableFeatureError,
    UnknownTableError,
)
from txnlog.storage.tables.enlisted_log import (
    AlreadyPublished,
    EnlistedLog,
    PartFile,
    Published,
    TableReplaced,
)
from txnlog.storage.tables.enlisted_reader import TRUST_MS
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.rounds import RoundsStore

DAY_MS = 86_400_000
ERRORS = (Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.SAY_EXISTS, Fault.LAND_LATE)
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


def test_publication_follows_foreign_commits(shared: SharedMemory, foreign: ForeignTable) -> None:
    """Version by version, whoever wrote it."""
    log = opened(shared.open())
    foreign.append()
    found = log.publish(part_of(log), decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert found.version == 2
    assert log.prove(found, part_of(log), decided(log))
    foreign.append()
    log.refresh()
    assert log.state.version == 3
    assert foreign.paths() == ["foreign-1", "_txnlog/c/part-1.parquet", "foreign-3"]


def test_published_part_is_not_published_again(shared: SharedMemory, foreign: ForeignTable) -> None:
    """By any process, and of an older epoch neither."""
    log = opened(shared.open())
    part = part_of(log)
    log.publish(part, decided(log, 3), is_still_decided=yes)
    for each in (log, opened(shared.open())):
        for epoch in (2, 3):
            found = each.publish(part, decided(log, epoch), is_still_decided=yes)
            assert found == AlreadyPublished(1)
    assert len(foreign.paths()) == 1
    assert isinstance(log.publish(part, decided(log, 4), is_still_decided=yes), Published)


def test_helper_asks_whether_it_is_still_decided_after_the_head(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A paused helper would publish what was completed, and is forgotten, a second time."""
    log = opened(shared.open())
    shared.clock.advance_ms(TRUST_MS + 1)
    part = part_of(log)
    asked: list[int] = []

    def still() -> bool:
        asked.append(log.state.version)
        if len(asked) == 1:
            foreign.append()
        return len(asked) < 2

    assert log.publish(part, decided(log), is_still_decided=still) is None
    assert asked == [0, 1]
    assert foreign.txns() == []


def test_owner_puts_at_once_and_reads_after_a_conflict(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Its first put needs no round before it; what that round would show is then proved."""
    store = RoundsStore(shared)
    log = EnlistedLog(store, shared.clock.now_ms)
    log.refresh()
    store.rounds = 0
    found = log.publish(part_of(log), decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert store.rounds == 1
    foreign.append()
    store.rounds = 0
    later = decided(log, 1)
    again = log.publish(part_of(log), later, is_still_decided=yes)
    assert isinstance(again, Published)
    assert (again.version, store.rounds) == (3, 3)


def test_stale_state_settles_nothing(shared: SharedMemory, foreign: ForeignTable) -> None:
    """The owner's memory says that the part does not fit; meanwhile someone undid the change."""
    log = opened(shared.open())
    part = part_of(log)
    foreign.append(metadata(delta_constraints_c="id > 0"))
    log.refresh()
    foreign.append(metadata())
    found = log.publish(part, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)


@pytest.mark.parametrize("fault", [*ERRORS, *CRASHES])
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("number", range(8))
def test_one_fault_at_each_call_publishes_once(number: int, is_beside: bool, fault: Fault) -> None:
    """A process whose call fails, or which dies, and one that finishes: once, without a hole."""
    shared = SharedMemory()
    foreign = ForeignTable(shared.open())
    foreign.create()
    store = shared.open()
    log = opened(store)
    part, transaction = part_of(log), decided(log)
    interlude = foreign.append if is_beside else None
    store.plan = FaultsAt({number: fault}, interlude=interlude, interlude_at=number)
    with suppress(StorageError, SimulatedCrash):
        found = log.publish(part, transaction, is_still_decided=yes)
        if isinstance(found, Published):
            log.prove(found, part, transaction)
    for _ in range(2):
        shared.land_late()
        other = opened(shared.open())
        found = other.publish(part, transaction, is_still_decided=yes)
        if isinstance(found, Published):
            assert other.prove(found, part, transaction)
    assert foreign.paths().count("_txnlog/c/part-1.parquet") == 1
    assert foreign.txns() == [(transaction.app_id, 0)]


def test_other_writers_that_win_are_followed(shared: SharedMemory, foreign: ForeignTable) -> None:
    """A commit of others before each of ten attempts."""
    store = shared.open()
    log = opened(store)
    left = 10

    def plan(verb: str, path: str) -> Fault:
        nonlocal left
        if verb == "put" and left:
            left -= 1
            foreign.append()
        return Fault.NONE

    store.plan = plan
    found = log.publish(part_of(log), decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert found.version == 11
    assert len(foreign.paths()) == 11


# -- what others do between the decision and the publication ---------------------------------------


def test_incompatible_table_blocks_until_it_is_mended(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A decided part is never lost."""
    log = opened(shared.open())
    part = part_of(log)
    foreign.append(metadata(delta_constraints_c="id > 0"))
    with pytest.raises(TableChangedError, match=r"as of version 1: .*new rule: id > 0") as caught:
        log.publish(part, decided(log), is_still_decided=yes)
    assert caught.value.decided
    assert not caught.value.abortable
    foreign.append(metadata())
    assert isinstance(log.publish(part, decided(log), is_still_decided=yes), Published)


def test_table_made_again_settles_the_part(shared: SharedMemory, foreign: ForeignTable) -> None:
    """As if it had been published just before; the new table gets no row."""
    log = opened(shared.open())
    part = part_of(log)
    shared.clock.advance_ms(TRUST_MS + 1)
    drop(foreign)
    foreign.create("t-2")
    for each in (log, opened(shared.open())):
        found = each.publish(part, decided(log), is_still_decided=yes)
        assert found == TableReplaced("t-2")
    assert foreign.paths() == []


def drop(table: ForeignTable) -> None:
    table.store.delete([each.path for each in table.store.list("_delta_log")])


@pytest.mark.parametrize("commits", [1, 4, 9])
def test_longer_table_made_again_is_noticed(
    shared: SharedMemory, foreign: ForeignTable, commits: int
) -> None:
    """The slot after the head that was read belongs to another table: its head is read again."""
    for _ in range(3):
        foreign.append()
    log = opened(shared.open())
    part = part_of(log)
    shared.clock.advance_ms(TRUST_MS + 1)
    drop(foreign)
    foreign.create("t-2")
    for _ in range(commits):
        foreign.append()
    assert log.publish(part, decided(log), is_still_decided=yes) == TableReplaced("t-2")
    assert foreign.txns() == []


def test_table_made_again_in_the_midst_of_a_tail_is_noticed(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A process was stopped between two reads: commits of another table would follow the head."""
    store = shared.open()
    log = opened(store)
    waiting = [slot(1)]

    def plan(verb: str, path: str) -> Fault:
        if path in waiting:
            waiting.clear()
            drop(foreign)
            foreign.create("t-2")
            foreign.append()
        return Fault.NONE

    store.plan = plan
    log.refresh()
    assert log.state.definition.metadata.id == "t-2"


@pytest.mark.parametrize("commits", [1, 3])
def test_log_made_again_beside_the_put_is_no_publication(
    shared: SharedMemory, foreign: ForeignTable, commits: int
) -> None:
    """In a hole, or as the next version of another table, it is deleted again."""
    for _ in range(3):
        foreign.append()
    store = shared.open()
    log = opened(store)
    part, transaction = part_of(log), decided(log)

    def make_again() -> None:
        drop(foreign)
        foreign.create("t-2")
        for _ in range(commits):
            foreign.append()

    store.plan = FaultsAt({}, interlude=make_again, interlude_at=0)
    found = log.publish(part, transaction, is_still_decided=yes)
    assert isinstance(found, Published)
    assert not log.prove(found, part, transaction)
    assert len(foreign.commits()) == 1 + commits
    assert log.publish(part, transaction, is_still_decided=yes) == TableReplaced("t-2")


def test_clean_up_after_the_publication_keeps_it(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A table that was idle for a month, and whose log another writer cleans up at once."""
    foreign.append()
    store = shared.open()
    log = opened(store)
    part, transaction = part_of(log), decided(log)
    found = log.publish(part, transaction, is_still_decided=yes)
    assert isinstance(found, Published)
    write_checkpoint(store, 2, "json", actions_up_to(foreign, 2))
    store.delete([slot(0), slot(1)])
    assert log.prove(found, part, transaction)
    assert store.exists(slot(2))
    assert opened(shared.open()).state.txns == {transaction.app_id: 0}


# -- transactions that the table forgets -----------------------------------------------------------

KEPT = {"delta_setTransactionRetentionDuration": "interval 7 days"}
MONTH = {**KEPT, "delta_deletedFileRetentionDuration": "interval 30 days"}


def forgotten(
    shared: SharedMemory, configuration: dict[str, str], *, days: int, action: str
) -> tuple[ForeignTable, Callable[[], object]]:
    """A part that was decided some days ago; and its publication by a helper, now.

    It was published, and is still there ("add"), or removed ("remove"), or it was not ("").
    The table does not have its txn.
    """
    foreign = ForeignTable(shared.open())
    foreign.create(**configuration)
    log = opened(shared.open())
    part, transaction = part_of(log), decided(log)
    path = part.adds[0].path
    if action:
        foreign.append(file(path))
    if action == "remove":
        foreign.append({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}})
    shared.clock.advance_ms(days * DAY_MS)
    return foreign, partial(log.publish, part, transaction, is_still_decided=yes)


@pytest.mark.parametrize("action", ["add", "remove"])
def test_old_part_whose_txn_was_forgotten_is_found_by_its_file(
    shared: SharedMemory, action: str
) -> None:
    """Delta's checkpoints leave out old txns; published twice otherwise."""
    foreign, publish = forgotten(shared, MONTH, days=4, action=action)
    assert publish() == AlreadyPublished(len(foreign.commits()) - 1)
    assert foreign.txns() == []


@pytest.mark.parametrize(("days", "configuration"), [(4, KEPT), (30, MONTH), (300, {})])
def test_old_part_that_is_not_there_is_published(
    shared: SharedMemory, days: int, configuration: dict[str, str]
) -> None:
    """The table still has the tombstones of that time, or forgets no txn."""
    foreign, publish = forgotten(shared, configuration, days=days, action="")
    assert isinstance(publish(), Published)
    assert len(foreign.txns()) == 1


def test_retention_that_was_taken_away_after_the_decision(shared: SharedMemory) -> None:
    """With 0 the next checkpoint has no txn, but the path."""
    foreign, publish = forgotten(shared, {}, days=1, action="add")
    foreign.append(metadata(delta_setTransactionRetentionDuration="interval 0 seconds"))
    assert publish() == AlreadyPublished(2)


def test_part_older_than_tombstones_is_blocked(shared: SharedMemory) -> None:
    """Whether it was published cannot be told, so an operator decides."""
    foreign, publish = forgotten(shared, KEPT, days=8, action="")
    with pytest.raises(TableChangedError, match="may have forgotten whether it is published"):
        publish()
    assert foreign.txns() == []


def test_owner_paused_before_it_lists_what_an_overwrite_removes_asks_again(
    shared: SharedMemory, foreign: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper has published it since, and the table has forgotten that: what was written since
    would be removed (R74).
    """
    log = opened(shared.open())
    part, transaction = part_of(log, mode="overwrite"), decided(log)
    read = log._open

    def paused(*, files: bool) -> None:
        shared.clock.advance_ms(30 * DAY_MS)
        read(files=files)

    monkeypatch.setattr(log, "_open", paused)
    foreign.append()
    assert log.publish(part, transaction, is_still_decided=lambda: False) is None
    assert foreign.paths() == ["foreign-1"]


# -- before the decision ---------------------------------------------------------------------------


def test_check_refuses_what_could_not_be_published(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Nothing is decided, and nothing was written: all of these are abortable."""
    log = opened(shared.open())
    part = part_of(log)
    log.check(part)
    foreign.append(metadata(delta_constraints_c="id > 0"))
    log.refresh()
    with pytest.raises(TableChangedError, match="Nothing was written. Stage it again") as caught:
        log.check(part)
    assert caught.value.abortable
    foreign.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 9}})
    log.refresh()
    with pytest.raises(TableFeatureError, match="writer version 9"):
        log.check(part)
    drop(foreign)
    foreign.create("t-2")
    log.refresh()
    with pytest.raises(UnknownTableError, match="was dropped and made again") as gone:
        log.check(part)
    assert gone.value.abortable


def test_overwrite_removes_what_others_added_since(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """What is live at the publication, also after a conflict."""
    foreign.append(file("old"))
    store = shared.open()
    log = opened(store)
    part = part_of(log, mode="overwrite")
    foreign.append({"remove": {"path": "old"}}, file("compacted"))
    puts: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and not puts:
            puts.append(path)
            foreign.append(file("late"))
        return Fault.NONE

    store.plan = plan
    found = log.publish(part, decided(log), is_still_decided=yes)
    assert isinstance(found, Published)
    assert foreign.paths() == ["_txnlog/c/part-1.parquet"]


def test_part_file_is_kept_and_checked(shared: SharedMemory, foreign: ForeignTable) -> None:
    """A helper publishes what was decided, or nothing."""
    log = opened(shared.open())
    part = part_of(log)
    found = log.put_part(part, cluster_id="c")
    other = opened(shared.open())
    assert other.read_part(found) == part
    with pytest.raises(CorruptLogError, match=r"_txnlog/c/.*json: .*not the one that was decided"):
        other.read_part(PartFile(found.path, found.size_bytes, "0" * 32))
