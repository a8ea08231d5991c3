"""The rows of Delta tables that other tools write, read to Arrow, as of now or of a snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    UnknownTableError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "silver.t"
NOON = dt.datetime(2026, 11, 27, 12, 0, 0, 250_000)

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "b/c=d %é", None, "", "null"]),
    "long": (pa.int64(), [-1, 2**62, None]),
    "byte": (pa.int8(), [-128, 127, None]),
    "double": (pa.float64(), [0.5, -0.0, float("inf"), float("nan"), 1e10, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 11, 27), None]),
    "decimal": (pa.decimal128(10, 3), [Decimal("1.500"), Decimal("0.001"), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=dt.timezone.utc), None]),
    "timestamp_ntz": (pa.timestamp("us"), [NOON, NOON.replace(microsecond=0), None]),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.open(str(tmp_path / "lake"), create=True)


def enlisted(cluster: Cluster, url: Path, rows: pa.Table, **options: Any) -> Path:
    write_deltalake(url, rows, **options)
    AdminClient({}, cluster=cluster).enlist_tables({NAME: str(url)})[NAME].result()
    return url


def shown(rows: pa.Table) -> list[str]:
    """NaN is equal to itself as text."""
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_partition_columns_are_those_that_were_written(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    """The same, in the same type, from the log as from a file; "" is null there."""
    arrow, values = VALUES[kind]
    rows = pa.table({"p": pa.array(values, arrow), "v": pa.array(values, arrow)})
    enlisted(cluster, tmp_path / "t", rows, partition_by=["p"])
    found = cluster.read(NAME)
    assert found.schema == rows.schema
    wanted = [{**row, "p": None if row["p"] == "" else row["p"]} for row in rows.to_pylist()]
    assert shown(found) == sorted(map(str, wanted))
    for value in values:
        condition = pc.field("p").is_null() if value in (None, "") else pc.field("p") == value
        left = [row for row in wanted if row["p"] == (None if value == "" else value)]
        assert shown(cluster.read(NAME, filter=condition)) == sorted(map(str, left))


def test_filter_leaves_out_files_of_other_partitions(cluster: Cluster, tmp_path: Path) -> None:
    """They are not opened: here they are gone."""
    days = pa.table({"day": ["mon", "tue", "tue"], "id": [1, 2, 3]})
    url = enlisted(cluster, tmp_path / "t", days, partition_by=["day"])
    for path in url.glob("day=mon/*.parquet"):
        path.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"day=mon/.*\.parquet"):
        cluster.read(NAME)
    condition = (pc.field("day") == "tue") & (pc.field("id") > 2)
    found = cluster.read(NAME, columns=["id"], filter=condition)
    assert found.to_pydict() == {"id": [3]}
    assert cluster.read(NAME, columns=["day"], filter=pc.field("day") != "mon").num_rows == 2


def test_columns_and_filters_that_do_not_fit_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Before a file is opened."""
    at = pa.array([None], pa.timestamp("us", "UTC"))
    enlisted(cluster, tmp_path / "t", pa.table({"id": [1], "at": at}))
    with pytest.raises(ConfigError, match="There is no column 'x'; there are: id"):
        cluster.read(NAME, columns=["x"])
    with pytest.raises(ConfigError, match="columns is empty"):
        cluster.read(NAME, columns=[])
    for wrong in (pc.field("x") == 1, pc.field("at") > dt.datetime(2026, 11, 27)):
        with pytest.raises(ConfigError, match="does not fit"):
            cluster.read(NAME, filter=wrong)
    with pytest.raises(ConfigError, match="by its number"):
        cluster.read(NAME, columns=["at"], filter=pc.field(0) == 1)
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.read("other")


def test_columns_that_a_file_does_not_have_are_null(cluster: Cluster, tmp_path: Path) -> None:
    """Added since, also below a struct."""
    one = pa.array([{"x": 1}, None])
    url = enlisted(cluster, tmp_path / "t", pa.table({"id": [1, 2], "s": one}))
    DeltaTable(url).alter.add_columns([Field("note", PrimitiveType("string"))])
    more = pa.table({"id": [3], "s": pa.array([{"x": 2, "y": "z"}]), "note": ["n"]})
    write_deltalake(url, more, mode="append", schema_mode="merge")
    assert sorted(cluster.read(NAME).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "s": {"x": 1, "y": None}, "note": None},
        {"id": 2, "s": None, "note": None},
        {"id": 3, "s": {"x": 2, "y": "z"}, "note": "n"},
    ]


CHANGES: dict[str, Callable[[Path], object]] = {
    "append": lambda url: write_deltalake(url, pa.table({"id": [9]}), mode="append"),
    "overwrite": lambda url: write_deltalake(url, pa.table({"id": [9]}), mode="overwrite"),
    "delete": lambda url: DeltaTable(url).delete("id = 1"),
    "compact": lambda url: DeltaTable(url).optimize.compact(),
    "checkpoint": lambda url: DeltaTable(url).create_checkpoint(),
    "alter": lambda url: DeltaTable(url).alter.add_columns([Field("x", PrimitiveType("string"))]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_snapshot_shows_the_table_as_it_was(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Whatever other tools do to it, until VACUUM has deleted its files."""
    url = enlisted(cluster, tmp_path / "t", pa.table({"id": [1]}))
    write_deltalake(url, pa.table({"id": [2]}), mode="append")
    snapshot = cluster.snapshot("nightly")
    for _ in range(3):
        CHANGES[name](url)
    for one in (snapshot, "nightly"):
        assert shown(cluster.read(NAME, snapshot=one)) == ["{'id': 1}", "{'id': 2}"]
    assert shown(cluster.read(NAME)) == shown(pa.table(DeltaTable(url).to_pyarrow_table()))


def test_snapshot_that_the_table_no_longer_has_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """Its files were vacuumed, its log cleaned up, or it was made again."""
    url = enlisted(cluster, tmp_path / "t", pa.table({"id": [1]}))
    snapshot = cluster.snapshot()
    write_deltalake(url, pa.table({"id": [2]}), mode="overwrite")
    DeltaTable(url).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SnapshotNotFoundError, match="version 0"):
        cluster.read(NAME, snapshot=snapshot)
    DeltaTable(url).create_checkpoint()
    (url / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(SnapshotNotFoundError, match="version 0"):
        cluster.read(NAME, snapshot=snapshot)
    for path in (url / "_delta_log").iterdir():
        path.unlink()
    write_deltalake(url, pa.table({"id": [3]}))
    with pytest.raises(SnapshotNotFoundError, match="version 0"):
        cluster.read(NAME, snapshot=snapshot)
    with pytest.raises(UnknownTableError, match="made again"):
        cluster.read(NAME)
    assert "made again" in cluster.snapshot().missing[NAME]
    with pytest.raises(UnknownTableError, match="made again"):
        cluster.read(NAME, snapshot=cluster.snapshot())


def test_columns_of_a_file_that_are_spelled_otherwise_are_not_null(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Some engines would take them for the table's, others not: an error says so."""
    url = enlisted(cluster, tmp_path / "t", pa.table({"id": [1]}))
    [path] = url.glob("*.parquet")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"Id": [1]}), sink)
    size = path.stat().st_size
    other = sink.getvalue().to_pybytes()
    path.write_bytes(other)
    [log] = (url / "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace(f'"size":{size}', f'"size":{len(other)}'))
    with pytest.raises(CorruptLogError, match="it has a column 'Id'"):
        cluster.read(NAME)


def test_damaged_file_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Not what pyarrow says alone."""
    url = enlisted(cluster, tmp_path / "t", pa.table({"id": [1]}))
    [path] = url.glob("*.parquet")
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CorruptLogError, match=path.name):
        cluster.read(NAME)


# -- tables of Spark -------------------------------------------------------------------------------

FEATURES = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
}
TYPES = {
    "b": "BYTE",
    "i": "INT",
    "f": "FLOAT",
    "m": "DECIMAL(8, 2)",
    "d": "DATE",
    "t": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "x": "BINARY",
    "o": "BOOLEAN",
    "a": "ARRAY<STRUCT<v: INT>>",
    "h": "MAP<STRING, INT>",
    "s": "STRUCT<x: INT, y: STRING>",
}
ROW = (
    "1Y, 7, 0.5, 1.25, DATE'2026-11-27', TIMESTAMP'2026-11-27 12:00:00.25Z', "
    "TIMESTAMP_NTZ'2026-11-27 12:00:00', X'00FF', true, array(named_struct('v', 1), null), "
    "map('k', 2), named_struct('x', 3, 'y', 'z')"
)


@pytest.mark.spark
@pytest.mark.soak
def test_rows_of_a_table_of_spark_are_those_that_spark_reads(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Deletion vectors, renamed, dropped and widened columns, all types, partitions of two."""
    url = tmp_path / "t"

    def sql(statement: str) -> list[Any]:
        return spark.sql(statement.replace("{}", f"delta.`{url}`")).collect()

    properties = ", ".join(f"'{name}' = '{value}'" for name, value in FEATURES.items())
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    sql(
        f"CREATE TABLE {{}} (id BIGINT, day DATE, at TIMESTAMP, {columns}) USING delta "
        f"PARTITIONED BY (day, at) TBLPROPERTIES ({properties})"
    )
    nothing = ", ".join(["null"] * (len(TYPES) + 2))
    places = "DATE'2026-11-27', TIMESTAMP'2026-11-27 00:00:00.5Z'"
    sql(
        f"INSERT INTO {{}} SELECT id, {places}, {ROW} FROM range(0, 5000, 1, 1) "
        f"UNION ALL SELECT -1, {nothing}"
    )
    sql("DELETE FROM {} WHERE id % 3 = 1 OR id BETWEEN 1000 AND 2000")
    sql("DELETE FROM {} WHERE id = 4998")
    sql("ALTER TABLE {} RENAME COLUMN i TO renamed")
    sql("ALTER TABLE {} RENAME COLUMN s.x TO z")
    sql("ALTER TABLE {} DROP COLUMN f")
    sql("ALTER TABLE {} DROP COLUMN s.y")
    sql("ALTER TABLE {} ALTER COLUMN b TYPE INT")
    sql("ALTER TABLE {} ADD COLUMNS (f STRING)")
    AdminClient({}, cluster=cluster).enlist_tables({NAME: str(url)})[NAME].result()
    frame = spark.read.format("delta").load(str(url))
    found = cluster.read(NAME)
    assert found.column_names == frame.columns
    wanted = frame.toArrow()
    assert found.cast(wanted.schema).sort_by("id").equals(wanted.sort_by("id"))
    assert found.num_rows > 2000
    some = cluster.read(NAME, columns=["id"], filter=pc.field("day").is_null())
    assert some.to_pydict() == {"id": [-1]}
