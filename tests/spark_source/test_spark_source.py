"""The source in real Spark: batch, stream, restart, options, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txnlog.settings.storage_options import secret_spellings

pytestmark = pytest.mark.spark

TOPIC_COUNT = 3


def stream_of(spark: SparkSession, root: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("txnlog").options(**{"subscribe": "t", **options})
    return reader.load(root)


def run_to_end(
    frame: DataFrame, checkpoint: Path, into: Path, **options: Any
) -> list[dict[str, Any]]:
    """Copy all available records to Parquet files; returns the progress of each batch."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(into))
    )
    assert query.awaitTermination(600)
    return [json.loads(progress.json) for progress in query.recentProgress]


def read_values(spark: SparkSession, folder: Path) -> list[str]:
    rows = spark.read.parquet(str(folder)).orderBy("topic", "partition", "offset").collect()
    return [bytes(row.value).decode() for row in rows]


def test_batch_read_gives_kafkas_columns(spark: SparkSession, topics) -> None:
    """A job that moves from Kafka's source gets the same columns, types and values."""
    topics.create("t", 2)
    topics.append("t", 1, [b"v", None], keys=[None, b"k"], headers=[[("h", b"1")], None])
    frame = (
        spark.read.format("txnlog")
        .option("subscribe", "t")
        .option("includeHeaders", "true")
        .option("kafka.bootstrap.servers", "ignored:9092")
        .load(topics.root)
    )
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    expected = spark.createDataFrame(
        [
            (None, bytearray(b"v"), "t", 1, 0, 0, [("h", bytearray(b"1"))]),
            (bytearray(b"k"), None, "t", 1, 1, 0, None),
        ],
        frame.drop("timestamp").schema,
    )
    assert_df_equality(frame.drop("timestamp"), expected, ignore_row_order=True)
    first = frame.select(F.unix_micros("timestamp").alias("us")).agg(F.min("us")).collect()[0][0]
    assert first == 1_700_000_000_000_000


def test_batch_read_of_an_empty_topic_has_no_rows(spark: SparkSession, topics) -> None:
    """Spark reads InputPartition(None) (R60)."""
    topics.create("t", 2)
    frame = spark.read.format("txnlog").option("subscribe", "t").load(topics.root)
    assert frame.count() == 0


def test_batch_filters_and_pruned_columns_work(spark: SparkSession, topics) -> None:
    """Spark plans filters and columns around the source."""
    topics.create("t", 2)
    topics.append("t", 0, [str(i).encode() for i in range(10)])
    frame = spark.read.format("txnlog").option("subscribe", "t").load(topics.root)
    assert [
        r.offset for r in frame.where("offset >= 8 and topic = 't'").select("offset").collect()
    ] == [8, 9]
    assert frame.select(F.count("*")).collect()[0][0] == 10


def test_stream_available_now_reads_all_once_and_continues_at_a_restart(
    spark: SparkSession, topics, tmp_path: Path
) -> None:
    """Batches respect maxOffsetsPerTrigger; a restart continues from the checkpoint (R61)."""
    topics.create("t", TOPIC_COUNT)
    for partition in range(TOPIC_COUNT):
        topics.append("t", partition, [f"{partition}-{i}".encode() for i in range(10)])
    frame = stream_of(spark, topics.root, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    progress = run_to_end(frame, tmp_path / "cp", tmp_path / "out")
    assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [12, 12, 6]
    assert len(read_values(spark, tmp_path / "out")) == 30
    latest = progress[-1]["sources"][0]
    assert json.loads(json.dumps(latest["latestOffset"])) == {"t": {"0": 10, "1": 10, "2": 10}}
    topics.append("t", 1, [b"new"])
    run_to_end(frame, tmp_path / "cp", tmp_path / "out")
    values = read_values(spark, tmp_path / "out")
    assert len(values) == len(set(values)) == 31


def test_stream_small_batch_of_many_partitions_is_one_task(
    spark: SparkSession, topics, tmp_path: Path
) -> None:
    """A task costs Spark more than it takes to read a few records."""
    topics.create("t", 20)
    for partition in range(20):
        topics.append("t", partition, [b"x"] * 5)
    frame = stream_of(spark, topics.root, startingOffsets="earliest")
    run_to_end(frame, tmp_path / "cp", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1


def test_stream_latest_is_fixed_by_batch_0_and_survives_a_replay(
    spark: SparkSession, topics, tmp_path: Path
) -> None:
    """commits/0 lost: batch 0 runs again, over the same range, and nothing is skipped (R54)."""
    topics.create("t", 1)
    topics.append("t", 0, [b"before"])
    frame = stream_of(spark, topics.root)
    run_to_end(frame, tmp_path / "cp", tmp_path / "out")
    topics.append("t", 0, [b"a"])
    (tmp_path / "cp" / "commits" / "0").unlink()
    (tmp_path / "cp" / "commits" / ".0.crc").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "out" / "_spark_metadata", ignore_errors=True)
    run_to_end(frame, tmp_path / "cp", tmp_path / "out")
    assert read_values(spark, tmp_path / "out") == ["a"]
    first = (tmp_path / "cp" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(first)["t"] == {"0": 1}
    assert json.loads(first)["@"]["start"] == {"t": {"0": 1}}


def test_stream_processing_time_sees_new_records_and_new_partitions(
    spark: SparkSession, topics, tmp_path: Path
) -> None:
    """The long-lived reader tails the logs from trigger to trigger."""
    topics.create("t", 1)
    frame = stream_of(spark, topics.root)
    query = (
        frame.writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(processingTime="20 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        for number in range(3):
            topics.append("t", 0, [str(number).encode()])
            query.processAllAvailable()
        rows = spark.table("seen").orderBy("offset").collect()
        assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"0"), (1, b"1"), (2, b"2")]
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nope"}, "There is no topic 'nope'"),
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets"),
        ({"minPartitions": "none"}, "Option minPartitions is 'none': it takes a whole number"),
        ({"startingOffsets": "{"}, "Option startingOffsets is not JSON"),
    ],
)
def test_wrong_options_reach_the_user(
    spark: SparkSession, topics, options: dict[str, str], message: str
) -> None:
    """Spark wraps what a worker raises; the sentence that helps must be in it (R60)."""
    topics.create("t")
    with pytest.raises(PySparkException, match=message):
        spark.read.format("txnlog").options(**{"subscribe": "t", **options}).load(
            topics.root
        ).count()


def test_users_schema_is_refused(spark: SparkSession, topics) -> None:
    """.schema(...) bypasses the source's own."""
    topics.create("t")
    reader = spark.read.format("txnlog").schema("value string").option("subscribe", "t")
    with pytest.raises(PySparkException, match="schema of format txnlog is fixed"):
        reader.load(topics.root).count()


def test_secrets_stay_out_of_plans_and_errors(spark: SparkSession, topics, capfd) -> None:
    """Plans go to logs and to the UI: each secret option in each spelling (R67)."""
    topics.create("t")
    secrets = {f"storage.{name}": "hunter2" for name in secret_spellings()}
    secrets["storage.proxy_url"] = "http://hunter2:1"
    secrets["storage.default_headers"] = '{"x": "hunter2"}'
    secrets |= {f"checkpoint.{name}": value for name, value in secrets.items()}
    reader = spark.read.format("txnlog").options(**secrets)
    frame = reader.option("subscribe", "t").load(topics.root)
    # By default a plan shows the first 25 options only.
    spark.conf.set("spark.sql.debug.maxToStringFields", "10000")
    frame.explain("extended")
    spark.conf.unset("spark.sql.debug.maxToStringFields")
    with pytest.raises(PySparkException) as caught:
        reader.option("subscribe", "nope").load(topics.root).count()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in capfd.readouterr().out
