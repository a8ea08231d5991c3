"""Staging tables: their first commit, and which files of the later ones become those of a part."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.protocol.enlisted_tables import column, definition
from txnlog.protocol.enlisted.actions import AddFile
from txnlog.protocol.enlisted.staging_tables import adopted, first_commit

APPEND = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}
INSERT_REPLACE = {
    "operation": "WRITE",
    "operationParameters": {"mode": "Overwrite", "predicate": "[]"},
}


def commit(*actions: dict[str, Any], info: Any = APPEND) -> bytes:
    return "\n".join(map(json.dumps, [{"commitInfo": info}, *actions])).encode()


def added(path: str, *, change: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": 7,
            "modificationTime": 1,
            "dataChange": change,
            "stats": '{"numRecords":2}',
            **more,
        }
    }


def paths(*commits: bytes) -> list[str]:
    return [add.path for add in adopted(commits, "_txnlog/c/t")]


def test_staging_table_is_the_enlisted_one_without_what_concerns_its_log() -> None:
    """With in-commit timestamps version 0 would need one; another id, as it is another table."""
    found = definition(
        column("id"),
        features=("inCommitTimestamp", "clustering", "domainMetadata", "rowTracking"),
        domains={"delta.clustering": "{}", "delta.rowTracking": '{"rowIdHighWaterMark":9}'},
        delta_enableInCommitTimestamps="true",
        delta_inCommitTimestampEnablementVersion="7",
        delta_constraints_small="id < 5",
    )
    lines = [json.loads(line) for line in first_commit(found, "new").splitlines()]
    protocol, metadata, domain, rows = (next(iter(line.values())) for line in lines)
    assert protocol["writerFeatures"] == list(found.protocol.writer_features or ())
    assert metadata["id"] == "new"
    assert metadata["schemaString"] == found.metadata.schema_string
    assert metadata["configuration"] == {"delta.constraints.small": "id < 5"}
    assert domain == {"domain": "delta.clustering", "configuration": "{}"}
    assert rows["configuration"] == found.domains["delta.rowTracking"]


def test_appended_files_are_those_of_the_part() -> None:
    """Where they are; row ids and tags are the enlisted table's to give."""
    ids = {"baseRowId": 0, "defaultRowCommitVersion": 1, "tags": {"a": "b"}}
    (found,) = adopted([commit(added("day=1/a.parquet", **ids))], "_txnlog/c/t")
    assert found == AddFile(
        path="_txnlog/c/t/day=1/a.parquet",
        partition_values={},
        size=7,
        modification_time=1,
        data_change=True,
        stats='{"numRecords":2}',
    )
    assert paths(commit(added("a")), commit(added("b"))) == ["_txnlog/c/t/a", "_txnlog/c/t/b"]
    assert paths(commit()) == paths() == []


def test_what_delta_compacts_after_an_append_is_taken_once() -> None:
    """delta.autoOptimize.autoCompact: each row would be in a small file and in a large one."""
    compacted = commit(
        {"remove": {"path": "a", "dataChange": False}},
        {"remove": {"path": "b", "dataChange": False}},
        added("c", change=False),
        info={"operation": "OPTIMIZE", "operationParameters": {}},
    )
    (found,) = adopted([commit(added("a"), added("b")), compacted], "f")
    assert (found.path, found.data_change) == ("f/c", True)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (commit(added("a"), info=INSERT_REPLACE), "WRITE, mode Overwrite"),
        (commit(added("a"), info={"operation": "MERGE"}), "MERGE"),
        (commit(added("a"), info={"operation": "TRUNCATE"}), "TRUNCATE"),
        (commit({"metaData": {"id": "x"}}, added("a")), "autoMerge"),
        (commit({"protocol": {"minReaderVersion": 3}}, added("a")), "autoMerge"),
        (commit({"add": {**added("a")["add"], "stats": None}}), "stats.collect"),
    ],
)
def test_what_is_no_append_is_refused(bad: bytes, why: str) -> None:
    """In an empty staging table it would do something else than in the enlisted one."""
    with pytest.raises(ValueError, match=why):
        adopted([bad], "f")
