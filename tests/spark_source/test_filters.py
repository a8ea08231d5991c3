"""Filters that Spark pushes down skip partitions, offsets and files, and lose no record."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_source import batch
from spark_source.batch import PruningBatchReader, TxnLogBatchReader, batch_reader
from spark_source.filters import PUSHDOWN_WORKER, Bounds, Pruning, filters_are_pushed
from spark_source.schema import spark_schema
from tests.spark_source.conftest import START_US, Topics

SETTING = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
HOUR_US = 3_600_000_000


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


OPERATORS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, wanted: value == wanted,
    EqualNullSafe: lambda value, wanted: value == wanted,
    In: lambda value, wanted: value in wanted,
    GreaterThan: lambda value, wanted: wanted is not None and value > wanted,
    GreaterThanOrEqual: lambda value, wanted: wanted is not None and value >= wanted,
    LessThan: lambda value, wanted: wanted is not None and value < wanted,
    LessThanOrEqual: lambda value, wanted: wanted is not None and value <= wanted,
}


def matches(row: dict[str, Any], filter_: Filter) -> bool:
    """What Spark evaluates, here in Python."""
    if isinstance(filter_, Not):
        return not matches(row, filter_.child)
    if isinstance(filter_, IsNotNull):
        return row[filter_.attribute[0]] is not None
    return OPERATORS[type(filter_)](row[filter_.attribute[0]], filter_.value)  # type: ignore[attr-defined]


@pytest.fixture
def world(topics: Topics) -> Topics:
    """Two topics of two partitions, each of three files of two records, an hour apart."""
    for topic in ("t", "u"):
        topics.create(topic, 2)
        for partition in (0, 1):
            for file in range(3):
                first_us = START_US + file * HOUR_US
                topics.append(topic, partition, [b"a", b"b"], times_us=[first_us, first_us + 1])
    return topics


def reader_of(topics: Topics, *filters: Filter) -> PruningBatchReader:
    options = {"path": topics.root, "subscribe": "t,u"}
    found = batch_reader(options, spark_schema(include_headers=False))
    pushed = PruningBatchReader(found._settings)
    assert list(pushed.pushFilters(list(filters))) == list(filters), "Spark evaluates all of them"
    return pickle.loads(pickle.dumps(pushed))


def rows(reader: TxnLogBatchReader) -> list[dict[str, Any]]:
    return [
        row for task in reader.partitions() for got in reader.read(task) for row in got.to_pylist()
    ]


def files(reader: TxnLogBatchReader) -> int:
    """How many files its tasks would open."""
    return sum(len(found.files) for task in reader.partitions() for found in task.ranges)


NUMBERS = {
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 8),
    "timestamp": st.integers(-1, 3 * HOUR_US).map(lambda us: at(START_US + us))
    | st.sampled_from([at(START_US + n * HOUR_US + d) for n in range(3) for d in (-1, 0, 1, 2)]),
    "topic": st.sampled_from(["t", "u", "T"]),
}


@st.composite
def pushed(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(sorted(NUMBERS)))
    kind = draw(st.sampled_from(list(OPERATORS)))
    values = NUMBERS[name]
    if kind is In:
        found: Filter = In((name,), tuple(draw(st.lists(values | st.none(), max_size=3))))
    elif name == "topic" and kind not in (EqualTo, EqualNullSafe):
        found = EqualTo((name,), draw(values))
    else:
        found = kind((name,), draw(values | st.none()))  # type: ignore[call-arg]
    return Not(found) if draw(st.integers(0, 4)) == 0 else found


@given(data=st.data())
def test_no_matching_record_is_skipped(data: st.DataObject, tmp_path_factory: Any) -> None:
    """A filter must never change the result, whatever its form and values."""
    topics = _shared(tmp_path_factory)
    filters = data.draw(st.lists(pushed(), max_size=4))
    expected = [row for row in rows(reader_of(topics)) if all(matches(row, f) for f in filters)]
    got = [
        row for row in rows(reader_of(topics, *filters)) if all(matches(row, f) for f in filters)
    ]
    assert got == expected


_worlds: dict[str, Topics] = {}


def _shared(factory: Any) -> Topics:
    """One world for all examples: they only read."""
    if not _worlds:
        from txnlog.cluster import Cluster

        root = factory.mktemp("filters")
        made = Topics(Cluster.open(str(root), create=True))
        _worlds["one"] = world.__wrapped__(made) if hasattr(world, "__wrapped__") else made
    return _worlds["one"]


@pytest.mark.parametrize(
    ("filters", "opened"),
    [
        ([], 12),
        ([EqualTo(("topic",), "u")], 6),
        ([In(("topic",), ("u", "x"))], 6),
        ([EqualTo(("partition",), 1)], 6),
        ([EqualTo(("topic",), "t"), EqualTo(("partition",), 1)], 3),
        ([GreaterThan(("partition",), 1)], 0),
        ([GreaterThanOrEqual(("offset",), 4)], 4),
        ([GreaterThan(("offset",), 1), LessThan(("offset",), 4)], 4),
        ([In(("offset",), (2, 3))], 4),
        ([In(("offset",), (0, 9))], 12),
        ([GreaterThanOrEqual(("timestamp",), at(START_US + 2 * HOUR_US))], 4),
        ([LessThanOrEqual(("timestamp",), at(START_US))], 4),
        ([LessThan(("timestamp",), at(START_US))], 0),
        ([EqualTo(("timestamp",), datetime(2023, 11, 15))], 12),
        ([Not(EqualTo(("partition",), 1))], 12),
        ([EqualNullSafe(("partition",), None)], 12),
        ([IsNotNull(("key",)), EqualTo(("key",), b"k")], 12),
    ],
)
def test_files_without_matching_records_are_not_opened(
    world: Topics, filters: list[Filter], opened: int
) -> None:
    """Of an old, large topic only what a filter can match is read."""
    assert files(reader_of(world, *filters)) == opened


def test_offsets_are_cut_inside_a_file(world: Topics) -> None:
    """Records before and after the wanted ones are not sent to Spark."""
    found = rows(reader_of(world, EqualTo(("offset",), 3), EqualTo(("topic",), "t")))
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 3), (1, 3)]


def test_contradicting_filters_read_nothing(world: Topics) -> None:
    """The bounds of an empty list must not turn around."""
    assert rows(reader_of(world, In(("offset",), (1,)), EqualTo(("offset",), 2))) == []
    assert Pruning.of([In(("offset",), (1,)), EqualTo(("offset",), 2)]).numbers["offset"] == Bounds(
        low=2**63 - 1, high=-(2**63), values=frozenset()
    )


def test_without_the_setting_the_reader_has_no_push_filters(
    world: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses every read with such a reader while its setting is false (D119)."""
    make = partial(
        batch_reader,
        {"path": world.root, "subscribe": "t"},
        spark_schema(include_headers=False),
    )
    assert not filters_are_pushed()
    assert make().pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
    monkeypatch.setitem(batch.filters_are_pushed.__globals__["sys"].modules, PUSHDOWN_WORKER, batch)
    assert isinstance(make(), PruningBatchReader)


@pytest.mark.spark
@pytest.mark.parametrize("setting", ["true", "false"])
def test_spark_gives_the_same_rows_with_and_without_the_setting(
    spark: SparkSession, world: Topics, setting: str
) -> None:
    """Spark's own filters reach the reader, and its own form of their values is understood."""
    spark.conf.set(SETTING, setting)
    try:
        frame = spark.read.format("txnlog").option("subscribe", "t,u").load(world.root)
        hour = f"timestamp'{at(START_US + 2 * HOUR_US):%Y-%m-%d %H:%M:%S}'"
        late = frame.where(f"topic = 't' and partition in (1, 7) and timestamp >= {hour}")
        assert [(row.topic, row.partition, row.offset) for row in late.collect()] == [
            ("t", 1, 4),
            ("t", 1, 5),
        ]
        # A task per 12 files otherwise: the files of one partition are one task in any case.
        assert frame.where("offset < 0").count() == 0
        assert tasks(frame.where("offset < 0")) == (1 if setting == "true" else tasks(frame))
        assert json.dumps(frame.where("offset = 5").count()) == "4"
    finally:
        spark.conf.unset(SETTING)


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()
