"""CREATE TABLE ... USING txnlog: a name in the catalog for a topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_source.conftest import Topics
from txnlog.settings.options import TABLE_PROPERTIES, parse_options

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark: SparkSession, topics: Topics) -> Iterator[str]:
    topics.create("letters", 2)
    topics.append("letters", 0, [b"a", b"b"])
    topics.append("letters", 1, [b"c"])
    options = f"path '{topics.root}', subscribe 'letters'"
    spark.sql(f"CREATE TABLE letters USING txnlog OPTIONS ({options})")
    yield "letters"
    spark.sql("DROP TABLE IF EXISTS letters")


def test_a_table_is_read_by_its_name(spark: SparkSession, table: str) -> None:
    """The catalog adds its own properties to the options, which are no options of txnlog."""
    assert spark.read.table(table).count() == 3
    (row,) = spark.sql(f"SELECT string(value) v FROM {table} WHERE partition = 1").collect()
    assert row.v == "c"


def test_a_table_shows_what_was_written_since(
    spark: SparkSession, table: str, topics: Topics
) -> None:
    """Unlike a view, a table is planned at each use."""
    assert spark.read.table(table).count() == 3
    topics.append("letters", 1, [b"d"])
    assert spark.read.table(table).count() == 4


def test_a_table_is_the_source_of_a_stream(spark: SparkSession, table: str, tmp_path: Path) -> None:
    """spark.readStream.table, with options of the stream."""
    frame = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = frame.writeStream.format("memory").queryName("letters_seen")
    query = query.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    running = query.start()
    assert running.awaitTermination(120)
    assert spark.table("letters_seen").count() == 3


def test_a_dropped_table_leaves_the_topic(spark: SparkSession, table: str, topics: Topics) -> None:
    """DROP TABLE must not delete the records: the table is a name for them."""
    spark.sql(f"DROP TABLE {table}")
    reader = spark.read.format("txnlog").option("subscribe", "letters")
    assert reader.load(topics.root).count() == 3


def test_properties_of_the_catalog_are_no_options(topics: Topics) -> None:
    """All that Spark may add, in the operations that a table is used for."""
    given = {"path": topics.root, "subscribe": "t", **dict.fromkeys(TABLE_PROPERTIES, "x")}
    assert dict(parse_options(given, "read").values) == {"subscribe": "t"}
    assert dict(parse_options(given, "readStream").values) == {"subscribe": "t"}
