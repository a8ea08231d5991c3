"""The commit that publishes a part, line by line; part files; partitions."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pytest

from tests.protocol.enlisted_tables import URL, add, column, definition, state_of
from txnlog.errors import CorruptLogError, TableDataError
from txnlog.protocol.enlisted.actions import (
    Definition,
    DeletionVector,
    LiveFile,
    TableState,
    decode_actions,
    encode_actions,
)
from txnlog.protocol.enlisted.parts import (
    Decided,
    Part,
    app_id_of,
    decode_part,
    encode_part,
    new_part,
    publication,
)
from txnlog.protocol.enlisted.schemas import partition_text, partition_value

DECIDED = Decided(app_id=app_id_of("c-1", 7), epoch=3, decided_ms=900)
ID = column("id")
ROWS = ("rowTracking", "domainMetadata")


def lines(part: Part, state: TableState, decided: Decided = DECIDED) -> list[Any]:
    actions = publication(part, state, decided, write_id="w", engine="txnlog/x", now_ms=1000)
    return [json.loads(line) for line in encode_actions(actions).splitlines()]


def append(state: TableState, *adds: Any) -> Part:
    return new_part(state, adds or (add(),), mode="append")


def live(path: str, dv: str = "", **values: str) -> LiveFile:
    vector = DeletionVector(
        storage_type="i", path_or_inline_dv=dv, offset=1, size_in_bytes=34, cardinality=1
    )
    return LiveFile(
        path=path,
        partition_values={name: text or None for name, text in values.items()},
        size=9,
        deletion_vector=vector if dv else None,
        base_row_id=5,
        default_row_commit_version=2,
    )


def state_with(table: Definition, *files: LiveFile) -> TableState:
    return state_of(table, files={file.path: file for file in files})


GOLDEN_APPEND = [
    {
        "commitInfo": {
            "txnlogWriteId": "w",
            "timestamp": 1000,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": "[]"},
            "operationMetrics": {
                "numFiles": "1",
                "numOutputRows": "2",
                "numOutputBytes": "100",
                "numRemovedFiles": "0",
            },
            "isBlindAppend": False,
            "engineInfo": "txnlog/x",
            "txnId": "w",
            "readVersion": 4,
        }
    },
    {"txn": {"appId": "txnlog/c-1/7", "version": 3, "lastUpdated": 1000}},
    {
        "add": {
            "path": "_txnlog/c/part-1.parquet",
            "partitionValues": {},
            "size": 100,
            "modificationTime": 1,
            "dataChange": True,
            "stats": '{"numRecords": 2, "nullCount": {}}',
        }
    },
]


def test_append_is_the_golden_commit() -> None:
    state = state_of(definition(ID))
    assert lines(append(state), state) == GOLDEN_APPEND


def test_publication_is_read_back_as_it_was_written() -> None:
    """D54: what cannot be read back would block the table."""
    state = state_of(definition(ID, features=ROWS))
    actions = publication(append(state), state, DECIDED, write_id="w", engine="", now_ms=1)
    state.files = {}
    state.apply(5, decode_actions(encode_actions(actions), files=True))
    assert (state.version, state.txns) == (5, {DECIDED.app_id: 3})
    assert list(state.files) == ["_txnlog/c/part-1.parquet"]


@pytest.mark.parametrize(("domain", "first"), [(None, 0), ('{"rowIdHighWaterMark":41}', 42)])
def test_row_ids_continue_those_of_the_table(domain: str | None, first: int) -> None:
    """Two files with one row id, if they were given out at staging."""
    domains = {} if domain is None else {"delta.rowTracking": domain}
    state = state_of(definition(ID, features=ROWS, domains=domains))
    part = append(state, add("a.parquet", rows=3), add("b.parquet", rows=2))
    info, _, tracking, *adds = lines(part, state)
    assert info["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "true"}
    assert tracking["domainMetadata"] == {
        "domain": "delta.rowTracking",
        "configuration": f'{{"rowIdHighWaterMark":{first + 4}}}',
    }
    assert [
        (each["add"]["baseRowId"], each["add"]["defaultRowCommitVersion"]) for each in adds
    ] == [
        (first, 5),
        (first + 3, 5),
    ]


def test_suspended_row_tracking_gives_no_ids() -> None:
    state = state_of(definition(ID, features=ROWS, delta_rowTrackingSuspended="true"))
    assert [*map(next, map(iter, lines(append(state), state)))] == ["commitInfo", "txn", "add"]


@pytest.mark.parametrize(("before_ms", "wanted"), [(500, 1000), (1000, 1001), (5000, 5001)])
def test_in_commit_timestamp_is_above_the_newest(before_ms: int, wanted: int) -> None:
    """It is by the store's clock, but a foreign writer's may be ahead of it."""
    table = definition(ID, features=("inCommitTimestamp",), delta_enableInCommitTimestamps="true")
    state = state_of(table, in_commit_ms=before_ms)
    info = lines(append(state), state)[0]["commitInfo"]
    assert info["inCommitTimestamp"] == wanted


def test_unknown_in_commit_timestamp_is_an_error() -> None:
    """A guess might go back in time."""
    state = state_of(definition(ID, delta_enableInCommitTimestamps="true"))
    with pytest.raises(ValueError, match="newest commit has no in-commit timestamp"):
        lines(append(state), state)


def test_overwrite_removes_what_is_live_with_its_deletion_vector() -> None:
    """Listed at the decision, rows that OPTIMIZE moved would survive; so would rows of a file
    whose deletion vector is not repeated.
    """
    state = state_with(definition(ID), live("old.parquet"), live("changed.parquet", dv="ab^-"))
    found = lines(new_part(state, [add()], mode="overwrite"), state)
    assert [next(iter(line)) for line in found] == ["commitInfo", "txn", "remove", "remove", "add"]
    assert found[0]["commitInfo"]["isBlindAppend"] is False
    assert found[0]["commitInfo"]["operationParameters"]["mode"] == "Overwrite"
    assert found[2]["remove"] == {
        "path": "changed.parquet",
        "partitionValues": {},
        "size": 9,
        "deletionVector": {
            "storageType": "i",
            "pathOrInlineDv": "ab^-",
            "sizeInBytes": 34,
            "cardinality": 1,
            "offset": 1,
        },
        "baseRowId": 5,
        "defaultRowCommitVersion": 2,
        "deletionTimestamp": 1000,
        "dataChange": True,
        "extendedFileMetadata": True,
    }


DAY = dt.date(2026, 11, 26)


@pytest.mark.parametrize(
    ("kind", "texts", "value", "removed"),
    [
        ("integer", ("7", "07", "8", ""), 7, {"7", "07"}),
        ("string", ("a", "A", ""), "a", {"a"}),
        ("string", ("a", ""), None, {""}),
        ("string", ("a", ""), "", {""}),
        ("date", ("2026-11-26", "2026-11-27"), DAY, {"2026-11-26"}),
        ("boolean", ("true", "TRUE", "false"), True, {"true", "TRUE"}),
        ("double", ("1.0", "1", "NaN"), 1.0, {"1.0", "1"}),
        ("decimal(5,2)", ("1.50", "1.5", "1"), Decimal("1.5"), {"1.50", "1.5"}),
        (
            "timestamp",
            ("2026-11-26 10:00:00", "2026-11-26T10:00:00.000000Z", "2026-11-26 11:00:00"),
            dt.datetime(2026, 11, 26, 10, tzinfo=dt.timezone.utc),
            {"2026-11-26 10:00:00", "2026-11-26T10:00:00.000000Z"},
        ),
        (
            "timestamp_ntz",
            ("2026-11-26 10:00:00.1", "2026-11-26 10:00:00"),
            dt.datetime(2026, 11, 26, 10, 0, 0, 100_000),
            {"2026-11-26 10:00:00.1"},
        ),
        ("float", ("0.1", "0.10000000149011612", "0.2"), 0.1, {"0.1", "0.10000000149011612"}),
        ("integer", ("x", "7"), "7", {"7"}),
    ],
)
def test_overwritten_partition_is_compared_by_value(
    kind: str, texts: tuple[str, ...], value: object, removed: set[str]
) -> None:
    """Writers spell one value in several ways."""
    table = definition(ID, column("p", kind), partitions=("p",))
    state = state_with(table, *(live(text or "null", p=text) for text in texts))
    part = new_part(state, [], mode="overwrite", partitions=[{"p": value}])
    gone = [line["remove"]["path"] for line in lines(part, state) if "remove" in line]
    assert set(gone) == {text or "null" for text in removed}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", dt.datetime(2026, 11, 26)),
        ("date", "2026-1-5"),
        ("integer", 1.0),
        ("boolean", 1),
        ("string", ["a", "b"]),
        ("string", dt.datetime(2026, 11, 26)),
        ("string", float("nan")),
        ("timestamp", "today"),
        ("timestamp", dt.datetime(2026, 11, 26)),
        ("timestamp_ntz", dt.datetime(2026, 11, 26, tzinfo=dt.timezone.utc)),
        ("decimal(5,2)", "x"),
        ("binary", b"x"),
    ],
)
def test_value_that_a_partition_column_cannot_have_is_refused(kind: str, value: object) -> None:
    """An overwrite would leave the rows of the partition that was meant."""
    table = definition(ID, column("p", kind), partitions=("p",))
    with pytest.raises(TableDataError, match=f"'p' is {re.escape(kind)}"):
        new_part(state_with(table), [], mode="overwrite", partitions=[{"p": value}])


def test_overwrite_may_name_some_partition_columns() -> None:
    """By the names users know, which column mapping hides in the log."""
    table = definition(
        ID,
        column("day", "string", physical="col-1"),
        column("hour", "long", physical="col-2"),
        partitions=("day", "hour"),
        features=("columnMapping",),
        delta_columnMapping_mode="name",
    )
    files = [live(f"{d}{h}", **{"col-1": d, "col-2": h}) for d in "ab" for h in "12"]
    state = state_with(table, *files)
    inside = add(**{"col-1": "a", "col-2": "3"})
    part = new_part(state, [inside], mode="overwrite", partitions=[{"day": "a"}])
    gone = [line["remove"]["path"] for line in lines(part, state) if "remove" in line]
    assert gone == ["a1", "a2"]
    with pytest.raises(TableDataError, match="are in no partition to overwrite"):
        new_part(state, [inside], mode="overwrite", partitions=[{"day": "b"}])
    with pytest.raises(TableDataError, match="'id' is no partition column; it has 'day', 'hour'"):
        new_part(state, [inside], mode="overwrite", partitions=[{"id": 1}])
    with pytest.raises(TableDataError, match="only an overwrite replaces partitions"):
        new_part(state, [inside], mode="append", partitions=[{"day": "a"}])


def test_partition_texts_are_those_of_spark() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
    zone = dt.timezone(dt.timedelta(hours=1))
    assert partition_text(moment) == "2026-01-02 03:04:05.000006"
    assert partition_text(moment.replace(tzinfo=zone)) == "2026-01-02T02:04:05.000006Z"
    assert [partition_text(each) for each in (None, "", False, 7, DAY)] == [
        None,
        None,
        "false",
        "7",
        "2026-11-26",
    ]
    assert partition_text(Decimal("0E-10")) == "0.0000000000"
    assert partition_value("", "string") is None


def part_with_everything() -> Part:
    table = definition(
        ID, column("p", "string"), partitions=("p",), features=ROWS, domains={"delta.x": "{}"}
    )
    state = state_of(table)
    return new_part(
        state, [add(p="a"), add(p="")], mode="overwrite", partitions=[{"p": None}, {"p": "a"}]
    )


def test_part_file_is_read_as_it_was_written() -> None:
    part = part_with_everything()
    assert decode_part(encode_part(part), source=f"{URL}/x.json") == part
    first = json.loads(encode_part(part).splitlines()[0])
    assert first == {
        "txnlogPart": {
            "version": 1,
            "mode": "overwrite",
            "partitions": [{"p": None}, {"p": "a"}],
            "read_version": 4,
        }
    }


def changed(old: str, new: str) -> bytes:
    text = encode_part(part_with_everything()).decode()
    assert old in text
    return text.replace(old, new).encode()


HOSTILE = {
    "empty": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"add":"\xff"}\n',
    "deep": b"[" * 100_000,
    "no head": changed('{"txnlogPart"', '{"other"'),
    "newer": changed('"version":1', '"version":2'),
    "mode": changed('"mode":"overwrite"', '"mode":"mix"'),
    "unknown line": changed('{"domainMetadata"', '{"remove"'),
    "negative size": changed('"size":100', '"size":-1'),
    "huge number": changed('"size":100', f'"size":{2**63}'),
    "wrong type": changed('"dataChange":true', '"dataChange":"yes"'),
    "no number of rows": changed("numRecords", "numRows"),
    "fraction of a row": changed(r"\"numRecords\": 2", r"\"numRecords\": 0.5"),
    "absolute path": changed('"path":"_txnlog', '"path":"/_txnlog'),
    "URL": changed('"path":"_txnlog', '"path":"s3://other/_txnlog'),
    "above the table": changed('"path":"_txnlog', '"path":"_txnlog/../..'),
    "above, escaped": changed('"path":"_txnlog', '"path":"_txnlog/%2E%2e/..'),
    "schema": changed(r"\"type\": \"struct\"", r"\"type\": \"thing\""),
    "partition column": changed('"partitionColumns":["p"]', '"partitionColumns":["q"]'),
    "partition": changed('"partitions":[{"p"', '"partitions":[{"q"'),
    "partition value": changed('"partitionValues":{"p"', '"partitionValues":{"q"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_part_file_is_named(name: str) -> None:
    """R38: checked at the door, so that no process publishes what readers refuse."""
    with pytest.raises(CorruptLogError, match=r"s3://lake/orders/x\.json: this file of a decided"):
        decode_part(HOSTILE[name], source=f"{URL}/x.json")
