"""Spark writes a Delta table of each feature while transactions of txnlog take part in it.

What Spark makes between a decision and its publication, and what it makes of the published files
afterwards: all rows, once, for Spark, delta-rs where it knows the features, and our own reader.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.storage.foreign_table import opened, publish, staged_part
from txnlog.errors import TableChangedError, TableFeatureError
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import AlreadyPublished, Published
from txnlog.storage.tables.enlisted_rows import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ALL = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableTypeWidening": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "3",
}
CHANGE_FEED = "delta.enableChangeDataFeed"
PLAIN = {"delta.enableDeletionVectors": "false"}
PARTITIONED = "PARTITIONED BY (day)"
CLUSTERED = "CLUSTER BY (id, day)"
FEATURES: dict[str, tuple[dict[str, str], str]] = {
    "plain": (PLAIN, PARTITIONED),
    "clustering": (PLAIN, CLUSTERED),
    **{
        name: ({**PLAIN, name: value}, PARTITIONED)
        for name, value in ALL.items()
        if name != "delta.checkpointInterval"
    },
    "all": (ALL, PARTITIONED),
    "all, clustered": (ALL, CLUSTERED),
}


class Table(NamedTuple):
    """A table of Spark's, with an id, a day, and a struct."""

    spark: SparkSession
    url: Path

    def sql(self, statement: str) -> list[Any]:
        """{} is the table."""
        return self.spark.sql(statement.replace("{}", f"delta.`{self.url}`")).collect()

    def insert(self, *ids: int, day: str = "mon") -> None:
        values = ", ".join(f"({n}, '{day}', named_struct('x', {n}))" for n in ids)
        self.sql(f"INSERT INTO {{}} (id, day, s) VALUES {values}")

    def ids(self) -> list[int]:
        """As Spark sees it; delta-rs and our reader see the same, or say that they cannot."""
        found = sorted(row.id for row in self.sql("SELECT id FROM {} WHERE s.x = id"))
        live = opened(ObjectStore.from_url(str(self.url), create=False))
        live.refresh_files()
        files = {unquote(f"{self.url}/{path}") for path in live.state.files or ()}
        frame = self.spark.read.format("delta").load(str(self.url))
        shown = {re.sub("^file:/+", "/", unquote(unquote(path))) for path in frame.inputFiles()}
        assert shown == {unquote(path) for path in files}
        mine = read_table(live, columns=["id"], filter=pc.field("s", "x") == pc.field("id"))
        assert sorted(mine["id"].to_pylist()) == found
        other = ids_of_delta_rs(self.url)
        assert other is None or other == found
        return found


def ids_of_delta_rs(url: Path) -> list[int] | None:
    """None where delta-rs refuses a feature by name, or reads nulls: under column mapping."""
    table = DeltaTable(url)
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        return None
    try:
        return sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())
    except Exception as error:
        if "eature" in str(error):
            return None
        raise


@pytest.fixture(autouse=True)
def few_tasks(spark: SparkSession) -> Iterator[None]:
    """VACUUM lists a folder in 10,000 tasks, and Delta reads each log in 50."""
    settings = {
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, former in before.items():
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


def create(spark: SparkSession, url: Path, features: str) -> Table:
    """Rows 1 to 4, of which 3 was deleted and 4 updated, and some more commits."""
    properties, layout = FEATURES[features]
    shown = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    table = Table(spark, url)
    table.sql(
        "CREATE TABLE {} (id BIGINT NOT NULL, day STRING, s STRUCT<x: BIGINT>, note STRING) "
        f"USING delta {layout} TBLPROPERTIES ({shown})"
    )
    table.insert(1, 2)
    table.insert(3, 4, day="tue")
    table.sql("DELETE FROM {} WHERE id = 3")
    table.sql("UPDATE {} SET note = 'x' WHERE id = 4")
    return table


def rows(*ids: int, day: str = "mon") -> pa.Table:
    """In another order than the table's columns, without those that may be null, and narrower."""
    days = pa.array([day] * len(ids))
    numbers = pa.array(ids, pa.int32())
    return pa.table({"s": pa.array([{"x": n} for n in ids]), "day": days, "id": numbers})


def vacuum(table: Table) -> None:
    table.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    table.sql("VACUUM {} RETAIN 0 HOURS")


def optimize(table: Table) -> None:
    """And VACUUM, unless it would take the files of changes that the test reads in the end."""
    table.sql("OPTIMIZE {}")
    if table.sql("DESCRIBE DETAIL {}")[0].properties.get(CHANGE_FEED) != "true":
        vacuum(table)


CHANGES: dict[str, Callable[[Table], object]] = {
    "insert": lambda table: table.insert(5),
    "optimize": optimize,
    "delete": lambda table: table.sql("DELETE FROM {} WHERE id = 1"),
    "add column": lambda table: table.sql("ALTER TABLE {} ADD COLUMNS (more DATE)"),
    "add field": lambda table: table.sql("ALTER TABLE {} ADD COLUMNS (s.y STRING)"),
    "properties": lambda table: table.sql("ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')"),
}


@pytest.mark.parametrize("features", FEATURES)
def test_parts_between_changes_of_spark(spark: SparkSession, tmp_path: Path, features: str) -> None:
    """Each change between decision and publication; afterwards DML on the published files."""
    table = create(spark, tmp_path / "t", features)
    wanted = {1, 2, 4}
    for epoch, (name, change) in enumerate(CHANGES.items()):
        first = 100 + 10 * epoch
        staged = staged_part(table.url, rows(first, first + 1), epoch=epoch)
        change(table)
        assert isinstance(publish(staged), Published), name
        wanted |= {first, first + 1} | {"insert": {5}}.get(name, set())
        wanted -= {"delete": {1}}.get(name, set())
        assert table.ids() == sorted(wanted), name
    table.sql("DELETE FROM {} WHERE id IN (100, 111)")
    table.sql("UPDATE {} SET note = 'seen' WHERE id = 110")
    table.sql("MERGE INTO {} t USING (SELECT 120L AS id) u ON t.id = u.id WHEN MATCHED THEN DELETE")
    wanted -= {100, 111, 120}
    assert table.ids() == sorted(wanted)
    check_metadata(table)
    if "PARTITIONED" in FEATURES[features][1]:
        part = staged_part(
            table.url, rows(900), mode="overwrite", partitions=[{"day": "mon"}], epoch=50
        )
        table.sql("DELETE FROM {} WHERE id = 101")
        publish(part)
        wanted = {4, 900}
        assert table.ids() == sorted(wanted)
    staged = staged_part(table.url, rows(901, day="wed"), mode="overwrite", epoch=51)
    optimize(table)
    publish(staged)
    assert table.ids() == [901]
    optimize(table)
    assert isinstance(publish(staged), AlreadyPublished)
    assert table.ids() == [901]
    check_metadata(table)


def check_metadata(table: Table) -> None:
    """Row ids are unique, times of commits increase, changes are what was changed."""
    configuration = table.sql("DESCRIBE DETAIL {}")[0].properties
    history = table.sql("DESCRIBE HISTORY {}")
    if configuration.get("delta.enableInCommitTimestamps") == "true":
        times = [row.timestamp for row in sorted(history, key=lambda row: row.version)]
        assert times == sorted(set(times))
    if configuration.get("delta.enableRowTracking") == "true":
        found = [row.row_id for row in table.sql("SELECT _metadata.row_id FROM {}")]
        assert None not in found
        assert len(set(found)) == len(found)
    if configuration.get(CHANGE_FEED) == "true":
        changes = (
            table.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", 1)
            .load(str(table.url))
            .collect()
        )
        live: dict[int, int] = {}
        for row in changes:
            step = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
            live[row.id] = live.get(row.id, 0) + step[row._change_type]
        assert sorted(number for number, count in live.items() if count) == table.ids()
        assert set(live.values()) <= {0, 1}


def test_renamed_and_dropped_columns_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    """Column mapping: by physical names, which do not change."""
    table = create(spark, tmp_path / "t", "all")
    staged = staged_part(table.url, rows(7))
    table.sql("ALTER TABLE {} RENAME COLUMN day TO weekday")
    table.sql("ALTER TABLE {} RENAME COLUMN s.x TO z")
    table.sql("ALTER TABLE {} DROP COLUMN note")
    table.sql("ALTER TABLE {} ADD COLUMNS (note DATE)")
    assert isinstance(publish(staged), Published)
    found = table.sql("SELECT id, weekday, s.z, note FROM {} WHERE id = 7")
    assert [tuple(row) for row in found] == [(7, "mon", 7, None)]


def test_column_mapping_that_is_switched_on_is_followed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The files have logical names, which are the physical ones then."""
    table = create(spark, tmp_path / "t", "plain")
    staged = staged_part(table.url, rows(7))
    table.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    table.sql("ALTER TABLE {} DROP COLUMN note")
    publish(staged)
    assert table.ids() == [1, 2, 4, 7]


def test_widened_column_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t")
    table.sql(
        "CREATE TABLE {} (id INT, d DATE) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    staged = staged_part(table.url, pa.table({"id": pa.array([7], pa.int32())}))
    table.sql("ALTER TABLE {} ALTER COLUMN id TYPE BIGINT")
    publish(staged)
    assert [row.id for row in table.sql("SELECT id FROM {}")] == [7]


def test_constraints_are_for_engines(spark: SparkSession, tmp_path: Path) -> None:
    """Refused before the decision; one that comes after it blocks."""
    table = create(spark, tmp_path / "t", "all")
    staged = staged_part(table.url, rows(7))
    table.sql("ALTER TABLE {} ADD CONSTRAINT small CHECK (id < 5)")
    with pytest.raises(TableChangedError, match="new rule: id < 5"):
        publish(staged)
    with pytest.raises(TableFeatureError, match=r"'delta\.constraints\.small'"):
        staged_part(table.url, rows(3))
    table.sql("ALTER TABLE {} DROP CONSTRAINT small")
    assert isinstance(publish(staged), Published)
    assert table.ids() == [1, 2, 4, 7]


def test_append_only_table_takes_appends(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t", "delta.enableRowTracking")
    append = staged_part(table.url, rows(7))
    overwrite = staged_part(table.url, rows(8), mode="overwrite", epoch=1)
    table.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    publish(append)
    with pytest.raises(TableChangedError, match="append-only"):
        publish(overwrite)
    assert table.ids() == [1, 2, 4, 7]


def test_stream_reads_published_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    """A foreign streaming query over the table; an overwrite ends it, as Delta's own does."""
    table = create(spark, tmp_path / "t", "all")
    version = opened(ObjectStore.from_url(str(table.url), create=False)).state.version
    publish(staged_part(table.url, rows(7)))
    table.insert(8)
    publish(staged_part(table.url, rows(9), epoch=1))
    frame = (
        spark.readStream.format("delta").option("startingVersion", version + 1).load(str(table.url))
    )
    query = (
        frame.writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "chk"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination(120)
    found = spark.read.format("delta").load(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in found) == [7, 8, 9]


def test_values_are_the_same_for_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Types, partition values, and filters that skip files by their statistics."""
    zone = dt.timezone.utc
    values = {
        "i": [1, None, -5],
        "t": ["x" * 50, None, "a"],
        "f": [0.5, None, float("nan")],
        "d": [dt.date(2026, 11, 26), None, dt.date(1999, 1, 1)],
        "at": [dt.datetime(2026, 11, 26, 1, 2, 3, 456789, zone), None, None],
        "ntz": [dt.datetime(2026, 11, 26, 1, 2, 3, 456789), None, None],
        "m": [Decimal("1.50"), None, Decimal("-2.25")],
        "b": [b"\0x", None, b""],
        "l": [[1, None], None, []],
        "k": [[("a", 1)], None, []],
    }
    kinds = {"k": pa.map_(pa.string(), pa.int64())}
    data = pa.table({name: pa.array(v, kinds.get(name)) for name, v in values.items()})
    moments = [
        dt.datetime(2026, 11, 26, 1, 2, 3, 4, zone),
        None,
        dt.datetime(2026, 1, 1, tzinfo=zone),
    ]
    data = data.append_column("p", pa.array(moments, pa.timestamp("us", "UTC")))
    data = data.append_column("q", pa.array(["a b/%", "", "é=1"]))
    table = Table(spark, tmp_path / "t")
    table.sql(
        "CREATE TABLE {} (i INT, t STRING, f DOUBLE, d DATE, at TIMESTAMP, ntz TIMESTAMP_NTZ, "
        "m DECIMAL(10, 2), b BINARY, l ARRAY<INT>, k MAP<STRING, INT>, p TIMESTAMP, q STRING) "
        "USING delta PARTITIONED BY (p, q)"
    )
    publish(staged_part(table.url, data))
    frame = spark.read.format("delta").load(str(table.url))
    found = frame.selectExpr("i", "m", "cast(p AS STRING) p", "q", "hex(b) b", "l", "k").collect()
    assert {row.i: tuple(row)[1:] for row in found} == {
        1: (Decimal("1.50"), "2026-11-26 01:02:03.000004", "a b/%", "0078", [1, None], {"a": 1}),
        None: (None,) * 6,
        -5: (Decimal("-2.25"), "2026-01-01 00:00:00", "é=1", "", [], {}),
    }
    for condition, count in {
        "i = 1": 1,
        "t >= 'xxxx'": 1,
        f"t = '{'x' * 50}'": 1,
        "d < DATE'2000-01-01'": 1,
        "at = TIMESTAMP'2026-11-26 01:02:03.456789Z'": 1,
        "ntz > TIMESTAMP_NTZ'2026-11-26 01:02:03.456'": 1,
        "m = 1.5": 1,
        "f = double('NaN')": 1,
        "f > 1": 1,
        "i IS NULL": 1,
        "p = TIMESTAMP'2026-11-26 01:02:03.000004Z'": 1,
        "p = TIMESTAMP'2026-01-01 00:00:00Z'": 1,
        "q = 'é=1'": 1,
        "q IS NULL": 1,
    }.items():
        assert frame.where(condition).count() == count, condition
