"""The source in SQL, and what Spark shows when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txnlog.storage.store.objects import ObjectStore

pytestmark = pytest.mark.spark


def view(spark: SparkSession, name: str, root: str, **options: str) -> str:
    """CREATE TEMP VIEW as a user would write it."""
    given = {"path": root, **{key.replace("_", "."): value for key, value in options.items()}}
    listed = ", ".join(f"'{key}' '{value}'" for key, value in given.items())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW {name} USING txnlog OPTIONS ({listed})")
    return name


@pytest.fixture
def letters(topics) -> Any:
    """Topic t with a, b, c in partition 0 and d in partition 1; topic empty."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a", b"b", b"c"])
    topics.append("t", 1, [b"d"])
    topics.create("empty")
    return topics


def test_sql_view_reads_a_topic_and_joins(spark: SparkSession, letters) -> None:
    """For users who write only SQL, and with joins."""
    view(spark, "letters", letters.root, subscribe="t")
    ask = "SELECT cast(value AS string) AS v, partition, offset FROM letters ORDER BY v"
    assert [tuple(row) for row in spark.sql(ask).collect()] == [
        ("a", 0, 0), ("b", 0, 1), ("c", 0, 2), ("d", 1, 0)
    ]  # fmt: skip
    view(spark, "nothing", letters.root, subscribe="empty")
    joined = "SELECT /*+ BROADCAST(other) */ * FROM letters JOIN {} AS other USING (value)"
    assert spark.sql(joined.format("letters")).count() == 4
    assert spark.sql(joined.format("nothing")).count() == 0


def test_sql_view_shows_the_state_of_its_first_use(spark: SparkSession, letters) -> None:
    """Spark plans a Python source once per view or DataFrame, as docs/options.md states."""
    view(spark, "letters", letters.root, subscribe="t")
    ask = "SELECT count(*) FROM letters"
    assert spark.sql(ask).collect()[0][0] == 4
    letters.append("t", 1, [b"e"])
    assert spark.sql(ask).collect()[0][0] == 4
    view(spark, "letters", letters.root, subscribe="t")
    assert spark.sql(ask).collect()[0][0] == 5


def test_sql_view_takes_every_option(spark: SparkSession, letters) -> None:
    """Names with dots, JSON and patterns pass through SQL's quotes."""
    letters.append("t", 1, [b"open"], status="ongoing")
    options = {
        "subscribePattern": "t|u",
        "startingOffsets": '{"t":{"0":2,"1":0}}',
        "isolation_level": "read_uncommitted",
        "minPartitions": "3",
    }
    view(spark, "chosen", letters.root, **options)
    rows = spark.sql("SELECT cast(value AS string) AS v FROM chosen ORDER BY v").collect()
    assert [row.v for row in rows] == ["c", "d", "open"]


# --- What Spark shows -----------------------------------------------------------------------------


def shown(error: PySparkException) -> str:
    """The last line of Spark's error message, the one that users read."""
    message = str(error).partition("=== Streaming Query")[0].splitlines()
    lines = [line for line in message if line.strip() and not line.strip().startswith("SQLSTATE")]
    return lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nope"}, r"'nope' at file:.*; there are: empty, t\. Create it first"),
        ({"subscibe": "t"}, r"no read\w* option .subscibe.*Did you mean subscribe"),
        ({"subscribe": "t", "startingOffsets": "{"}, "Option startingOffsets is not JSON"),
        ({"subscribe": "t", "endingOffsets": '{"t":{"0":9,"1":0}}'}, "endingOffsets.*offset 9"),
        ({"assign": '{"t":[9]}'}, "Option assign: topic t has partitions 0 to 1, not 9"),
        ({"subscribe": "empty", "startingTimestamp": "1"}, "startingTimestamp: partition 0 of"),
    ],
)  # fmt: skip
def test_batch_error_is_the_last_line_that_spark_shows(
    spark: SparkSession, letters, options: dict[str, str], message: str
) -> None:
    """A traceback of ours around it is fine; a cause of Spark's below it would hide it (R60)."""
    with pytest.raises(PySparkException) as caught:
        spark.read.format("txnlog").options(**options).load(letters.root).count()
    assert shown(caught.value).startswith("txnlog.errors.")
    assert_matches(message, shown(caught.value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nope"}, r"'nope' at file:.*; there are: empty, t\. Create it first"),
        ({"subscribe": "t", "endingOffsets": "latest"}, "endingOffsets is for read, not for"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":0}}'}, "does not name partition 1 of"),
        ({"subscribe": "t", "maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'.*15m or 10s"),
    ],
)  # fmt: skip
def test_stream_error_is_the_last_line_that_spark_shows(
    spark: SparkSession, letters, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """Also as the exception of the query, which monitoring reads (R60)."""
    reader = spark.readStream.format("txnlog").options(**options)
    with pytest.raises(PySparkException) as caught:
        stop_at_end(reader.load(letters.root), tmp_path)
    assert_matches(message, shown(caught.value))


def test_error_with_a_cause_ends_with_ours(
    spark: SparkSession, letters, tmp_path: Path, damaged: str
) -> None:
    """pyarrow's or the store's error is the cause; the error names the file last (R60, R66)."""
    frame = spark.read.format("txnlog").option("subscribe", "t").load(letters.root)
    with pytest.raises(PySparkException) as caught:
        frame.count()
    assert_matches(f"CorruptLogError: Data file t/{damaged} .*Restore this", shown(caught.value))


def test_topic_deleted_under_a_stream_is_named_in_sparks_message(
    spark: SparkSession, letters, tmp_path: Path
) -> None:
    """(R60)"""
    reader = spark.readStream.format("txnlog").option("subscribe", "t")
    stop_at_end(reader.load(letters.root), tmp_path)
    letters.cluster.delete_topic("t")
    with pytest.raises(PySparkException) as caught:
        stop_at_end(reader.load(letters.root), tmp_path)
    assert_matches("topic t was deleted.*failOnDataLoss=false", shown(caught.value))


@pytest.fixture
def damaged(letters) -> str:
    """A truncated file of topic t."""
    header = letters.cluster.topic("t").view.batches(0, 0, 1, True)[0]
    store: ObjectStore = letters.cluster.store
    path = store.local_path(f"t/{header.path}")
    assert path is not None
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-9] + bytes(9))
    return header.path


def stop_at_end(frame: Any, folder: Path) -> None:
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)


def assert_matches(pattern: str, line: str) -> None:
    assert re.search(pattern, line), line
