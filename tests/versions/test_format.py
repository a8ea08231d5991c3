"""format("txnlog") on the installed Spark: what README.md promises, and options, in one session."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_sink import QueryReport, TxnLogListener
from spark_source.sql import create_views, read_committed
from tests.spark import pipeline
from tests.versions.installed import SPARK
from txnlog.cluster import Cluster
from txnlog.connector.spark_delta import DELTA_FOR
from txnlog.connector.spark_versions import HAS_READ_LIMITS
from txnlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.versions

VALUE = "cast(value as string) as value"


def write(spark: SparkSession, root: str, first: int, end: int, **options: str) -> None:
    """The numbers first <= i < end into topic t, which has two partitions; i % 2 is theirs."""
    frame = spark.range(first, end, 1, 2).selectExpr(
        "string(id) as key", "string(id) as value", "int(id % 2) as partition"
    )
    given = {"topic": "t", "num.partitions": "2", **options}
    frame.write.format("txnlog").options(**given).mode("append").save(root)


def read(spark: SparkSession, root: str, **options: str) -> DataFrame:
    given = options if "subscribePattern" in options else {"subscribe": "t", **options}
    return spark.read.format("txnlog").options(**given).load(root)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.selectExpr(VALUE).collect())


def copy(
    spark: SparkSession, root: str, checkpoint: str, group: str | None = "g", **options: str
) -> StreamingQuery:
    """Topic t to topic u, all there is, in one run."""
    groups = {} if group is None else {"group.id": group}
    source = {
        "subscribe": "t",
        "startingOffsets": "earliest" if group is None else "committed",
        "auto.offset.reset": "earliest",
        **groups,
        **options,
    }
    frame = spark.readStream.format("txnlog").options(**source).load(root).selectExpr("key", VALUE)
    sink = {"topic": "u", "checkpointLocation": checkpoint, **groups}
    query = frame.writeStream.format("txnlog").options(**sink).trigger(availableNow=True)
    return pipeline.run(query.start(root))


# --- Batch ----------------------------------------------------------------------------------------


def test_batch_has_what_was_written_with_all_columns(spark: SparkSession, root: str) -> None:
    """The schema and the Arrow types are those of another Spark, or rows would come to the sink."""
    header = F.array(F.struct(F.lit("h").alias("key"), F.lit(b"1").alias("value")))
    frame = spark.range(4).select(
        F.col("id").cast("string").alias("value"),
        F.lit(None).cast("binary").alias("key"),
        header.alias("headers"),
        F.lit("2026-01-02T03:04:05Z").cast("timestamp").alias("timestamp"),
        F.concat(F.lit("t"), F.col("id") % 2).alias("topic"),
    )
    write = frame.write.format("txnlog").option("includeHeaders", "true").mode("append")
    write.save(root)
    found = read(spark, root, subscribePattern="t.", includeHeaders="true")
    assert found.where("timestamp = '2026-01-02T03:04:05Z' and key is null").count() == 4
    assert found.where("headers[0].key = 'h' and topic = 't1'").count() == 2
    assert numbers(found) == [0, 1, 2, 3]


def test_batch_starts_and_ends_by_offset_and_by_time(spark: SparkSession, root: str) -> None:
    """(R60)"""
    write(spark, root, 0, 10)
    ends = json.dumps({"t": {"0": 3, "1": -1}})
    starts = json.dumps({"t": {"0": 1, "1": -2}})
    some = read(spark, root, startingOffsets=starts, endingOffsets=ends)
    assert numbers(some) == [1, 2, 3, 4, 5, 7, 9]
    assert numbers(read(spark, root, startingTimestamp="1")) == list(range(10))
    tasks = read(spark, root, maxRecordsPerPartition="1")
    assert tasks.rdd.getNumPartitions() == 10


@pytest.mark.parametrize("is_on", ["true", "false"])
def test_batch_with_filters_has_the_rows_that_match(
    spark: SparkSession, root: str, is_on: str
) -> None:
    """With Spark's pushdown, where it exists, files are skipped."""
    write(spark, root, 0, 10)
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, is_on)
    try:
        found = read(spark, root).where(
            "partition = 1 and offset >= 3 and timestamp > '2020-01-01'"
        )
        assert numbers(found) == [7, 9]
    finally:
        spark.conf.unset(name)


def test_batch_write_is_idempotent_by_its_pair(spark: SparkSession, root: str) -> None:
    """foreachBatch relies on it (D71)."""
    for _ in range(2):
        write(spark, root, 0, 10, txnAppId="a", txnVersion="1")
    assert numbers(read(spark, root)) == list(range(10))


def test_wrong_option_is_an_error_with_the_nearest_name(spark: SparkSession, root: str) -> None:
    """(R60)"""
    with pytest.raises(Exception, match="Did you mean startingOffsets"):
        read(spark, root, startingOffset="earliest").collect()


# --- Streams --------------------------------------------------------------------------------------


def test_rate_into_a_topic(spark: SparkSession, root: str, checkpoint: str) -> None:
    """A source that is not ours: each batch is there once."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        frame.selectExpr("string(value) as value")
        .writeStream.format("txnlog")
        .option("topic", "t")
        .option("checkpointLocation", checkpoint)
        .start(root)
    )
    while (query.lastProgress or {"batchId": 0})["batchId"] < 2:
        assert query.isActive, query.exception()
        query.awaitTermination(1)
    query.stop()
    found = numbers(read(spark, root))
    assert len(found) >= 20
    assert found == list(range(len(found)))


@pytest.mark.parametrize("group", ["g", None])
def test_restarts_continue_where_the_query_was(
    spark: SparkSession, root: str, checkpoint: str, group: str | None
) -> None:
    """Twice with news, and once without: nothing twice, nothing skipped (R54)."""
    for end in (10, 20, 20, 30):
        if end > len(seen := numbers(read(spark, root)) if end > 10 else []):
            write(spark, root, len(seen), end)
        copy(spark, root, checkpoint, group)
        assert numbers(read(spark, root, subscribe="u")) == list(range(end))
    if group is not None:
        described = Cluster.open(root).groups.describe(group)
        assert described is not None
        assert described.generation == 1, "a restart begins no generation"


@pytest.mark.parametrize("group", ["g", None])
def test_batch_that_spark_did_not_end_is_replayed_once(
    spark: SparkSession, root: str, checkpoint: str, group: str | None
) -> None:
    """Spark's last commit file is gone: it runs the batch again, and the sink skips it (R54)."""
    write(spark, root, 0, 10)
    copy(spark, root, checkpoint, group)
    newest = max(int(file.name) for file in (Path(checkpoint) / "commits").glob("[0-9]*"))
    (Path(checkpoint) / "commits" / str(newest)).unlink()
    (Path(checkpoint) / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    write(spark, root, 10, 20)
    # Spark 4.0 and 4.1 run the interrupted batch alone, and say so.
    for _ in range(2):
        copy(spark, root, checkpoint, group)
    assert numbers(read(spark, root, subscribe="u")) == list(range(20))


def test_batch_that_failed_in_the_sink_is_replayed_and_commits(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """It was planned under a generation that the restart must not end."""
    write(spark, root, 0, 10)
    copy(spark, root, checkpoint)
    write(spark, root, 10, 20)
    frame = spark.readStream.format("txnlog").options(
        **{"subscribe": "t", "group.id": "g", "startingOffsets": "committed"}
    )
    broken = frame.load(root).selectExpr("key", "string(raise_error('broken')) as value")
    sink = {"topic": "u", "checkpointLocation": checkpoint, "group.id": "g"}
    with pytest.raises(StreamingQueryException, match="broken"):
        pipeline.run(broken.writeStream.format("txnlog").options(**sink).start(root))
    write(spark, root, 20, 30)
    for _ in range(2):
        copy(spark, root, checkpoint)
    assert numbers(read(spark, root, subscribe="u")) == list(range(30))


def test_lost_checkpoint_continues_from_the_group(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """Exactly once, without Spark's own offsets (R59)."""
    write(spark, root, 0, 10)
    copy(spark, root, checkpoint)
    write(spark, root, 10, 20)
    shutil.rmtree(checkpoint)
    copy(spark, root, checkpoint)
    assert numbers(read(spark, root, subscribe="u")) == list(range(20))


@pytest.mark.parametrize("group", ["g", None])
def test_available_now_with_a_limit_reads_all(
    spark: SparkSession, root: str, checkpoint: str, group: str | None
) -> None:
    """It ended after one batch of a few records, silently (R61)."""
    write(spark, root, 0, 20)
    query = copy(spark, root, checkpoint, group, maxOffsetsPerTrigger="6")
    assert numbers(read(spark, root, subscribe="u")) == list(range(20))
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) == (4 if HAS_READ_LIMITS else 1)


def test_limited_stream_reads_all(spark: SparkSession, root: str, checkpoint: str) -> None:
    """From the committed offsets, with both limits, under the ordinary trigger."""
    write(spark, root, 0, 20)
    Cluster.open(root).groups.reset("g", {"t": {0: 5, 1: 0}})
    source = {
        "subscribe": "t",
        "group.id": "g",
        "startingOffsets": "committed",
        "maxOffsetsPerTrigger": "6",
        "minOffsetsPerTrigger": "2",
        "maxTriggerDelay": "1s",
    }
    frame = spark.readStream.format("txnlog").options(**source).load(root).selectExpr("key", VALUE)
    sink = {"topic": "u", "checkpointLocation": checkpoint, "group.id": "g"}
    query = frame.writeStream.format("txnlog").options(**sink).start(root)
    query.processAllAvailable()
    query.stop()
    odd, later = range(1, 20, 2), range(10, 20, 2)
    assert numbers(read(spark, root, subscribe="u")) == sorted([*odd, *later])


def test_foreach_batch_writes_two_topics_once(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """By the pair of txnAppId and txnVersion; a batch whose frame is not used counts, too."""
    write(spark, root, 0, 10)
    used: list[int] = []

    def route(frame: DataFrame, batch_id: int) -> None:
        used.append(batch_id)
        if batch_id == 1:
            return
        for topic in ("u", "v"):
            pair = {"txnAppId": f"copy-{topic}", "txnVersion": str(batch_id)}
            out = frame.selectExpr("key", VALUE).write.format("txnlog").option("topic", topic)
            out.options(**pair).mode("append").save(root)

    def run() -> None:
        source = {"subscribe": "t", "startingOffsets": "earliest"}
        frame = spark.readStream.format("txnlog").options(**source).load(root)
        query = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(route)
        pipeline.run(query.trigger(availableNow=True).start())

    run()
    write(spark, root, 10, 20)
    run()
    write(spark, root, 20, 30)
    run()
    assert used == [0, 1, 2]
    expected = [*range(10), *range(20, 30)]
    assert numbers(read(spark, root, subscribe="u")) == expected
    assert numbers(read(spark, root, subscribe="v")) == expected


@pytest.mark.skipif(HAS_READ_LIMITS, reason="this Spark does not wrap the source")
def test_wrapper_of_available_now_is_refused_where_it_would_begin_anew(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """A setting of Spark, off by default: it asks for the end before it says where the query is."""
    name = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    write(spark, root, 0, 10)
    spark.conf.set(name, "true")
    try:
        copy(spark, root, checkpoint, None)
        assert numbers(read(spark, root, subscribe="u")) == list(range(10))
        write(spark, root, 10, 20)
        with pytest.raises(StreamingQueryException, match="Set it to false"):
            copy(spark, root, checkpoint, None)
    finally:
        spark.conf.unset(name)
    copy(spark, root, checkpoint, None)
    assert numbers(read(spark, root, subscribe="u")) == list(range(20))


def test_wrong_option_of_a_stream_is_our_error(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """Spark hides an error that is raised while it makes a reader (R60)."""
    with pytest.raises(StreamingQueryException, match="maxOffsetsPerTrigger"):
        copy(spark, root, checkpoint, maxOffsetsPerTrigger="many")


def test_listener_reports_lag_and_transactions(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """Progress has another form on each Spark."""
    write(spark, root, 0, 10)
    reports: list[QueryReport] = []
    listener = TxnLogListener(root, on_report=reports.append)
    spark.streams.addListener(listener)
    try:
        copy(spark, root, checkpoint)
        deadline_s = time.monotonic() + 60
        while not reports:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
    assert reports[0].lag == {"t": {0: 0, 1: 0}}
    assert reports[0].input_rows == 10


# --- SQL ------------------------------------------------------------------------------------------


def test_sql_views_show_the_topics_or_say_that_delta_has_no_jar(
    spark: SparkSession, root: str
) -> None:
    """With the jar that conf/ names for this Spark."""
    write(spark, root, 0, 10)
    if SPARK in DELTA_FOR:
        assert numbers(read_committed(spark, root, "t")) == list(range(10))
        create_views(spark, root)
        assert spark.sql("select count(*) from t where partition = 1").collect()[0][0] == 5
    else:
        with pytest.raises(ConfigError, match=f"no release for Spark {SPARK} yet"):
            create_views(spark, root)
