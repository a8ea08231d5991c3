"""Arrow data staged for a Delta table: what is in the files, by delta-rs and by pyarrow."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.protocol.enlisted_tables import column, definition, struct
from tests.storage.foreign_table import publish, staged_part
from txnlog.errors import FolderNotFoundError, TableDataError, TableFeatureError
from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.protocol.enlisted.schemas import DEFAULT
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_files import stage

ID = column("id")
UTC = dt.timezone.utc


def array(kind: Any, *, nulls: bool = True) -> Any:
    return {"type": "array", "elementType": kind, "containsNull": nulls}


def mapped(kind: Any, *, nulls: bool = True) -> Any:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": nulls}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    return ObjectStore.from_url(str(tmp_path / "t"), create=False)


def staged(store: ObjectStore, rows: Any, table: Definition) -> tuple[AddFile, ...]:
    rows = rows if isinstance(rows, pa.Table) else pa.table(rows)
    return stage(store, rows, table, folder="_txnlog/c-1", now_ms=5)


def read(store: ObjectStore, add: AddFile) -> pa.Table:
    """A file of a table without special characters in its path."""
    return pq.ParquetFile(str(store.local_path(add.path))).read()


EVERY_TYPE = {
    "string": ["a", "é" * 40, None],
    "long": [1, -(2**63), None],
    "integer": [1, 2**31 - 1, None],
    "short": [1, -(2**15), None],
    "byte": [1, 127, None],
    "float": [0.5, -1.5, None],
    "double": [0.1, float("inf"), None],
    "boolean": [True, False, None],
    "binary": [b"\0", b"", None],
    "date": [dt.date(2026, 11, 26), dt.date(1, 1, 1), None],
    "timestamp": [dt.datetime(2026, 11, 26, 1, 2, 3, 456789, UTC), None, None],
    "timestamp_ntz": [dt.datetime(2026, 11, 26, 1, 2, 3, 456789), None, None],
    "decimal(12,3)": [Decimal("1.500"), Decimal("-999999999.999"), None],
}


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_values_of_each_type_are_kept(store: ObjectStore, kind: str) -> None:
    (add,) = staged(store, {"v": EVERY_TYPE[kind]}, definition(column("v", kind)))
    assert read(store, add)["v"].to_pylist() == EVERY_TYPE[kind]
    stats = json.loads(add.stats)
    assert stats["numRecords"] == 3
    assert stats["nullCount"]["v"] == EVERY_TYPE[kind].count(None)


def test_statistics_are_bounds_of_the_values(store: ObjectStore) -> None:
    """A reader that skips a file by wrong bounds loses rows."""
    long = "x" * 40
    rows = {
        "n": [3, 1],
        "t": [long, "b"],
        "d": [dt.date(2026, 1, 2), dt.date(2026, 1, 1)],
        "at": pa.array([1, 1999], pa.timestamp("us", "UTC")),
        "m": [Decimal("10.50"), Decimal("2.25")],
        "nan": [float("nan"), 1.0],
        "zero": [0.0, None],
        "top": ["x" * 32 + "\U0010ffff" * 2, "b"],
        "s": [{"x": 5}, None],
    }
    kinds = {"n": "long", "t": "string", "d": "date", "at": "timestamp", "m": "decimal(10,2)"}
    columns = [column(name, kind) for name, kind in kinds.items()]
    columns += [column("nan", "double"), column("zero", "double"), column("top", "string")]
    table = definition(*columns, column("s", struct(column("x"))))
    (add,) = staged(store, rows, table)
    stats = json.loads(add.stats)
    assert stats["minValues"] == {
        "n": 1,
        "t": "b",
        "d": "2026-01-01",
        "at": "1970-01-01T00:00:00.000001Z",
        "m": 2.25,
        "zero": 0.0,
        "top": "b",
        "s": {"x": 5},
    }
    assert stats["maxValues"]["t"].startswith("x" * 32)
    assert stats["maxValues"]["t"] > long
    assert stats["maxValues"]["top"] >= rows["top"][0]
    # Some readers order -0.0 before 0.0, and find both by a filter for either.
    assert [str(stats[each]["zero"]) for each in ("minValues", "maxValues")] == ["-0.0", "0.0"]
    assert stats["maxValues"]["at"] == "1970-01-01T00:00:00.001999Z"
    assert stats["nullCount"] == {
        **dict.fromkeys((*kinds, "nan", "top"), 0),
        "zero": 1,
        "s": {"x": 1},
    }


def columns_with_statistics(store: ObjectStore, table: Definition, names: list[str]) -> list[str]:
    (add,) = staged(store, {name: [1] for name in names}, table)
    return list(json.loads(add.stats)["nullCount"])


def test_statistics_are_of_the_columns_that_the_table_names(store: ObjectStore) -> None:
    """The first 32, or those that a property names; and those it is clustered by."""
    names = [f"c{number}" for number in range(40)]
    columns = [column(name) for name in names]
    clustered = {"delta.clustering": '{"clusteringColumns":[["c39"]],"domainName":"x"}'}
    found = columns_with_statistics(store, definition(*columns, domains=clustered), names)
    assert found == [*names[:32], "c39"]
    table = definition(*columns, delta_dataSkippingNumIndexedCols="2")
    assert columns_with_statistics(store, table, names) == ["c0", "c1"]
    table = definition(*columns, delta_dataSkippingNumIndexedCols="-1")
    assert columns_with_statistics(store, table, names) == names
    table = definition(*columns, column("a.b"), delta_dataSkippingStatsColumns="c3, `a.b`")
    assert columns_with_statistics(store, table, [*names, "a.b"]) == ["c3", "a.b"]
    wrong = definition(*columns, delta_dataSkippingNumIndexedCols="many")
    with pytest.raises(
        TableFeatureError, match="only be written by an engine such as Spark: invalid"
    ):
        columns_with_statistics(store, wrong, names)


def test_nested_columns_take_missing_fields_and_other_order(store: ObjectStore) -> None:
    """By name, at each depth, also in slices."""
    inner = struct(column("a"), column("b", "string"))
    table = definition(
        ID, column("s", inner), column("l", array(inner)), column("m", mapped(inner))
    )
    rows = pa.table(
        {
            "m": pa.array(
                [[], [("k", {"a": 1})], None, [("x", None), ("y", {"a": 2})]],
                pa.map_(pa.string(), pa.struct([("a", pa.int8())])),
            ),
            "s": [None, {"b": "x", "a": 1}, None, {"b": None, "a": 2}],
            "l": [[{"a": 9}], [{"a": 1}, None], None, []],
        }
    ).slice(1)
    (add,) = staged(store, rows, table)
    assert read(store, add).to_pylist() == [
        {
            "id": None,
            "s": {"a": 1, "b": "x"},
            "l": [{"a": 1, "b": None}, None],
            "m": [("k", {"a": 1, "b": None})],
        },
        {"id": None, "s": None, "l": None, "m": None},
        {
            "id": None,
            "s": {"a": 2, "b": None},
            "l": [],
            "m": [("x", None), ("y", {"a": 2, "b": None})],
        },
    ]


def random_kind(chosen: random.Random, depth: int) -> tuple[Any, pa.DataType]:
    """A type of Delta, and the same of Arrow."""
    match chosen.randrange(6 if depth else 3):
        case 0:
            return "long", pa.int64()
        case 1:
            return "string", pa.string()
        case 2:
            return "decimal(10,2)", pa.decimal128(10, 2)
        case 3:
            kind, arrow = random_kind(chosen, depth - 1)
            return array(kind), pa.list_(arrow)
        case 4:
            kind, arrow = random_kind(chosen, depth - 1)
            return mapped(kind), pa.map_(pa.string(), arrow)
        case _:
            names = [f"f{number}" for number in range(chosen.randrange(1, 4))]
            below = [random_kind(chosen, depth - 1) for _ in names]
            columns = [column(n, kind) for n, (kind, _) in zip(names, below, strict=True)]
            arrow = [(n, kind) for n, (_, kind) in zip(names, below, strict=True)]
            return struct(*columns), pa.struct(arrow)


def random_value(chosen: random.Random, kind: pa.DataType) -> Any:
    if chosen.random() < 0.3:
        return None
    if pa.types.is_map(kind):
        keys = [str(number) for number in range(chosen.randrange(3))]
        return [(key, random_value(chosen, kind.item_type)) for key in keys]
    if pa.types.is_list(kind):
        return [random_value(chosen, kind.value_type) for _ in range(chosen.randrange(3))]
    if pa.types.is_struct(kind):
        return {field.name: random_value(chosen, field.type) for field in kind}
    if pa.types.is_decimal(kind):
        return Decimal(chosen.randrange(-(10**6), 10**6)).scaleb(-2)
    number = chosen.randrange(100)
    return number if pa.types.is_integer(kind) else str(number)


def test_random_nested_columns_are_kept(store: ObjectStore, seed: int) -> None:
    """Nulls and empty lists at every depth, in slices of chunks."""
    chosen = random.Random(seed)
    for _ in range(40):
        kind, arrow = random_kind(chosen, 3)
        chunks = [
            pa.array([random_value(chosen, arrow) for _ in range(chosen.randrange(6))], arrow)
            for _ in range(3)
        ]
        rows = pa.table({"v": pa.chunked_array(chunks, arrow)}).slice(chosen.randrange(3))
        adds = staged(store, rows, definition(column("v", kind)))
        found = [value for add in adds for value in read(store, add)["v"].to_pylist()]
        assert found == rows["v"].to_pylist()


def test_column_mapping_names_files_physically(store: ObjectStore) -> None:
    """Names and field ids of Parquet, statistics and partition values."""
    table = definition(
        column("id", physical="col-1", delta_columnMapping_id=1),
        column(
            "s",
            struct(column("x", physical="col-3", delta_columnMapping_id=3)),
            physical="col-2",
            delta_columnMapping_id=2,
        ),
        column("p", "string", physical="col-4", delta_columnMapping_id=4),
        partitions=("p",),
        features=("columnMapping",),
        delta_columnMapping_mode="name",
    )
    (add,) = staged(store, {"p": ["a"], "id": [1], "s": [{"x": 2}]}, table)
    assert add.partition_values == {"col-4": "a"}
    assert json.loads(add.stats)["minValues"] == {"col-1": 1, "col-2": {"col-3": 2}}
    schema = pq.ParquetFile(str(store.local_path(add.path))).schema_arrow
    field = schema.field("col-2").type.field("col-3")
    found = [schema.field("col-1"), schema.field("col-2"), field]
    ids = [(each.metadata or {}).get(b"PARQUET:field_id") for each in found]
    assert ids == [b"1", b"2", b"3"]


def test_rows_are_split_by_partition(tmp_path: Path) -> None:
    """Each value as the log has it; special characters, nulls; read by delta-rs."""
    days = [dt.date(2026, 1, 1), None, dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    rows = pa.table({"id": [1, 2, 3, 4], "d": days, "s": ["a b/c%=é", "x", "a b/c%=é", ""]})
    write_deltalake(tmp_path / "t", rows, partition_by=["d", "s"])
    publish(staged_part(tmp_path / "t", rows))
    found = DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id").to_pylist()
    wanted = [{**row, "s": row["s"] or None} for row in rows.to_pylist() for _ in range(2)]
    assert found == wanted
    assert len(DeltaTable(tmp_path / "t").file_uris()) == 6


def test_many_partitions_keep_all_rows(store: ObjectStore) -> None:
    """Of several columns with many values: no row is lost, none is in another partition."""
    numbers = np.random.default_rng(7).integers(0, 30, (3, 2_000))
    rows = pa.table({name: pa.array(numbers[at]) for at, name in enumerate(("id", "p", "q"))})
    table = definition(ID, column("p"), column("q", "string"), partitions=("p", "q"))
    found = []
    for add in staged(store, rows, table):
        values = add.partition_values
        found += [
            (each, int(values["p"] or -1), int(values["q"] or -1))
            for each in read(store, add)["id"].to_pylist()
        ]
    assert sorted(found) == sorted(zip(*map(np.ndarray.tolist, numbers), strict=True))


def test_large_table_is_several_files(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is encoded in memory."""
    monkeypatch.setattr("txnlog.storage.tables.enlisted_files.FILE_BYTES", 100)
    adds = staged(store, {"id": list(range(100))}, definition(ID))
    assert len(adds) > 5
    assert [n for add in adds for n in read(store, add)["id"].to_pylist()] == list(range(100))


def test_no_rows_are_no_files(store: ObjectStore) -> None:
    assert staged(store, {"id": pa.array([], pa.int64())}, definition(ID)) == ()


NOT_NULL = column("v", "string", nullable=False)
UNFIT: dict[str, tuple[Any, Definition, str]] = {
    "null": ({"v": ["a", None]}, definition(NOT_NULL), "column 'v' may not be null"),
    "absent": ({"id": [1]}, definition(ID, NOT_NULL), "column 'v' may not be null"),
    "null field": (
        {"s": [{"v": None}]},
        definition(column("s", struct(NOT_NULL))),
        "column 'v' may not be null",
    ),
    "null element": (
        {"l": [["a", None]]},
        definition(column("l", array("string", nulls=False))),
        "column 'element' may not be null",
    ),
    "null value": (
        {"m": pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64()))},
        definition(column("m", mapped("long", nulls=False))),
        "column 'value' may not be null",
    ),
    "null partition": (
        {"id": [1], "v": [None]},
        definition(ID, NOT_NULL, partitions=("v",)),
        "'v' may not be null",
    ),
    "empty partition": (
        {"id": [1], "v": [""]},
        definition(ID, NOT_NULL, partitions=("v",)),
        "'v' may not be null, nor an empty text",
    ),
    "unknown column": ({"x": [1]}, definition(ID), "the table has no column 'x'"),
    "unknown field": (
        {"s": [{"x": 1}]},
        definition(column("s", struct(ID))),
        "column 's' has no field 'x'",
    ),
    "text": ({"id": ["one"]}, definition(ID), "column 'id': .*one"),
    "too large": ({"v": [300]}, definition(column("v", "byte")), "column 'v': .*300"),
    "fraction": ({"id": [1.5]}, definition(ID), "column 'id': .*truncated"),
    "rounded": (
        {"v": [0.125]},
        definition(column("v", "decimal(5,2)")),
        "column 'v' is decimal128.* and its values are double",
    ),
    "time without a zone": (
        {"v": [dt.datetime(2026, 1, 1)]},
        definition(column("v", "timestamp")),
        "column 'v' is timestamp.*UTC.*, and its values are timestamp",
    ),
    "time with a zone": (
        {"v": [dt.datetime(2026, 1, 1, tzinfo=UTC)]},
        definition(column("v", "timestamp_ntz")),
        "its values are timestamp.*UTC",
    ),
    "nanoseconds": (
        {"v": pa.array([1], pa.timestamp("ns", "UTC"))},
        definition(column("v", "timestamp")),
        "column 'v': .*lose data",
    ),
    "number for a boolean": ({"v": [1, 5]}, definition(column("v", "boolean")), "lose data"),
    "time": ({"v": [dt.datetime(2026, 1, 1, 5)]}, definition(column("v", "date")), "lose data"),
    "infinite": ({"v": [1e300]}, definition(column("v", "float")), "column 'v': .*lose data"),
    "infinite text": ({"v": ["1e300"]}, definition(column("v", "float")), "lose data"),
    "struct for a number": ({"id": [{"a": 1}]}, definition(ID), "column 'id'"),
    "number for a struct": (
        {"s": [1]},
        definition(column("s", struct(ID))),
        "column 's' is struct.*, and its values are int64",
    ),
    "not UTF-8": ({"v": [b"\xff"]}, definition(NOT_NULL), "column 'v': .*UTF8"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_rows_that_do_not_fit_are_refused(store: ObjectStore, name: str) -> None:
    """Before the decision, with the URL and the column."""
    rows, table, why = UNFIT[name]
    with pytest.raises(
        TableDataError, match=f"/t: these rows cannot be in the table: .*{why}"
    ) as caught:
        staged(store, rows, table)
    assert caught.value.abortable


def test_values_that_lose_nothing_are_cast(store: ObjectStore) -> None:
    columns = [column("b", "boolean"), column("d", "date"), column("f", "float")]
    rows = {"b": [0, 1], "d": [dt.datetime(2026, 1, 1), None], "f": [float("inf"), float("nan")]}
    (add,) = staged(store, rows, definition(*columns))
    first, second = map(str, read(store, add).to_pylist())
    assert first == "{'b': False, 'd': datetime.date(2026, 1, 1), 'f': inf}"
    assert second == "{'b': True, 'd': None, 'f': nan}"


def test_column_that_is_there_twice_is_refused(store: ObjectStore) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(TableDataError, match="the rows have it twice"):
        staged(store, rows, definition(ID))


ENGINE = {
    "CHECK": definition(ID, delta_constraints_positive="id > 0"),
    "invariant": definition(column("id", delta_invariants="{}")),
    "generated": definition(ID, column("g", delta_generationExpression="id + 1")),
    "default": definition(ID, {**column("v", "string"), "metadata": {DEFAULT: "'x'"}}),
    "variant": definition(ID, column("v", "variant")),
    "varchar": definition({**ID, "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}),
    "in a struct": definition(ID, column("s", struct(column("x", delta_invariants="{}")))),
    "binary partition": definition(ID, column("v", "binary"), partitions=("v",)),
    "void": definition(ID, column("v", "void")),
    "interval": definition(ID, column("v", array("interval day to second"))),
}


@pytest.mark.parametrize("name", ENGINE)
def test_rows_that_need_an_engine_are_refused(store: ObjectStore, name: str) -> None:
    """Only Spark evaluates expressions as Spark does."""
    with pytest.raises(TableFeatureError, match="an engine such as Spark") as caught:
        staged(store, {"id": [1]}, ENGINE[name])
    assert caught.value.abortable


def test_column_with_a_default_may_be_given(store: ObjectStore) -> None:
    (add,) = staged(store, {"id": [1], "v": ["y"]}, ENGINE["default"])
    assert read(store, add)["v"].to_pylist() == ["y"]


def test_pandas_categories_and_nulls_are_values(store: ObjectStore) -> None:
    """Dictionary-encoded columns, and those without any value, whose type is null."""
    rows = {"id": pa.nulls(2), "v": pa.array(["a", None]).dictionary_encode()}
    (add,) = staged(store, rows, definition(ID, column("v", "string")))
    assert read(store, add).to_pylist() == [{"id": None, "v": "a"}, {"id": None, "v": None}]


def test_times_that_python_does_not_have_are_kept(store: ObjectStore) -> None:
    """Spark's years go far beyond 9999; such a file has no bounds, and is never skipped."""
    far = pa.array([2**30, 0], pa.int32()).cast(pa.date32())
    (add,) = staged(store, {"d": far}, definition(column("d", "date")))
    assert read(store, add)["d"].cast(pa.int32()).to_pylist() == [2**30, 0]
    assert json.loads(add.stats)["maxValues"] == {}
    table = definition(ID, column("d", "date"), partitions=("d",))
    with pytest.raises(TableDataError, match="a value of 'd'"):
        staged(store, {"id": [1, 2], "d": far}, table)


def test_field_of_a_null_struct_is_no_null(store: ObjectStore) -> None:
    """A NOT NULL field is one only where its struct is."""
    table = definition(column("s", struct(NOT_NULL, ID)))
    rows = {"s": pa.array([None, {"v": "a"}, None], pa.struct([("v", pa.string())]))}
    (add,) = staged(store, rows, table)
    assert read(store, add)["s"].to_pylist() == [None, {"v": "a", "id": None}, None]


def test_table_that_is_gone_is_not_staged_for(tmp_path: Path) -> None:
    """An unmounted disk would get files that the next mount hides (D66)."""
    (tmp_path / "t").mkdir()
    store = ObjectStore.from_url(str(tmp_path / "t"), create=False)
    with pytest.raises(FolderNotFoundError, match="/t/_delta_log: this folder is not there"):
        staged(store, {"id": [1]}, definition(ID))
    assert list((tmp_path / "t").iterdir()) == []
