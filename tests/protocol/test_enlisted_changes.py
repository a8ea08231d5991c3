"""A change of what a table holds: the commit of its clone, adopted; what is in conflict with it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.protocol.enlisted_tables import column, definition, state_of
from txnlog.errors import CorruptLogError, TableDataError
from txnlog.protocol.enlisted.actions import (
    Definition,
    DeletionVector,
    LiveFile,
    TableState,
    decode_actions,
    encode_actions,
)
from txnlog.protocol.enlisted.conflicts import conflict
from txnlog.protocol.enlisted.parts import (
    Decided,
    Part,
    app_id_of,
    decode_part,
    encode_part,
    new_part,
    publication,
)
from txnlog.protocol.enlisted.staging_tables import adopted_change, cloned, first_commit

DECIDED = Decided(app_id=app_id_of("c-1", 7), epoch=3, decided_ms=900)
BASE = "file:/lake/a%20b"
FOLDER = "_txnlog/c-1/" + "0" * 32
ROWS = ("rowTracking", "domainMetadata")
VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"
"""Of the Delta protocol: folder ab, d2c639aa-8816-431a-aaf6-d3fe2512ff61."""
VECTOR_FILE = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def vector(text: str = VECTOR, kind: str = "u") -> dict[str, Any]:
    return {
        "storageType": kind,
        "pathOrInlineDv": text,
        "sizeInBytes": 34,
        "cardinality": 1,
        "offset": 1,
    }


def live(path: str, *, dv: str = "", **values: str) -> LiveFile:
    return LiveFile(
        path=path,
        partition_values={name: text or None for name, text in values.items()},
        size=9,
        tags={"T": "1"},
        deletion_vector=msgspec.convert(vector(dv), DeletionVector) if dv else None,
        base_row_id=5,
        default_row_commit_version=2,
        stats='{"numRecords":3}',
    )


def state_with(table: Definition, *files: LiveFile) -> TableState:
    return state_of(table, files={file.path: file for file in files})


def added(path: str, *, change: bool = True, **rest: Any) -> Any:
    """An add of an engine."""
    values = rest.pop("partitionValues", {})
    return {
        "add": {
            "path": path,
            "partitionValues": values,
            "size": 20,
            "modificationTime": 1,
            "dataChange": change,
            "stats": '{"numRecords":2}',
            **rest,
        }
    }


def removed(path: str, *, change: bool = True, **rest: Any) -> Any:
    return {"remove": {"path": path, "dataChange": change, "deletionTimestamp": 1, **rest}}


CDC = {"cdc": {"path": "_change_data/cdc-1", "partitionValues": {}, "size": 3, "dataChange": False}}


def commit(*actions: Any, operation: str = "MERGE", **info: Any) -> bytes:
    first = {"commitInfo": {"operation": operation, **info}}
    return "\n".join(json.dumps(each) for each in (first, *actions)).encode()


def change(state: TableState, *commits: bytes, partitions: Any = None) -> Part:
    found = adopted_change(state, commits, FOLDER, base=BASE, partitions=partitions)
    assert found is not None
    # Another process has the part file only.
    return decode_part(encode_part(found), source="x")


def lines(part: Part, state: TableState) -> list[Any]:
    actions = publication(part, state, DECIDED, write_id="w", engine="txnlog/x", now_ms=1000)
    return [json.loads(line) for line in encode_actions(actions).splitlines()]


def test_clone_has_the_live_files_with_absolute_paths() -> None:
    table = definition(
        column("id"),
        column("p", "string"),
        partitions=("p",),
        features=("clustering",),
        domains={"delta.rowTracking": "{}", "delta.clustering": "[]", "user": "x"},
        delta_enableInCommitTimestamps="true",
    )
    files = [live("p=a%2520b/1.parquet", dv=VECTOR, p="a b"), live("2.parquet", p="c")]
    state = state_with(table, *files)
    part = new_part(state, [], mode="overwrite", partitions=[{"p": "a b"}])
    data = first_commit(table, "new", cloned(part, state, base=BASE))
    protocol, metadata, *domains, file = map(json.loads, data.splitlines())
    assert protocol["protocol"]["writerFeatures"] == ["clustering"]
    assert metadata["metaData"]["id"] == "new"
    assert metadata["metaData"]["configuration"] == {}
    assert [each["domainMetadata"]["domain"] for each in domains] == [
        "delta.clustering",
        "delta.rowTracking",
    ]
    assert file["add"] == {
        "path": f"{BASE}/p=a%2520b/1.parquet",
        "partitionValues": {"p": "a b"},
        "size": 9,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":3}',
        "tags": {"T": "1"},
        "deletionVector": vector(f"{BASE}/ab/{VECTOR_FILE}", "p"),
        "baseRowId": 5,
        "defaultRowCommitVersion": 2,
    }


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (live("s3://other/1.parquet"), "not in the table's folder"),
        (replace(live("1"), stats=None), "no statistics of '1'"),
        (
            replace(
                live("1"), deletion_vector=msgspec.convert(vector("file:/x", "p"), DeletionVector)
            ),
            "not in the table's folder",
        ),
    ],
)
def test_file_that_cannot_be_cloned_is_refused(file: LiveFile, why: str) -> None:
    state = state_with(definition(column("id")), file)
    part = new_part(state, [], mode="overwrite")
    with pytest.raises(ValueError, match=why):
        list(cloned(part, state, base=BASE))


def test_merge_is_the_golden_commit() -> None:
    """Of a file rewritten, one with rows deleted, rows inserted, and a change data feed."""
    table = definition(
        column("id"), features=ROWS, domains={"delta.rowTracking": '{"rowIdHighWaterMark":41}'}
    )
    state = state_with(table, live("old.parquet"), live("cut.parquet", dv=VECTOR), live("read"))
    info = {
        "operationParameters": {"predicate": '["(id#1 = id#2)"]'},
        "operationMetrics": {"numTargetRowsInserted": "2"},
        "tags": {"delta.rowTracking.preserved": "true"},
    }
    staged = commit(
        removed(f"{BASE}/old.parquet"),
        removed("file:///lake/a b/cut.parquet", deletionVector=vector("file:/x", "p")),
        added("part-1", baseRowId=42, defaultRowCommitVersion=1, tags={"mine": "1"}),
        added(f"{BASE}/cut.parquet", deletionVector=vector("xy" + VECTOR[2:])),
        CDC,
        **info,
    )
    part = change(state, staged)
    first, txn, domain, *rest = lines(part, state)
    assert first["commitInfo"] == {
        "txnlogWriteId": "w",
        "timestamp": 1000,
        "operation": "MERGE",
        "isBlindAppend": False,
        "engineInfo": "txnlog/x",
        "txnId": "w",
        "readVersion": 4,
        **info,
    }
    assert txn == {"txn": {"appId": "txnlog/c-1/7", "version": 3, "lastUpdated": 1000}}
    assert domain["domainMetadata"]["configuration"] == '{"rowIdHighWaterMark":43}'
    known = {
        "partitionValues": {},
        "size": 9,
        "tags": {"T": "1"},
        "baseRowId": 5,
        "defaultRowCommitVersion": 2,
    }
    gone = {
        **known,
        "deletionTimestamp": 1000,
        "dataChange": True,
        "extendedFileMetadata": True,
    }
    assert rest == [
        {"remove": {"path": "old.parquet", **gone}},
        {"remove": {"path": "cut.parquet", **gone, "deletionVector": vector()}},
        {"cdc": {**CDC["cdc"], "path": f"{FOLDER}/_change_data/cdc-1"}},
        {
            **added(f"{FOLDER}/part-1", baseRowId=42, defaultRowCommitVersion=5),
        },
        {
            "add": {
                **added("cut.parquet")["add"],
                **known,
                "size": 20,
                "deletionVector": vector(f"{FOLDER}/xy{VECTOR[2:]}"),
            }
        },
    ]
    assert (part.num_records, len(part.new_adds), part.is_visible) == (2, 1, False)
    assert part.file_names == {"part-1", "cdc-1"}
    # D54: it is read back as it was written.
    state.removed = set()
    state.apply(
        5, decode_actions("\n".join(map(json.dumps, lines(part, state))).encode(), files=True)
    )
    assert sorted(state.files or ()) == sorted([f"{FOLDER}/part-1", "cut.parquet", "read"])
    assert state.removed == {"old.parquet", "cut.parquet", VECTOR_FILE}


def test_vector_without_a_folder_is_adopted() -> None:
    state = state_with(definition(column("id")), live("1"))
    staged = commit(removed(f"{BASE}/1"), added(f"{BASE}/1", deletionVector=vector(VECTOR[2:])))
    (file,) = change(state, staged).adds
    assert file.deletion_vector is not None
    assert file.deletion_vector.path == f"{FOLDER}/{VECTOR_FILE}"


def test_staged_vector_is_a_file_of_the_part() -> None:
    """Vacuum must not delete it before the decision."""
    state = state_with(definition(column("id")), live("1", dv=VECTOR))
    # Five zeros are four bytes of zeros.
    staged = commit(
        removed(f"{BASE}/1"), added(f"{BASE}/1", deletionVector=vector("xy" + "0" * 20))
    )
    assert change(state, staged).file_names == {f"deletion_vector_{uuid.UUID(int=0)}.bin"}


def test_what_the_engine_compacts_afterwards_is_not_adopted() -> None:
    state = state_with(definition(column("id")), live("1"))
    part = change(
        state,
        commit(removed(f"{BASE}/1"), added("2")),
        commit(removed("2", change=False), added("3", change=False), operation="OPTIMIZE"),
    )
    assert [each.path for each in part.adds] == [f"{FOLDER}/2"]


REFUSED = {
    "two": (
        [commit(added("2")), commit(added("3"), operation="WRITE")],
        "these are several: MERGE, WRITE",
    ),
    "optimize first": (
        [commit(added("2", change=False), operation="OPTIMIZE"), commit(added("3"))],
        "these are several: OPTIMIZE, MERGE",
    ),
    "schema": ([commit({"metaData": {}}, added("2"))], "autoMerge"),
    "file of another table": ([commit(removed("file:/x"), added("2"))], "'file:/x' is none of"),
    "added without a removal": ([commit(added(f"{BASE}/1"))], "not in the table's folder"),
    "outer vector": (
        [commit(removed(f"{BASE}/1"), added(f"{BASE}/1", deletionVector=vector("file:/x", "p")))],
        "'file:/x' is not in the table's folder",
    ),
    "no statistics": ([commit({"add": {**added("2")["add"], "stats": None}})], "stats.collect"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_commits_of_a_clone_are_refused(case: str) -> None:
    commits, why = REFUSED[case]
    state = state_with(definition(column("id")), live("1"))
    with pytest.raises(ValueError, match=why):
        change(state, *commits)


def test_nothing_changed_is_no_part() -> None:
    state = state_with(definition(column("id")), live("1"))
    for commits in ([], [commit()], [commit(added("2", change=False))]):
        assert adopted_change(state, commits, FOLDER, base=BASE, partitions=None) is None


def test_rows_outside_of_the_partitions_are_refused() -> None:
    table = definition(column("id"), column("p", "string"), partitions=("p",))
    state = state_with(table, live("1", p="a"))
    staged = commit(added("2", partitionValues={"p": "b"}))
    with pytest.raises(TableDataError, match="in no partition to merge"):
        change(state, staged, partitions=[{"p": "a"}])


@pytest.mark.parametrize(
    ("old", "new"), [('"merge"', '"append"'), ('"remove":{"path":"1"', '"remove":{"path":"../1"')]
)
def test_damaged_part_file_is_named(old: str, new: str) -> None:
    state = state_with(definition(column("id")), live("1"))
    data = encode_part(change(state, commit(removed(f"{BASE}/1"), added("2")))).decode()
    assert old in data
    with pytest.raises(CorruptLogError, match="this file of a decided"):
        decode_part(data.replace(old, new).encode(), source="x")


# -- conflicts -----------------------------------------------------------------------------------

MONDAY, TUESDAY = {"p": "mon"}, {"p": "tue"}
BLIND = {"isBlindAppend": True, "operation": "WRITE"}
ROWS_CHANGED = "changed rows of what was read"
FILE_CHANGED = "changed the file 1%20"
SCHEMA = "changed the schema"


def other(path: str = "x", values: Any = MONDAY, *, change: bool = True, **rest: Any) -> Any:
    return added(path, change=change, partitionValues=values, **rest)


CONFLICTS: dict[str, tuple[bytes, str | None, str | None, str | None]] = {
    # Commit, and why it is in conflict with a merge: of the table, of monday, WriteSerializable.
    "nothing": (commit(operation="WRITE"), None, None, None),
    "txn": (commit({"txn": {"appId": "a", "version": 1}}), None, None, None),
    "metaData": (commit({"metaData": {}}), SCHEMA, SCHEMA, SCHEMA),
    "protocol": (commit({"protocol": {}}), SCHEMA, SCHEMA, SCHEMA),
    "append": (commit(other(), operation="WRITE"), ROWS_CHANGED, ROWS_CHANGED, ROWS_CHANGED),
    "blind append": (commit(other(), **BLIND), ROWS_CHANGED, ROWS_CHANGED, None),
    "append elsewhere": (commit(other(values=TUESDAY)), ROWS_CHANGED, None, ROWS_CHANGED),
    "compaction of others": (
        commit(other(change=False), removed("2", change=False, partitionValues=MONDAY)),
        None,
        None,
        None,
    ),
    "compaction of ours": (
        commit(other(change=False), removed("1%20", change=False, partitionValues=MONDAY)),
        FILE_CHANGED,
        FILE_CHANGED,
        FILE_CHANGED,
    ),
    "deletion of a file read": (
        commit(removed("2", partitionValues=MONDAY)),
        ROWS_CHANGED,
        ROWS_CHANGED,
        ROWS_CHANGED,
    ),
    "deletion elsewhere": (
        commit(removed("3", partitionValues=TUESDAY)),
        ROWS_CHANGED,
        None,
        ROWS_CHANGED,
    ),
    "deletion somewhere": (commit(removed("3")), ROWS_CHANGED, ROWS_CHANGED, ROWS_CHANGED),
    "the same file": (
        commit(removed("1 ", partitionValues=MONDAY)),
        "changed the file 1 ",
        "changed the file 1 ",
        "changed the file 1 ",
    ),
    "vector of a file of ours": (
        commit(removed("1%20", partitionValues=MONDAY), other("1%20", deletionVector=vector())),
        FILE_CHANGED,
        FILE_CHANGED,
        FILE_CHANGED,
    ),
    "vector of another file": (
        commit(removed("2", partitionValues=MONDAY), other("2", deletionVector=vector())),
        ROWS_CHANGED,
        ROWS_CHANGED,
        ROWS_CHANGED,
    ),
    "row ids for a file of ours": (
        commit(other("1%20", change=False, baseRowId=7)),
        FILE_CHANGED,
        FILE_CHANGED,
        FILE_CHANGED,
    ),
    "no statistics": (
        commit({"add": {"path": "x", "partitionValues": TUESDAY, "size": 1}}),
        ROWS_CHANGED,
        None,
        ROWS_CHANGED,
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_commits_since_the_read_are_in_conflict(name: str) -> None:
    """By the rules of Delta's ConflictChecker, but for compaction of what was only read (R78)."""
    other_commit, *wanted = CONFLICTS[name]
    for partitions, isolation, why in (
        (None, "Serializable", wanted[0]),
        ([MONDAY], "Serializable", wanted[1]),
        (None, "WriteSerializable", wanted[2]),
    ):
        table = definition(
            column("id"), column("p", "string"), partitions=("p",), delta_isolationLevel=isolation
        )
        state = state_with(table, live("1%20", p="mon"), live("2", p="mon"), live("3", p="tue"))
        part = change(state, commit(removed(f"{BASE}/1 "), other("new")), partitions=partitions)
        quiet = commit(operation="OPTIMIZE")
        assert conflict(part, []) is conflict(part, [quiet, quiet]) is None
        found = conflict(part, [quiet, other_commit])
        if why is None:
            assert found is None
        else:
            assert found is not None
            assert why in found
            assert found.startswith("version 6 (")
