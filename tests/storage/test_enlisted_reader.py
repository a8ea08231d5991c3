"""Reading a log that others write: every form of checkpoint, unknown actions, hostile files."""

from __future__ import annotations

import os
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.storage.foreign_table import (
    PROTOCOL,
    ForeignTable,
    actions_up_to,
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
from txnlog.errors import CorruptLogError, UnknownTableError
from txnlog.protocol.enlisted.actions import DeletionVector
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import Published
from txnlog.storage.tables.enlisted_rows import read_table
from txnlog.testing.faults import SharedMemory

DAY_MS = 86_400_000


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


def test_rows_of_a_large_file_of_an_object_store_are_read_by_ranges() -> None:
    """Only the columns that are asked for, of each row group."""
    store = ObjectStore.from_url("memory://")
    table = ForeignTable(store)
    table.create()
    ids = pa.array(range(4_000))
    wide = pa.array([os.urandom(1_500) for _ in range(4_000)])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"wide": wide, "id": ids}), sink, row_group_size=1_000)
    data = sink.getvalue().to_pybytes()
    store.put("large.parquet", data)
    add = file("large.parquet")
    table.append({"add": {**add["add"], "size": len(data)}})
    log = opened(store)
    log.refresh_files()
    with patch.object(ObjectStore, "get", side_effect=AssertionError):
        found = read_table(log, columns=["id"], filter=pc.field("id") >= 3_998)
    assert found.to_pydict() == {"id": [3_998, 3_999]}
