"""End to end in real Spark: batch and stream, source and sink, and the fields of a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chispa import assert_df_equality
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark import pipeline
from tests.spark.conftest import Failpoint, Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

HEADERS = "array<struct<key:string,value:binary>>"


def read(spark: SparkSession, root: Path, topics: str, **options: str) -> DataFrame:
    reader = spark.read.format("txnlog").option("subscribe", topics).options(**options)
    return reader.load(str(root))


def append(frame: DataFrame, root: Path, **options: object) -> None:
    chosen = pipeline.set_options({"num.partitions": 2}, options)
    frame.write.format("txnlog").options(**chosen).mode("append").save(str(root))


def test_stream_to_two_topics_in_micro_batches_is_exactly_once(lab: Lab) -> None:
    """Rows lost or doubled where batches or topics meet; the input counted without the output."""
    lab.feed(0, 60)
    lab.feed(60, 110)
    query = lab.run(batch_records=25)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [25, 25, 25, 25, 10]
    lab.check(110)
    rows = [(str(n % 10), str(n), "odds" if n % 2 else "evens") for n in range(110)]
    expected = lab.spark.createDataFrame(rows, "key string, value string, topic string")
    found = read(lab.spark, lab.root, "evens,odds")
    assert_df_equality(
        found.selectExpr("cast(key as string) key", "cast(value as string) value", "topic"),
        expected,
        ignore_nullable=True,
        ignore_row_order=True,
    )


def test_stream_topics_of_one_batch_carry_one_transaction(lab: Lab) -> None:
    """Two topics committed by two transactions can come apart in a crash."""
    lab.feed(0, 40)
    query = lab.run()
    row = Cluster.open(str(lab.root)).coordinator.describe(query.id)
    assert row is not None
    for topic in pipeline.OUTPUTS:
        view = Cluster.open(str(lab.root)).topic(topic).view
        assert view.markers == {row.producer_id: row.txn_epoch}


def test_stream_available_now_ends_at_the_end_fixed_at_its_start(
    lab: Lab, failpoint: Failpoint
) -> None:
    """Records that arrive while it runs would keep an AvailableNow query running (R61)."""
    lab.feed(0, 40)
    failpoint.set("prepare_commit.before:pause")
    query = lab.start(batch_records=20)
    failpoint.await_hits()
    lab.feed(40, 80)
    failpoint.clear()
    pipeline.run(query)
    lab.check(40)
    lab.run()
    lab.check(80)


def test_stream_without_rows_for_the_sink_still_commits_its_offsets(lab: Lab) -> None:
    """Input that a filter drops would be read again after a lost checkpoint."""
    lab.feed(0, 40)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root)).where("false")
    pipeline.run(pipeline.writer(frame, lab.root, lab.checkpoint).start())
    committed = Cluster.open(str(lab.root)).groups.fetch(pipeline.GROUP)
    assert sum(committed[pipeline.SOURCE].values()) == 40
    assert lab.values() == []


def test_stream_of_a_union_of_one_source_with_itself_is_exactly_once(lab: Lab) -> None:
    """Equal offsets of one group in two sources are one position, not a conflict."""
    lab.feed(0, 40)
    source = pipeline.numbers(lab.spark, lab.root)
    evens = source.where(f"{pipeline.NUMBER} % 2 = 0")
    odds = source.where(f"{pipeline.NUMBER} % 2 = 1")
    frame = pipeline.split(evens.union(odds))
    pipeline.run(pipeline.writer(frame, lab.root, lab.checkpoint).start())
    lab.check(40)


def test_batch_write_and_read_keep_key_value_headers_time_and_tombstones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A null key, value or header that comes back as empty bytes is another record (R60)."""
    rows = [
        ("t1", 0, b"k", b"v", 1_000_000, [("trace", b"1"), ("trace", None)]),
        ("t1", 1, None, b"no key", 2_000_000, []),
        ("t2", 1, b"gone", None, 3_000_000, None),
        ("t2", 0, b"", b"", 4_000_000, [("", b"")]),
    ]
    schema = f"topic string, partition int, key binary, value binary, us long, headers {HEADERS}"
    frame = spark.createDataFrame(rows, schema).withColumnRenamed("us", "timestamp")
    frame = frame.withColumn("timestamp", frame.timestamp.cast("double") / 1e6)
    append(frame, tmp_path, includeHeaders="true")
    found = read(spark, tmp_path, "t1,t2", includeHeaders="true")
    assert found.where("offset != 0 or timestampType != 0").count() == 0
    expected = spark.createDataFrame(rows, schema)
    assert_df_equality(
        found.selectExpr(
            "topic", "partition", "key", "value", "unix_micros(timestamp) us", "headers"
        ),
        expected,
        ignore_nullable=True,
        ignore_row_order=True,
    )


def test_stream_carries_headers_and_tombstones(spark: SparkSession, lab: Lab) -> None:
    """A copy job that drops headers, or turns a delete into an empty value."""
    rows = [(b"a", b"1", [("h", b"x")]), (b"b", None, None), (None, b"", [])]
    frame = spark.createDataFrame(rows, f"key binary, value binary, headers {HEADERS}")
    append(frame, lab.root, topic=pipeline.SOURCE, includeHeaders="true")
    source = pipeline.numbers(spark, lab.root, includeHeaders="true").drop("topic", "partition")
    pipeline.run(
        pipeline.writer(
            source, lab.root, lab.checkpoint, topic="copy", includeHeaders="true"
        ).start()
    )
    found = read(spark, lab.root, "copy", includeHeaders="true")
    assert_df_equality(
        found.select("key", "value", "headers"), frame, ignore_nullable=True, ignore_row_order=True
    )


def test_batch_write_of_many_tasks_is_one_transaction(spark: SparkSession, lab: Lab) -> None:
    """Half of a batch write that a reader sees, and a state row left behind for every write."""
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(id % 10 as string) key", "cast(id as string) value", "if(id%2=0,'evens','odds') topic"
    )
    append(frame, lab.root)
    assert lab.values() == list(range(100))
    cluster = Cluster.open(str(lab.root))
    for topic in pipeline.OUTPUTS:
        assert len(cluster.topic(topic).view.markers) == 1
    for number in range(cluster.shards):
        cluster.shard(number).refresh()
        assert not cluster.shard(number).view.rows


def numbers_frame(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 2).selectExpr(
        f"cast(id % {pipeline.KEYS} as string) key",
        "cast(id as string) value",
        "if(id % 2 = 0, 'evens', 'odds') topic",
    )


def test_batch_write_with_txn_version_happens_once(spark: SparkSession, lab: Lab) -> None:
    """A job that is run again after a failure further on doubles its rows (as Delta's options)."""
    append(numbers_frame(spark, 0, 20), lab.root, txnAppId="nightly", txnVersion=7)
    append(numbers_frame(spark, 0, 20), lab.root, txnAppId="nightly", txnVersion=7)
    append(numbers_frame(spark, 0, 20), lab.root, txnAppId="nightly", txnVersion=6)
    assert lab.values() == list(range(20))
    append(numbers_frame(spark, 20, 40), lab.root, txnAppId="nightly", txnVersion=8)
    append(numbers_frame(spark, 40, 60), lab.root, txnAppId="other", txnVersion=7)
    assert lab.values() == list(range(60))


@pytest.mark.parametrize("place", ["stage.after", "prepare_commit.before", "prepare_commit.after"])
def test_batch_write_with_txn_version_killed_and_run_again_happens_once(
    spark: SparkSession, lab: Lab, failpoint: Failpoint, place: str
) -> None:
    """The first run died when its rows were decided, or just before (R36)."""
    failpoint.set(place)
    with pytest.raises((PySparkException, Py4JJavaError)):
        append(numbers_frame(spark, 0, 20), lab.root, txnAppId="nightly", txnVersion=1)
    assert failpoint.hits
    failpoint.clear()
    append(numbers_frame(spark, 0, 20), lab.root, txnAppId="nightly", txnVersion=1)
    assert lab.values() == list(range(20))


def test_batch_write_killed_after_its_decision_is_finished_by_a_sweep(
    spark: SparkSession, lab: Lab, failpoint: Failpoint
) -> None:
    """A batch write is not restarted, so no later run would find its decided transaction (R73)."""
    failpoint.set("prepare_commit.after")
    with pytest.raises((PySparkException, Py4JJavaError)):
        append(numbers_frame(spark, 0, 20), lab.root)
    failpoint.clear()
    assert lab.values() == []
    lab.sweep()
    assert lab.values() == list(range(20))
    lab.sweep()
    assert lab.values() == list(range(20))


def test_foreach_batch_with_txn_version_replayed_writes_once(
    lab: Lab, failpoint: Failpoint
) -> None:
    """foreachBatch is at-least-once: Spark runs a batch again whose commit it did not note."""
    lab.feed(0, 60)

    def write(frame: DataFrame, batch_id: int) -> None:
        append(pipeline.split(frame), lab.root, txnAppId="copy", txnVersion=batch_id)

    def run() -> None:
        source = pipeline.numbers(lab.spark, lab.root, maxOffsetsPerTrigger=20)
        query = source.writeStream.foreachBatch(write).trigger(availableNow=True)
        pipeline.run(query.option("checkpointLocation", str(lab.checkpoint)).start())

    failpoint.set("sink_commit.after@2")
    with pytest.raises(StreamingQueryException):
        run()
    failpoint.clear()
    run()
    lab.forget_batch("commits", 2)
    run()
    assert lab.values() == list(range(60))


def test_stream_progress_names_the_end_of_the_source(lab: Lab) -> None:
    """A listener computes the lag from endOffset and latestOffset."""
    lab.feed(0, 40)
    progress = lab.run().recentProgress[-1]
    source = json.loads(progress.json)["sources"][0]
    assert source["endOffset"][pipeline.SOURCE] == source["latestOffset"][pipeline.SOURCE]
    assert sum(source["latestOffset"][pipeline.SOURCE].values()) == 40
