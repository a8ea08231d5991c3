"""What source and sink reject, and whether Spark's exception has the reason and the remedy."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_sink.sink import stream_writer
from tests.spark import pipeline
from tests.spark.conftest import Lab
from txnlog.errors import ConfigError

pytestmark = pytest.mark.spark


def refusal(what: Any) -> str:
    """The message of the exception that Spark raises, without the Python traceback's frames."""
    with pytest.raises(PySparkException) as failure:
        what()
    return re.sub(r'\s*File "[^"]*", line \d+, in .*\n.*', "", str(failure.value))


def stream_refusal(frame: DataFrame, lab: Lab, **options: object) -> str:
    """Run a query that must fail."""
    return refusal(
        lambda: pipeline.run(pipeline.writer(frame, lab.root, lab.checkpoint, **options).start())
    )


def test_complete_mode_is_refused_with_the_mode_to_use(lab: Lab) -> None:
    """Complete mode would append the whole result again with every batch."""
    lab.feed(0, 10)
    counts = pipeline.numbers(lab.spark, lab.root).groupBy("key", "topic").count()
    counts = counts.selectExpr("key", "cast(count as string) value", "topic")
    query = pipeline.writer(counts, lab.root, lab.checkpoint).outputMode("complete")
    message = refusal(lambda: pipeline.run(query.start()))
    assert "Output mode complete" in message
    assert 'outputMode("append")' in message


def test_continuous_trigger_writes_nothing_and_logs_the_reason(lab: Lab) -> None:
    """Spark runs no write() of a Python sink then, and only logs what its commit raises.

    So the query cannot be failed; but no epoch is committed, and the log has the remedy.
    """
    lab.feed(0, 10)
    rate = lab.spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    frame = rate.selectExpr("cast(value as string) value", "'evens' topic")
    query = pipeline.writer(frame, lab.root, lab.checkpoint, group_id=None)
    # Long epochs, so that their commits do not queue up and continue during the next tests.
    running = query.trigger(continuous="1 second").start()
    running.awaitTermination(2.5)
    running.stop()
    assert lab.values() == []
    assert not list((lab.checkpoint / "commits").glob("[0-9]*"))
    options = {"txnlog.root": str(lab.root)}
    sink = stream_writer(options, frame.schema, overwrite=False)
    with pytest.raises(ConfigError, match="continuous trigger"):
        sink.commit([None, None], 0)


def test_group_id_without_a_checkpoint_location_of_the_query_is_refused(lab: Lab) -> None:
    """The session's default location never reaches the sink, which needs the offsets in it."""
    lab.feed(0, 10)
    key = "spark.sql.streaming.checkpointLocation"
    lab.spark.conf.set(key, str(lab.checkpoint))
    try:
        frame = pipeline.split(pipeline.numbers(lab.spark, lab.root))
        message = stream_refusal(frame, lab, checkpointLocation=None)
    finally:
        lab.spark.conf.unset(key)
    assert "group.id=splitters" in message
    assert '.option("checkpointLocation", ...)' in message
    assert lab.values() == []


def test_group_id_that_differs_between_source_and_sink_is_refused(lab: Lab) -> None:
    """The offsets would be committed to a group that no source uses."""
    lab.feed(0, 10)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root))
    message = stream_refusal(frame, lab, group_id="other")
    assert "group.id of the sink is other" in message
    assert "splitters" in message


@pytest.mark.parametrize("source_options", [{}, {"group_id": None}])
def test_group_id_of_the_sink_without_one_in_the_source_is_refused(
    lab: Lab, source_options: dict[str, object]
) -> None:
    """Nothing would be committed, and a lost checkpoint would repeat everything."""
    lab.feed(0, 10)
    if source_options:
        source = {"startingOffsets": "earliest", "auto.offset.reset": None, **source_options}
        frame = pipeline.split(pipeline.numbers(lab.spark, lab.root, **source))
    else:
        rate = lab.spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        frame = rate.selectExpr("cast(value as string) value", "'evens' topic")
    message = stream_refusal(frame, lab)
    assert "no source of this query reads this cluster with a group.id" in message


COLUMNS = {
    "no value": ("select 'a' key, 't' topic", {}, "Required attribute 'value' not found"),
    "value of a wrong type": ("select 1 value, 't' topic", {}, "must be a(n) string or binary"),
    "no topic": ("select 'v' value", {}, "topic option required"),
    "topic of a row null": ("select 'v' value, cast(null as string) topic", {}, "null topic"),
    "topic name not legal": ("select 'v' value, '../x' topic", {}, "../x"),
    "internal topic": ("select 'v' value, '__consumer_offsets' topic", {}, "__consumer_offsets"),
    "partition that is not there": (
        "select 'v' value, 't' topic, 9 partition", {"num_partitions": 2}, "partition 9",
    ),
    "unknown option": ("select 'v' value, 't' topic", {"topik": "t"}, "Did you mean topic?"),
    "eager": ("select 'v' value, 't' topic", {"transaction_publish": "eager"}, "eager"),
    # Delta's SQL extension raises before our sink.
    "txnAppId alone": ("select 'v' value, 't' topic", {"txnAppId": "a"}, "txnVersion and txnAppId"),
    "stream's option": ("select 'v' value, 't' topic", {"group_id": "g"}, "group.id"),
}  # fmt: skip


@pytest.mark.parametrize("case", COLUMNS)
def test_batch_write_of_wrong_columns_or_options_is_refused(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    """A message that names the column, the topic or the option (R60, R64)."""
    sql, options, expected = COLUMNS[case]
    chosen = pipeline.set_options({}, options)
    frame = spark.sql(sql).write.format("txnlog").options(**chosen).mode("append")
    message = refusal(lambda: frame.save(str(tmp_path)))
    assert expected.lower() in message.lower()
    assert not list(tmp_path.glob("t/part-*")) or case == "partition that is not there"


def test_batch_write_modes_other_than_append_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """overwrite would have to delete what readers have offsets of."""
    frame = spark.sql("select 'v' value, 't' topic")
    message = refusal(
        lambda: frame.write.format("txnlog").mode("overwrite").save(str(tmp_path / "root"))
    )
    assert 'mode("append")' in message


def test_stream_of_a_missing_topic_names_the_existing_ones(lab: Lab) -> None:
    """A misspelt topic (R60)."""
    lab.feed(0, 10)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root, subscribe="nubmers"))
    message = stream_refusal(frame, lab)
    assert "nubmers" in message
    assert "there are: numbers" in message


def test_read_of_a_root_without_a_cluster_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong path read as an empty cluster."""
    frame = spark.read.format("txnlog").option("subscribe", "t").load
    message = refusal(lambda: frame(str(tmp_path / "nothing")).count())
    assert str(tmp_path / "nothing") in message
    assert not (tmp_path / "nothing").exists()


def test_checkpoint_of_another_cluster_is_refused(lab: Lab) -> None:
    """Offsets of one cluster are meaningless in another."""
    lab.feed(0, 10)
    lab.run()
    other = lab.root.with_name("other")
    pipeline.feed(other, range(20))
    message = refusal(lambda: pipeline.run(pipeline.start(lab.spark, other, lab.checkpoint)))
    assert "belongs to cluster" in message


SOURCE_ERRORS: dict[str, tuple[bool, dict[str, str], str, str]] = {
    "unknown option of a batch": (False, {"subscibe": "t"}, "", "Did you mean subscribe?"),
    "unknown option of a stream": (True, {"subscibe": "t"}, "", "Did you mean subscribe?"),
    "option of a batch in a stream": (
        True, {"subscribe": "numbers", "endingOffsets": "latest"}, "", "endingOffsets",
    ),
    "schema": (False, {"subscribe": "numbers"}, "a int", "schema of format txnlog is fixed"),
    "schema of a stream": (True, {"subscribe": "numbers"}, "a int", "schema of format txnlog is"),
    "missing topic": (False, {"subscribe": "nope"}, "", "There is no topic 'nope'"),
    "missing topic of a stream": (True, {"subscribe": "nope"}, "", "There is no topic 'nope'"),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCE_ERRORS)
def test_errors_of_the_source_are_as_short_as_those_of_the_sink(lab: Lab, case: str) -> None:
    """The reason stood below forty lines of frames that say nothing to a user."""
    lab.feed(0, 10)
    is_stream, options, schema, expected = SOURCE_ERRORS[case]
    reader: Any = lab.spark.readStream if is_stream else lab.spark.read
    reader = reader.format("txnlog").options(**options)

    def read() -> None:
        frame = (reader.schema(schema) if schema else reader).load(str(lab.root))
        if is_stream:
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            pipeline.run(writer.option("checkpointLocation", str(lab.checkpoint)).start())
        else:
            frame.count()

    with pytest.raises(PySparkException) as failure:
        read()
    reason, _, _ = str(failure.value).partition("=== Streaming Query ===")
    assert expected in reason
    # Of the plan that Spark appends to an error of a stream nothing can be said.
    assert len(reason.splitlines()) <= 14, reason
    assert sum("txnlog" in line for line in re.findall(r'File "[^"]*"', reason)) <= 2


def test_update_mode_is_refused_by_spark_and_foreach_batch_is_the_way(lab: Lab) -> None:
    """Spark asks no Python sink about output mode update; docs/options.md has the way around."""
    lab.feed(0, 10)
    counts = pipeline.numbers(lab.spark, lab.root).groupBy("key").count()
    counts = counts.selectExpr("key", "cast(count as string) value", "'evens' topic")
    query = pipeline.writer(counts, lab.root, lab.checkpoint).outputMode("update")
    assert "does not support Update mode" in refusal(lambda: pipeline.run(query.start()))


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_batch_write_without_a_mode_is_refused_by_spark(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Spark asks no Python sink about these modes; its error names the mode to use."""
    frame = spark.sql("select 'v' value, 't' topic").write.format("txnlog").mode(mode)
    assert '"Append"' in refusal(lambda: frame.save(str(tmp_path / "root")))
    assert not (tmp_path / "root").exists()


def test_create_table_is_refused_with_the_view_to_use(lab: Lab) -> None:
    """Spark would create the table, and fail at the first read of it."""
    lab.feed(0, 10)
    options = f"USING txnlog OPTIONS (path '{lab.root}', subscribe 'numbers')"
    message = refusal(lambda: lab.spark.sql(f"CREATE TABLE refused {options}"))
    assert "CREATE TEMPORARY VIEW" in message
    assert not lab.spark.catalog.tableExists("refused")
    lab.spark.sql(f"CREATE TEMPORARY VIEW seen {options}")
    try:
        assert lab.spark.sql("SELECT * FROM seen WHERE partition >= 0").count() == 10
    finally:
        lab.spark.catalog.dropTempView("seen")


def test_stream_of_a_thread_is_found_once_the_thread_has_an_active_session(lab: Lab) -> None:
    """Spark looks for a Python sink in the thread's active session, and a new thread has none."""
    lab.feed(0, 10)
    frame = pipeline.numbers(lab.spark, lab.root).selectExpr("key", "value", "'copied' topic")
    query = pipeline.writer(frame, lab.root, lab.checkpoint)

    def start(*before: Any) -> str:
        with ThreadPoolExecutor(1) as thread:
            for call in before:
                thread.submit(call).result()
            try:
                pipeline.run(thread.submit(query.start).result())
            except Exception as error:
                return str(error)
        return ""

    assert "DATA_SOURCE_NOT_FOUND" in start()
    assert start(lambda: lab.spark.createDataFrame([], "a int")) == ""
    assert len(pipeline.records(lab.root, "copied")) == 10
