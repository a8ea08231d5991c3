"""MERGE, UPDATE and DELETE of Spark in a shallow clone, adopted as one commit of the table.

Of each Delta feature, alone and together; as Spark, delta-rs and our own reader see the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_sink.table_staging import StagedWrites
from tests.interop.test_enlisted_spark import (
    FEATURES,
    Table,
    check_metadata,
    create,
    few_tasks,
    optimize,
)
from tests.storage.foreign_table import decided, opened, yes
from txnlog.admin.client import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import TableDataError
from txnlog.protocol.enlisted.parts import Part
from txnlog.settings.config import parse_config
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_log import Published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["few_tasks"]

pytestmark = [pytest.mark.spark, pytest.mark.soak]


class Merges:
    """Changes of one table, as a transaction stages them."""

    def __init__(self, table: Table, root: Path) -> None:
        self.table, self.root = table, root
        self.cluster = Cluster.open(str(root), create=True)
        admin = AdminClient({"txnlog.root": str(root)})
        admin.enlist_tables({"t": str(table.url)})["t"].result()
        self.epoch = 0

    def stage(
        self, statement: str, partitions: Any = None, *, more: str | None = None
    ) -> Part | None:
        """{} is the table."""
        spark = self.table.spark
        options = parse_config({"txnlog.root": str(self.root)}, "writeStream")
        writes = StagedWrites(self.cluster, options, spark, "t", "merge", partitions)

        def change(place: str) -> None:
            for each in filter(None, (statement, more)):
                spark.sql(each.replace("{}", f"delta.`{place}`"))

        try:
            writes.merge(change)
            found = writes.change()
        finally:
            writes.close()
        if found is None:
            return None
        # Any process can read what was decided.
        log = opened(ObjectStore.from_url(str(self.table.url), create=False))
        return log.read_part(log.put_part(found.part, cluster_id=self.cluster.cluster_id))

    def commit(self, part: Part | None) -> str | None:
        """Put the change as the next commit, unless what this returns prevents it."""
        assert part is not None
        log = opened(ObjectStore.from_url(str(self.table.url), create=False))
        why = log.conflict(part) or None
        if why is None:
            self.epoch += 1
            found = log.publish(part, decided(log, self.epoch), is_still_decided=yes)
            assert isinstance(found, Published)
        return why

    def run(self, statement: str, partitions: Any = None) -> None:
        assert self.commit(self.stage(statement, partitions)) is None


MERGE = """
MERGE INTO {} t USING (SELECT 2L AS id UNION ALL SELECT 50L UNION ALL SELECT 1L) u ON t.id = u.id
WHEN MATCHED AND t.id = 1 THEN DELETE
WHEN MATCHED THEN UPDATE SET note = 'merged'
WHEN NOT MATCHED THEN INSERT (id, day, s) VALUES (u.id, 'wed', named_struct('x', u.id))
"""


@pytest.mark.parametrize("features", FEATURES)
def test_changes_of_each_feature(spark: SparkSession, tmp_path: Path, features: str) -> None:
    table = create(spark, tmp_path / "a folder" / "t", features)
    merges = Merges(table, tmp_path / "root")
    ids_before = row_ids(table)
    merges.run(MERGE)
    assert table.ids() == [2, 4, 50]
    check_metadata(table)
    merges.run("UPDATE {} SET note = 'updated' WHERE id = 4")
    merges.run("DELETE FROM {} WHERE id = 50")
    assert merges.stage("DELETE FROM {} WHERE id = 99") is None
    assert table.ids() == [2, 4]
    check_metadata(table)
    notes = {row.id: row.note for row in table.sql("SELECT id, note FROM {}")}
    assert notes == {2: "merged", 4: "updated"}
    after = row_ids(table)
    assert {key: ids_before[key] for key in after} == after
    # Spark goes on with the table.
    table.insert(60, 61, 62, 63)
    merges.run("DELETE FROM {} WHERE id = 61")
    table.sql("DELETE FROM {} WHERE id = 62")
    merges.run("UPDATE {} SET note = 'z' WHERE id IN (60, 2)")
    optimize(table)
    merges.run(
        "INSERT INTO {} REPLACE WHERE day = 'mon' SELECT 70, 'mon', named_struct('x', 70), 'y'"
    )
    assert table.ids() == [4, 70]
    check_metadata(table)
    operations = [row.operation for row in table.sql("DESCRIBE HISTORY {}")]
    assert {"MERGE", "UPDATE", "DELETE"} <= set(operations)


def row_ids(table: Table) -> dict[int, int]:
    """A row keeps its id while it is updated."""
    configuration = table.sql("DESCRIBE DETAIL {}")[0].properties
    if configuration.get("delta.enableRowTracking") != "true":
        return {}
    found = table.sql("SELECT id, _metadata.row_id AS row_id FROM {}")
    return {row.id: row.row_id for row in found}


MONDAY = [{"day": "mon"}]
FOREIGN: dict[str, tuple[Callable[[Table, int], object], str | None, str | None]] = {
    # What another job does, and why it is in conflict with a change of the table, of monday's rows.
    "append": (lambda t, n: t.insert(300 + n), "changed rows", "changed rows"),
    "append elsewhere": (lambda t, n: t.insert(300 + n, day="wed"), "changed rows", None),
    "optimize": (
        lambda t, n: t.sql("OPTIMIZE {} WHERE day = 'mon'"),
        "changed the file",
        "changed the file",
    ),
    "optimize elsewhere": (lambda t, n: t.sql("OPTIMIZE {} WHERE day = 'tue'"), None, None),
    "delete": (lambda t, n: t.sql(f"DELETE FROM {{}} WHERE id = {100 + n}"), "changed", "changed"),
    "delete elsewhere": (
        lambda t, n: t.sql(f"DELETE FROM {{}} WHERE id = {200 + n}"),
        "changed rows",
        None,
    ),
    "properties": (
        lambda t, n: t.sql(f"ALTER TABLE {{}} SET TBLPROPERTIES ('a' = '{n}')"),
        "the schema",
        "the schema",
    ),
}


@pytest.mark.parametrize("features", ["plain", "all"])
def test_change_after_those_of_others(spark: SparkSession, tmp_path: Path, features: str) -> None:
    """Never overwrites one of them: it is in conflict, or both are there (R78)."""
    table = create(spark, tmp_path / "t", features)
    merges = Merges(table, tmp_path / "root")
    numbers = itertools.count()
    for name, (other, whole, monday) in FOREIGN.items():
        for partitions, why in ((None, whole), (MONDAY, monday)):
            n = next(numbers)
            table.insert(100 + n)
            table.insert(200 + n, day="tue")
            note = f"UPDATE {{}} SET note = 'mine {n}' WHERE id IN (1, {100 + n})"
            staged = merges.stage(note, partitions)
            other(table, n)
            before = table.sql("SELECT id FROM {} ORDER BY id")
            found = merges.commit(staged)
            assert (found is None) == (why is None), (name, found)
            assert why is None or (found is not None and why in found)
            assert table.sql("SELECT id FROM {} ORDER BY id") == before
            mine = table.sql(f"SELECT count(*) AS c FROM {{}} WHERE note = 'mine {n}'")[0].c
            assert mine == (2 if why is None else 0), name
    table.ids()
    check_metadata(table)


def test_only_one_change_is_adopted(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t", "delta.enableChangeDataFeed")
    merges = Merges(table, tmp_path / "root")
    with pytest.raises(TableDataError, match="these are several: DELETE, UPDATE"):
        merges.stage("DELETE FROM {} WHERE id = 1", more="UPDATE {} SET note = 'x' WHERE id = 2")
    with pytest.raises(TableDataError, match="in no partition to merge"):
        merges.stage("UPDATE {} SET day = 'sun' WHERE id = 1", MONDAY)
    # Rows of other partitions are not there.
    assert merges.stage("DELETE FROM {} WHERE id = 4", MONDAY) is None


def test_constraints_and_computed_columns_are_those_of_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path / "t")
    table.sql(
        "CREATE TABLE {} (id BIGINT NOT NULL, twice BIGINT GENERATED ALWAYS AS (id * 2), "
        "note STRING DEFAULT 'none') USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    table.sql("ALTER TABLE {} ADD CONSTRAINT small CHECK (id < 100)")
    table.sql("INSERT INTO {} (id) VALUES (1), (2)")
    merges = Merges(table, tmp_path / "root")
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT"):
        merges.stage("UPDATE {} SET id = 500 WHERE id = 1")
    merges.run(
        "MERGE INTO {} t USING (SELECT 2L AS id UNION ALL SELECT 3L) u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET id = 20 WHEN NOT MATCHED THEN INSERT (id) VALUES (u.id)"
    )
    found = table.sql("SELECT id, twice, note FROM {} ORDER BY id")
    assert [tuple(row) for row in found] == [(1, 2, "none"), (3, 6, "none"), (20, 40, "none")]
