"""Batch reads and views of a snapshot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_source.batch import batch_reader
from spark_source.schema import spark_schema
from spark_source.settings import source_settings
from spark_source.sql import CONSUMER_OFFSETS, create_views, read_committed
from tests.spark_source.test_batch_reader import reader_of, values
from txnlog.admin import AdminClient
from txnlog.errors import (
    ConfigError,
    SnapshotNotFoundError,
    UnknownTableError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.snapshots import Snapshot, TopicVersion


@pytest.fixture
def kept(topics):
    """Topic t with a, an open b and c in snapshot `kept`, which a group has read up to 2; then
    more, and compaction of what was there."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a"])
    opened = topics.append("t", 0, [b"b"], status="ongoing")
    topics.append("t", 0, [b"c"])
    topics.commit_offsets("g", {"t": {0: 2, 1: 0}})
    topics.cluster.snapshot("kept")
    topics.settle("t", opened, "committed")
    topics.commit_offsets("g", {"t": {0: 3, 1: 0}})
    topics.append("t", 1, [b"d"])
    topics.create("later", 1)
    return topics


def test_batch_reads_the_topics_as_of_a_snapshot(kept) -> None:
    """All that it shows: also above a transaction that was open then."""
    assert values(reader_of(kept, snapshot="kept")) == [b"a", b"c"]
    assert values(reader_of(kept)) == [b"a", b"b", b"c", b"d"]
    assert values(reader_of(kept, snapshot="kept", endingOffsets='{"t":{"0":2,"1":0}}')) == [b"a"]
    committed = {"startingOffsets": "committed", "group.id": "g"}
    assert values(reader_of(kept, snapshot="kept", **committed)) == [b"c"]
    assert values(reader_of(kept, **committed)) == [b"d"]


def test_batch_of_a_pattern_reads_the_topics_of_the_snapshot(kept) -> None:
    """Topics that were created since are not in it."""
    options = {"path": kept.root, "subscribePattern": ".*", "snapshot": "kept"}
    assert values(batch_reader(options, spark_schema(include_headers=False))) == [b"a", b"c"]


def test_what_a_snapshot_does_not_have_is_an_error(kept) -> None:
    """No name, no such topic in it."""
    with pytest.raises(SnapshotNotFoundError, match="there are: kept"):
        values(reader_of(kept, snapshot="other"))
    with pytest.raises(UnknownTopicOrPartitionError, match="in the snapshot"):
        values(reader_of(kept, snapshot="kept", subscribe="later"))


def test_stream_of_a_snapshot_is_refused() -> None:
    """It has no end to wait at."""
    with pytest.raises(ConfigError, match=r"snapshot is not supported as .*spark\.read\."):
        source_settings({"path": "/r", "subscribe": "t", "snapshot": "n"}, "readStream")


@pytest.mark.spark
def test_views_show_the_snapshot(spark: SparkSession, kept) -> None:
    """By Spark's Delta reader, at its versions and without what it leaves out."""
    views = create_views(spark, kept.root, prefix="s_", snapshot="kept")
    ask = "SELECT cast(value AS string) FROM s_t ORDER BY 1"
    assert [row[0] for row in spark.sql(ask).collect()] == ["a", "c"]
    offsets = spark.sql(f"SELECT * FROM `s_{CONSUMER_OFFSETS}` ORDER BY Partition").collect()
    assert [tuple(row) for row in offsets] == [("g", "t", 0, 2), ("g", "t", 1, 0)]
    assert set(views.names) == {"s_t", f"s_{CONSUMER_OFFSETS}"}
    views.drop()
    version = kept.cluster.topic("t").log.version
    one = TopicVersion(version=version, excluded=(ProducerIdAndEpoch(7, 0),))
    snapshot = Snapshot(cluster_id=kept.cluster.cluster_id, at_ms=0, topics={"t": one})
    views = create_views(spark, kept.root, snapshot=snapshot)
    ask = "SELECT cast(value AS string) FROM t ORDER BY 1"
    assert [row[0] for row in spark.sql(ask).collect()] == ["a", "c", "d"]
    views.drop()


@pytest.mark.spark
def test_views_show_enlisted_tables_of_the_snapshot(
    spark: SparkSession, topics, tmp_path, caplog
) -> None:
    """At their versions, whatever was committed since; `topics` selects among both. `refresh` finds
    the name again.
    """
    topics.create("t", 1)
    url = str(tmp_path / "silver")
    write_deltalake(url, pa.table({"id": [1]}))
    admin = AdminClient({}, cluster=topics.cluster)
    admin.enlist_tables({"silver.ids": url})["silver.ids"].result()
    topics.cluster.snapshot("kept")
    write_deltalake(url, pa.table({"id": [2]}), mode="overwrite")
    views = create_views(spark, topics.root, snapshot="kept")
    assert [row.id for row in spark.sql("SELECT id FROM `silver.ids`").collect()] == [1]
    assert {"t", "silver.ids"} < set(views.names)
    topics.cluster.drop_snapshot("kept")
    with pytest.raises(SnapshotNotFoundError):
        views.refresh()
    topics.cluster.snapshot("kept")
    views.refresh()
    assert [row.id for row in spark.sql("SELECT id FROM `silver.ids`").collect()] == [2]
    views.drop()
    views = create_views(spark, topics.root, topics=["silver.ids"], snapshot="kept")
    assert set(views.names) == {"silver.ids", CONSUMER_OFFSETS}
    views.drop()
    shutil.rmtree(url)
    for number in (3, 4):
        write_deltalake(url, pa.table({"id": [number]}), mode="append")
    with pytest.raises(SnapshotNotFoundError, match="another table was made there"):
        create_views(spark, topics.root, topics=["silver.ids"], snapshot="kept")
    without = topics.cluster.snapshot()
    with pytest.raises(UnknownTableError, match="silver.ids.*made again"):
        create_views(spark, topics.root, topics=["silver.ids"], snapshot=without)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there are: t, table silver\.ids\."):
        create_views(spark, topics.root, topics=["silver"], snapshot="kept")
    views = create_views(spark, topics.root, snapshot=without)
    assert "silver.ids" not in views.names
    assert "Table silver.ids is not in the snapshot, and has no view" in caplog.text
    views.drop()


@pytest.mark.spark
def test_views_are_made_though_the_commits_are_older_than_the_retention(
    spark: SparkSession, topics, tmp_path, monkeypatch
) -> None:
    """Delta refuses such versions, but for the newest: those of snapshots that are kept for longer,
    and of quiet topics that get a record now.
    """
    topics.create("t", 1)
    topics.append("t", 0, [b"a"])
    url = tmp_path / "silver"
    write_deltalake(url, pa.table({"id": [1]}))
    admin = AdminClient({}, cluster=topics.cluster)
    admin.enlist_tables({"silver.ids": str(url)})["silver.ids"].result()
    topics.cluster.snapshot("kept")
    for log in (Path(topics.root) / "t", url):
        for path in (log / "_delta_log").iterdir():
            os.utime(path, (0, 0))

    def then_append(cluster, names):
        logs = [cluster.topic(name) for name in names]
        topics.append("t", 0, [b"b"])
        return logs

    monkeypatch.setattr("spark_source.sql._refreshed", then_append)
    assert read_committed(spark, topics.root, "t").count() == 1
    write_deltalake(url, pa.table({"id": [2]}), mode="overwrite")
    views = create_views(spark, topics.root, snapshot="kept")
    assert spark.sql("SELECT id, value FROM `silver.ids`, t").collect() == [(1, b"a")]
    views.drop()


@pytest.mark.spark
def test_spark_reads_a_snapshot_by_its_option(spark: SparkSession, kept) -> None:
    """As a user writes it; a stream says what to do."""
    reader = spark.read.format("txnlog").option("subscribe", "t").option("snapshot", "kept")
    assert reader.load(kept.root).count() == 2
    stream = spark.readStream.format("txnlog").option("subscribe", "t").option("snapshot", "kept")
    query = stream.load(kept.root).writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"spark\.read"):
        query.awaitTermination()
