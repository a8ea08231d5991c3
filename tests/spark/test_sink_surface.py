"""What a user of Spark's Kafka sink expects of the sink: columns, options, modes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark import pipeline
from tests.spark.conftest import Lab
from txnlog.cluster import Cluster
from txnlog.protocol.partitioner import partition_for_keys

pytestmark = pytest.mark.spark

MOMENT = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.timezone.utc)


def write(frame: DataFrame, root: Path, **options: object) -> None:
    """A batch write; `_` in an option's name stands for a dot."""
    chosen = pipeline.set_options({}, options)
    frame.write.format("txnlog").options(**chosen).mode("append").save(str(root))


def read(spark: SparkSession, root: Path, topic: str, **options: str) -> list[Row]:
    frame = spark.read.format("txnlog").option("subscribe", topic).options(**options)
    rows = frame.load(str(root)).collect()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def refusal(what: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as failure:
        what()
    return str(failure.value)


def test_every_column_lands_and_others_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    """The record has the values of the columns, in the session's time zone or any other."""
    frame = spark.createDataFrame(
        [("v", b"k", [("h", b"1"), ("h", None)], "t", 1, MOMENT, 7, "x")],
        "value string, key binary, headers array<struct<key string, value binary>>, topic string,"
        " partition int, timestamp timestamp, offset int, extra string",
    )
    write(frame, tmp_path, num_partitions=3)
    (row,) = read(spark, tmp_path, "t", includeHeaders="true")
    assert (bytes(row.value), bytes(row.key), row.topic) == (b"v", b"k", "t")
    assert (row.partition, row.offset) == (1, 0), "offset is given by the topic"
    assert row.timestamp.replace(tzinfo=datetime.timezone.utc) == MOMENT
    assert [(h.key, h.value and bytes(h.value)) for h in row.headers] == [("h", b"1"), ("h", None)]
    assert Cluster.open(str(tmp_path)).topic("t").partitions == 3


def test_include_headers_false_leaves_the_column_out(spark: SparkSession, tmp_path: Path) -> None:
    """Kafka's option; a column of another type is no error then."""
    frame = spark.sql("select 'v' value, array('not headers') headers")
    write(frame, tmp_path, topic="t", includeHeaders="false")
    (row,) = read(spark, tmp_path, "t", includeHeaders="true")
    assert row.headers is None


def test_option_topic_wins_over_the_column(spark: SparkSession, tmp_path: Path) -> None:
    """As in Kafka's sink, nulls in the column included."""
    frame = spark.sql("select cast('v' as binary) value, cast(null as string) topic")
    write(frame, tmp_path, topic="chosen")
    assert [bytes(row.value) for row in read(spark, tmp_path, "chosen")] == [b"v"]
    assert Cluster.open(str(tmp_path)).list_topics() == ["chosen"]


def test_keys_go_where_kafka_puts_them_and_rows_without_stick(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A job moved from Kafka keeps its keys together; rows without a key make one file per task."""
    import pyarrow as pa

    keyed = spark.range(0, 50, 1, 1).selectExpr("concat('key-', id) as key", "'v' as value")
    write(keyed, tmp_path, topic="keyed", num_partitions=5)
    rows = read(spark, tmp_path, "keyed")
    keys = pa.array([bytes(row.key) for row in rows])
    assert [row.partition for row in rows] == partition_for_keys(keys, 5).tolist()
    bare = spark.range(0, 50, 1, 1).selectExpr("cast(id as string) as value")
    write(bare, tmp_path, topic="bare", num_partitions=5)
    assert len({row.partition for row in read(spark, tmp_path, "bare")}) == 1


def test_small_tasks_share_a_file_per_partition(spark: SparkSession, tmp_path: Path) -> None:
    """Six tasks and two partitions: two files, in the order of the tasks (D148); of large tasks
    each writes its own.
    """
    frame = spark.range(0, 60, 1, 6).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value"
    )
    write(frame, tmp_path, topic="t", num_partitions=2)
    assert len(pipeline.live_files(tmp_path, "t")) == 2
    rows = read(spark, tmp_path, "t")
    for partition in range(2):
        values = [int(row.value) for row in rows if row.partition == partition]
        assert values == sorted(values)
    assert sorted(int(row.value) for row in rows) == list(range(60))
    large = frame.selectExpr("*", pipeline.LARGE)
    write(large.coalesce(3), tmp_path, topic="t")
    assert len(pipeline.live_files(tmp_path, "t")) == 2 + 6


def test_row_of_a_query_is_at_its_id_with_its_name_and_timeout(lab: Lab) -> None:
    """An operator finds the query by its name; kafka.<name> has the same effect."""
    lab.feed(0, 10)
    query = lab.run(kafka_transaction_timeout_ms=30_000, queryName="split numbers")
    lab.check(10)
    row = Cluster.open(str(lab.root)).coordinator.describe(query.id)
    assert row is not None
    assert (row.owner.query_id, row.timeout_ms) == (query.id, 30_000)
    assert row.owner.query_name == "split numbers"


def test_timeout_above_the_highest_is_refused_with_both(lab: Lab) -> None:
    """A timeout above the cluster's maximum must not be reduced silently (R33)."""
    lab.feed(0, 10)
    message = refusal(lambda: lab.run(transaction_timeout_ms=900_001))
    assert "InvalidTxnTimeoutError: transaction.timeout.ms=900001" in message
    assert "transaction.max.timeout.ms=900000" in message
    assert lab.values() == []
    lab.run()
    lab.check(10)


def test_options_of_brokers_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    """A job moves over by changing the format and the address."""
    frame = spark.sql("select 'v' value, 't' topic")
    chosen = {"kafka.bootstrap.servers": "b:9092", "kafka.security.protocol": "SASL_SSL"}
    write(frame, tmp_path, **chosen)
    assert len(read(spark, tmp_path, "t")) == 1


def test_batch_write_under_a_transactional_id_leaves_its_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A configured id fences the former writer under it, as Kafka's producer does."""
    frame = spark.sql("select 'v' value, 't' topic")
    for _ in range(2):
        write(frame, tmp_path, transactional_id="nightly")
    row = Cluster.open(str(tmp_path)).coordinator.describe("nightly")
    assert row is not None
    assert row.state.is_idle
    assert len(read(spark, tmp_path, "t")) == 2


def test_batch_write_without_a_mode_is_refused_by_spark_with_the_mode(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's default mode checks whether the table exists, which a topic sink cannot answer."""
    frame = spark.sql("select 'v' value, 't' topic").write.format("txnlog")
    message = refusal(lambda: frame.save(str(tmp_path / "root")))
    assert "append" in message.lower()
    assert not (tmp_path / "root").exists()


def test_update_mode_is_refused(lab: Lab) -> None:
    """A topic is append-only: an update would append the changed rows as if they were new."""
    lab.feed(0, 10)
    counts = pipeline.numbers(lab.spark, lab.root).groupBy("key", "topic").count()
    counts = counts.selectExpr("key", "cast(count as string) value", "topic")
    query = pipeline.writer(counts, lab.root, lab.checkpoint).outputMode("update")
    message = refusal(lambda: pipeline.run(query.start()))
    assert "update" in message.lower()
    assert lab.values() == []


def start_each(lab: Lab, shift: int = 0) -> None:
    """A foreachBatch that writes each batch to two topics, with one pair for both writes."""
    root = str(lab.root)

    def each(batch: DataFrame, batch_id: int) -> None:
        for topic, remainder in (("evens", 0), ("odds", 1)):
            rows = batch.where(f"{pipeline.NUMBER} % 2 = {remainder}").selectExpr(
                "key", f"cast({pipeline.NUMBER} + {shift} as string) value"
            )
            (
                rows.write.format("txnlog")
                .option("topic", topic)
                .option("num.partitions", pipeline.PARTITIONS)
                .option("txnAppId", "each")
                .option("txnVersion", batch_id)
                .mode("append")
                .save(root)
            )

    frame = pipeline.numbers(lab.spark, lab.root, maxOffsetsPerTrigger=20)
    writer = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
    pipeline.run(writer.option("checkpointLocation", str(lab.checkpoint)).start())


def test_foreach_batch_with_txn_version_repeats_nothing(lab: Lab) -> None:
    """foreachBatch alone is at least once: the batch runs again when its commit file is lost."""
    lab.feed(0, 60)
    start_each(lab)
    assert lab.values() == list(range(60))
    lab.forget_batch("commits", 2)
    # Other values at the replay: rows already written remain.
    start_each(lab, shift=1000)
    assert lab.values() == list(range(60))
    lab.feed(60, 80)
    start_each(lab)
    assert lab.values() == list(range(80))


def test_foreach_batch_killed_between_two_writes_writes_the_second_only(lab: Lab) -> None:
    """The batch that failed half-way is run again as a whole, with Delta's idiom: one pair for
    the writes to two topics. Kept per root, the pair silently lost every second write.
    """
    lab.feed(0, 20)
    evens = lab.spark.range(0, 20, 2, 1).selectExpr(
        f"cast(id % {pipeline.KEYS} as string) as key", "cast(id as string) value"
    )
    # The output of the first of the two writes of batch 0.
    write(evens, lab.root, topic="evens", num_partitions=2, txnAppId="each", txnVersion="0")
    start_each(lab)
    assert lab.values() == list(range(20))
