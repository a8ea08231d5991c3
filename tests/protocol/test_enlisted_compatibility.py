"""Which changes of a table between staging and publication a staged file survives."""

from __future__ import annotations

import re

import pytest

from tests.protocol.enlisted_tables import add, column, definition, struct
from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.protocol.enlisted.compatibility import incompatible, renamed, unpublishable
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.enlisted.schemas import DEFAULT, TEXT_LENGTH

ID, V = column("id"), column("v", "string")
MAPPED = {"features": ("columnMapping",), "delta_columnMapping_mode": "name"}
WIDE = ("typeWidening",)
A, B = column("a", physical="col-1"), column("b", physical="col-2")


def numbers(*kinds: object, **rest: tuple[str, ...]) -> Definition:
    return definition(*(column("n", kind) for kind in kinds), **rest)  # type: ignore[arg-type]


def array(kind: object, *, nulls: bool = True) -> object:
    return {"type": "array", "elementType": kind, "containsNull": nulls}


def mapped(kind: object, *, key: object = "string", nulls: bool = True) -> object:
    return {"type": "map", "keyType": key, "valueType": kind, "valueContainsNull": nulls}


Case = tuple[Definition, Definition]

COMPATIBLE: dict[str, Case] = {
    "nothing": (definition(ID), definition(ID)),
    "comment and order": (definition(ID, V), definition(V, column("id", comment="the key"))),
    "new nullable column": (definition(ID), definition(ID, V)),
    "new column with a default": (
        definition(ID),
        definition(ID, {**V, "metadata": {DEFAULT: "1"}}),
    ),
    "new nullable field": (
        definition(column("s", struct(ID))),
        definition(column("s", struct(ID, V))),
    ),
    "new field in an array": (
        definition(column("s", array(struct(ID)))),
        definition(column("s", array(struct(ID, V)))),
    ),
    "NOT NULL dropped": (definition(column("id", nullable=False)), definition(ID)),
    "NOT NULL, and no nulls are there": (
        definition(ID),
        definition(column("id", nullable=False)),
    ),
    "CHECK dropped": (definition(ID, delta_constraints_c="id > 0"), definition(ID)),
    "properties": (definition(ID), definition(ID, delta_appendOnly="true", custom="1")),
    "known features": (
        definition(ID),
        definition(ID, features=("deletionVectors", "rowTracking", "v2Checkpoint"), reader=3),
    ),
    "clustering": (
        definition(ID),
        definition(ID, domains={"delta.clustering": '{"clusteringColumns":[["id"]]}'}),
    ),
    "column mapping switched on": (
        definition(column("a")),
        definition(column("a", physical="a"), **MAPPED),
    ),
    "mapping on, then dropped": (
        definition(column("a"), column("b")),
        definition(column("a", physical="a"), **MAPPED),
    ),
    "renamed": (definition(A, **MAPPED), definition(column("z", physical="col-1"), **MAPPED)),
    "dropped under mapping": (definition(A, B, **MAPPED), definition(A, **MAPPED)),
    "dropped and added again": (
        definition(A, B, **MAPPED),
        definition(A, column("b", "string", physical="col-3"), **MAPPED),
    ),
    "partition column renamed": (
        definition(A, B, partitions=("b",), **MAPPED),
        definition(A, column("d", physical="col-2"), partitions=("d",), **MAPPED),
    ),
    "integer to long": (numbers("integer"), numbers("long", features=WIDE)),
    "byte to double": (numbers("byte"), numbers("double", features=WIDE)),
    "date to timestamp_ntz": (numbers("date"), numbers("timestamp_ntz", features=WIDE)),
    "decimal": (numbers("decimal(5,2)"), numbers("decimal(10,4)", features=WIDE)),
    "integer to decimal": (numbers("integer"), numbers("decimal(12,2)", features=WIDE)),
    "widened in a map": (
        numbers(mapped("short")),
        numbers(mapped("integer"), features=("typeWidening-preview",)),
    ),
}

INCOMPATIBLE: dict[str, tuple[Definition, Definition, str]] = {
    "column gone": (
        definition(ID, V),
        definition(ID),
        "column 'v' is gone, without column mapping",
    ),
    "field gone": (
        definition(column("s", struct(ID, V))),
        definition(column("s", struct(ID))),
        "column 's.v' is gone",
    ),
    "other type": (definition(ID), definition(column("id", "string")), "'id' has another type"),
    "type in an array": (
        numbers(array("long")),
        numbers(array("string")),
        "column 'n.element' has another type",
    ),
    "type of a key": (
        numbers(mapped("long")),
        numbers(mapped("long", key="long")),
        "column 'n.key' has another type",
    ),
    "struct to array": (numbers(struct(ID)), numbers(array("long")), "'n' has another type"),
    "elements may not be null": (
        numbers(array("long")),
        numbers(array("long", nulls=False)),
        "column 'n' may not hold nulls any more",
    ),
    "values may not be null": (
        numbers(mapped("long")),
        numbers(mapped("long", nulls=False)),
        "column 'n' may not hold nulls any more",
    ),
    "wider without the feature": (numbers("integer"), numbers("long"), "another type"),
    "narrower": (numbers("long"), numbers("integer", features=WIDE), "another type"),
    "long to double": (numbers("long"), numbers("double", features=WIDE), "another type"),
    "decimal with fewer digits": (
        numbers("decimal(10,2)"),
        numbers("decimal(11,4)", features=WIDE),
        "another type",
    ),
    "integer to a small decimal": (
        numbers("integer"),
        numbers("decimal(10,1)", features=WIDE),
        "another type",
    ),
    "text to decimal": (numbers("string"), numbers("decimal(38,0)", features=WIDE), "another type"),
    "new NOT NULL column": (
        definition(ID),
        definition(ID, column("v", nullable=False)),
        "column 'v' is new, and may not be null",
    ),
    "new generated column": (
        definition(ID),
        definition(ID, column("v", delta_generationExpression="id + 1")),
        "column 'v' is new, and writers compute it",
    ),
    "new identity column": (
        definition(ID),
        definition(ID, column("v", delta_identity_start=1)),
        "column 'v' is new, and writers compute it",
    ),
    "nulls in NOT NULL": (
        definition(ID, V),
        definition(ID, column("v", "string", nullable=False)),
        "column 'v' may not be null any more",
    ),
    "other partition columns": (
        definition(ID, V, partitions=("v",)),
        definition(ID, V),
        "other partition columns",
    ),
    "new CHECK": (
        definition(ID),
        definition(ID, delta_constraints_c="id > 0"),
        "'delta.constraints.c' has a new rule: id > 0",
    ),
    "changed CHECK": (
        definition(ID, delta_constraints_c="id > 0"),
        definition(ID, delta_constraints_c="id > 1"),
        "new rule: id > 1",
    ),
    "new invariant": (
        definition(ID),
        definition(column("id", delta_invariants="{}")),
        "'id' has a new rule",
    ),
    "invariant in an array": (
        definition(column("s", array(struct(ID)))),
        definition(column("s", array(struct(column("id", delta_invariants="{}"))))),
        r"'s\.element\.id' has a new rule",
    ),
    "new generation": (
        definition(ID, column("v", delta_generationExpression="id")),
        definition(ID, column("v", delta_generationExpression="id + 1")),
        "new rule: id",
    ),
    "shorter text": (
        definition(V),
        definition({**V, "metadata": {TEXT_LENGTH: "varchar(4)"}}),
        "new rule: varchar",
    ),
    "mapping off": (
        definition(column("a", physical="a"), **MAPPED),
        definition(column("a")),
        "column mapping changed from 'name' to 'none'",
    ),
    "mapping by id": (
        definition(ID),
        definition(ID, features=("columnMapping",), delta_columnMapping_mode="id"),
        "column mapping changed from 'none' to 'id'",
    ),
    "unknown feature": (
        definition(ID),
        definition(ID, features=("newer",)),
        "needs 'newer', which txnlog does not know",
    ),
    "catalog": (definition(ID), definition(ID, features=("catalogManaged",)), "'catalogManaged'"),
}


def staged(was: Definition) -> list[AddFile]:
    """One file with a null in column v."""
    return [add(nulls={"id": 0, "v": 1}, **dict.fromkeys(was.metadata.partition_columns, "1"))]


@pytest.mark.parametrize("name", COMPATIBLE)
def test_change_that_a_staged_file_survives(name: str) -> None:
    """A decided transaction that is blocked without need blocks its id, and needs an operator."""
    was, now = COMPATIBLE[name]
    assert incompatible(was, now, staged(was)) is None


@pytest.mark.parametrize("name", INCOMPATIBLE)
def test_change_that_a_staged_file_does_not_survive(name: str) -> None:
    """Else rows that the table forbids, or that nobody can read, would be in it."""
    was, now, why = INCOMPATIBLE[name]
    found = incompatible(was, now, staged(was))
    assert found is not None
    assert re.search(why, found), found


@pytest.mark.parametrize(
    ("stats", "is_there"),
    [
        ('{"numRecords":1}', False),
        ('{"nullCount":{"v":0}}', True),
        ('{"nullCount":{"v":{}}}', False),
    ],
)
def test_not_null_needs_statistics_that_say_so(stats: str, is_there: bool) -> None:
    """A file without the statistics may have nulls."""
    now = definition(ID, column("v", "string", nullable=False))
    file = AddFile(
        path="f", partition_values={}, size=1, modification_time=1, data_change=True, stats=stats
    )
    assert (incompatible(definition(ID, V), now, [file]) is None) is is_there


@pytest.mark.parametrize(("value", "is_there"), [("2026", True), ("", False)])
def test_partition_column_that_became_not_null(value: str, is_there: bool) -> None:
    """Partition columns have no statistics, and an empty text is null."""
    was = definition(ID, V, partitions=("v",))
    now = definition(ID, column("v", "string", nullable=False), partitions=("v",))
    assert (incompatible(was, now, [add(v=value)]) is None) is is_there


@pytest.mark.parametrize(
    ("name", "column_of"),
    [
        ("new nullable column", None),
        ("new field in an array", None),
        ("new column with a default", "v"),
        ("renamed", "a"),
        ("dropped under mapping", "b"),
    ],
)
def test_rows_that_are_not_decided_keep_their_columns(name: str, column_of: str | None) -> None:
    """Decided, they are as if they had been there before; given later, they would lose values."""
    found = renamed(*COMPATIBLE[name])
    assert found is None if column_of is None else f"column '{column_of}'" in str(found)


def test_append_only_table_takes_no_overwrite() -> None:
    """Decided at publication; an append is welcome."""
    was, now = definition(ID), definition(ID, delta_appendOnly="true")
    parts = [
        Part(mode=mode, read_version=4, definition=was, adds=(add(nulls={"id": 0}),))
        for mode in ("append", "overwrite")
    ]
    assert unpublishable(parts[0], now) is None
    assert "append-only" in str(unpublishable(parts[1], now))
    assert unpublishable(parts[1], was) is None
