"""Publications in a log that others write, too: once, whatever fails and whoever commits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.storage.foreign_table import (
    PROTOCOL,
    ForeignTable,
    decided,
    file,
    lines,
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
from txnlog.protocol.enlisted.actions import DeletionVector
from txnlog.storage.tables.enlisted_log import (
    AlreadyPublished,
    EnlistedLog,
    PartFile,
    Published,
    TableReplaced,
)
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.rounds import RoundsStore

DAY_MS = 86_400_000
ERRORS = (Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.SAY_EXISTS, Fault.LAND_LATE)
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


@pytest.fixture
def shared() -> SharedMemory:
    return SharedMemory()


@pytest.fixture
def foreign(shared: SharedMemory) -> ForeignTable:
    table = ForeignTable(shared.open())
    table.create()
    return table


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
    found = log.publish(part_of(log), decided(log), is_still_decided=yes, is_head_read=True)
    assert isinstance(found, Published)
    assert store.rounds == 1
    foreign.append()
    store.rounds = 0
    later = decided(log, 1)
    again = log.publish(part_of(log), later, is_still_decided=yes, is_head_read=True)
    assert isinstance(again, Published)
    assert (again.version, store.rounds) == (3, 3)


def test_stale_state_settles_nothing(shared: SharedMemory, foreign: ForeignTable) -> None:
    """The owner's memory says that the part does not fit; meanwhile someone undid the change."""
    log = opened(shared.open())
    part = part_of(log)
    foreign.append(metadata(delta_constraints_c="id > 0"))
    log.refresh()
    foreign.append(metadata())
    found = log.publish(part, decided(log), is_still_decided=yes, is_head_read=True)
    assert isinstance(found, Published)


@pytest.mark.parametrize("fault", [*ERRORS, *CRASHES])
@pytest.mark.parametrize("is_head_read", [False, True])
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("number", range(8))
def test_one_fault_at_each_call_publishes_once(
    number: int, is_beside: bool, is_head_read: bool, fault: Fault
) -> None:
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
        found = log.publish(part, transaction, is_still_decided=yes, is_head_read=is_head_read)
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
    drop(foreign)
    foreign.create("t-2")
    for _ in range(commits):
        foreign.append()
    assert log.publish(part, decided(log), is_still_decided=yes) == TableReplaced("t-2")
    assert foreign.txns() == []


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
    found = log.publish(part, transaction, is_still_decided=yes, is_head_read=True)
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


def actions_up_to(table: ForeignTable, version: int) -> list[Any]:
    return [action for commit in table.commits()[: version + 1] for action in commit[1:]]


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


# -- what other tools, or nobody, wrote ------------------------------------------------------------


def test_no_table_is_named(shared: SharedMemory) -> None:
    with pytest.raises(UnknownTableError, match="memory://: there is no Delta table"):
        opened(shared.open())


HOSTILE = {
    "broken JSON": b'{"add":',
    "empty": b"",
    "not UTF-8": b'{"txn":"\xff"}',
    "deep": b"[" * 50_000,
    "many lines": b"{}\n" * 50_000,
    "list": b"[1]",
    "huge version": lines({"txn": {"appId": "a", "version": 2**70}}),
    "text for a number": lines({"txn": {"appId": "a", "version": "7"}}),
    "no appId": lines({"txn": {"version": 7}}),
    "protocol": lines({"protocol": {"minReaderVersion": -1, "minWriterVersion": 2}}),
    "fraction": lines({"protocol": {"minReaderVersion": 1.5, "minWriterVersion": 2}}),
    "configuration": lines({"metaData": {**metadata()["metaData"], "configuration": [1]}}),
    "schema": lines({"metaData": {**metadata()["metaData"], "schemaString": "{}"}}),
    "schema of other type": lines({"metaData": {**metadata()["metaData"], "schemaString": 7}}),
    "partition column": lines({"metaData": {**metadata()["metaData"], "partitionColumns": ["x"]}}),
    "timestamp": lines({"commitInfo": {"inCommitTimestamp": "yesterday"}}),
    "domain": lines({"domainMetadata": {"domain": "d", "configuration": {}}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_commit_is_named_with_url_and_version(
    shared: SharedMemory, foreign: ForeignTable, name: str
) -> None:
    """By a process that follows the log, and one that opens it; nothing is published after it."""
    log = opened(shared.open())
    part = part_of(log)
    foreign.store.put(slot(1), HOSTILE[name])
    for attempt in (log.refresh, log.refresh, lambda: opened(shared.open())):
        with pytest.raises(CorruptLogError, match=r"memory://: version 1 of the log") as caught:
            attempt()
        assert caught.value.abortable
        assert not caught.value.fatal
    with pytest.raises(CorruptLogError):
        log.publish(part, decided(log), is_still_decided=yes)
    assert not foreign.store.exists(slot(2))
    foreign.store.put(slot(1), lines(file("mended")))
    assert isinstance(log.publish(part, decided(log), is_still_decided=yes), Published)


@pytest.mark.parametrize("text", ["{}", "[", '{"rowIdHighWaterMark":1e99}'])
def test_hostile_row_ids_are_named(shared: SharedMemory, text: str) -> None:
    """They cannot be continued: the part waits."""
    foreign = ForeignTable(shared.open())
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    domain = {"domain": "delta.rowTracking", "configuration": text, "removed": False}
    foreign.put(0, {"protocol": protocol}, metadata(), {"domainMetadata": domain})
    log = opened(shared.open())
    with pytest.raises(CorruptLogError, match="memory://: version 0 of the log"):
        log.publish(part_of(log), decided(log), is_still_decided=yes)


def test_unknown_actions_and_fields_are_skipped(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """A checksum, a cdc file, what a later Delta writes."""
    later = {"txn": {"appId": "a", "version": 7, "lastUpdated": None, "newer": {"x": [1]}}}
    foreign.append({"cdc": {"path": "x"}}, {"somethingNew": 1}, later)
    foreign.store.put("_delta_log/00000000000000000001.crc", b"{}")
    foreign.store.put("_delta_log/00000000000000000000.00000000000000000001.compacted.json", b"{")
    assert opened(shared.open()).state.txns == {"a": 7}


def test_commit_of_a_far_version_is_damage(shared: SharedMemory, foreign: ForeignTable) -> None:
    """One stray file must not take the memory of a range of versions."""
    foreign.store.put(slot(2**62), lines())
    with pytest.raises(CorruptLogError, match=f"version {2**62} .*many commits"):
        opened(shared.open())


@pytest.mark.parametrize("version", [0, 2])
def test_missing_commit_is_named(shared: SharedMemory, foreign: ForeignTable, version: int) -> None:
    for _ in range(4):
        foreign.append()
    foreign.store.delete([slot(version)])
    with pytest.raises(CorruptLogError, match=f"version {version} .*is missing|it is missing"):
        opened(shared.open())


@pytest.mark.parametrize("form", ["classic", "parts", "parquet", "json"])
def test_checkpoint_of_each_form_is_read(shared: SharedMemory, form: str) -> None:
    """The commits before it are cleaned up; the hint names it, or an older one."""
    foreign = ForeignTable(shared.open())
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "sizeInBytes": 3, "cardinality": 1}
    changed = {"add": {**file("b")["add"], "deletionVector": {**vector, "offset": 7}}}
    domain = {"domain": "d", "configuration": "{}", "removed": False}
    actions = [
        PROTOCOL,
        {"txn": {"appId": "x", "version": 5}},
        file("a"),
        metadata(delta_constraints_c="id > 0"),
        {"domainMetadata": domain},
        {"remove": {"path": "gone/c", "deletionTimestamp": 1}},
        changed,
    ]
    write_checkpoint(foreign.store, 7, form, actions)
    foreign.put(7, *actions)
    foreign.put(8, {"remove": {"path": "a"}}, {"txn": {"appId": "y", "version": 6}})
    for hint in (b'{"version":7}', b'{"version":3}', b'{"version":70}', b"{"):
        foreign.store.put("_delta_log/_last_checkpoint", hint)
        log = opened(shared.open())
        assert log.state.txns == {"x": 5, "y": 6}
        assert log.state.domains == {"d": "{}"}
        assert log.state.definition.metadata.get("delta.constraints.c") == "id > 0"
        assert log.state.files is None
        log.refresh_files()
        assert log.state.files is not None
        assert list(log.state.files) == ["b"]
        assert log.state.files["b"].deletion_vector == DeletionVector(
            storage_type="u", path_or_inline_dv="ab", size_in_bytes=3, cardinality=1, offset=7
        )
        assert log.state.removed == {"c", "a"}
    foreign.put(9, file("foreign-9"))
    log.refresh()
    assert list(log.state.files) == ["b", "foreign-9"]


def test_damaged_checkpoint_is_skipped_for_the_one_before(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """And without any, the log is read from its first commit."""
    for number in range(6):
        foreign.append({"txn": {"appId": "a", "version": number}})
    store = foreign.store
    store.put("_delta_log/00000000000000000004.checkpoint.parquet", b"PAR1, not really PAR1")
    store.put("_delta_log/_last_checkpoint", b'{"version":4,"size":1}')
    assert opened(shared.open()).state.txns == {"a": 5}
    store.put("_delta_log/_last_checkpoint", b'{"version":"x"}')
    assert opened(shared.open()).state.txns == {"a": 5}


def test_incomplete_checkpoint_of_several_files_is_none(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    foreign.append()
    foreign.store.put(
        "_delta_log/00000000000000000001.checkpoint.0000000001.0000000002.parquet", b""
    )
    assert opened(shared.open()).state.version == 1


def test_state_that_was_read_long_ago_is_read_again(
    shared: SharedMemory, foreign: ForeignTable
) -> None:
    """Clean-up of others may have freed the slot that follows (D3)."""
    log = opened(shared.open())
    foreign.append()
    write_checkpoint(foreign.store, 1, "json", actions_up_to(foreign, 1))
    foreign.store.delete([slot(0), slot(1)])
    shared.clock.advance_ms(40 * DAY_MS)
    log.refresh()
    assert log.state.version == 1
