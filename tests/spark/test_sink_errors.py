"""Rows the sink must reject: Spark's message names the row and the remedy, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark import pipeline
from tests.spark.conftest import Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

COUNT = 40
BAD = 7
IS_BAD = f"{pipeline.NUMBER} = {BAD}"
ROW = r"Task \d: Row \d+ of this task"


@dataclass(frozen=True, slots=True)
class Case:
    """Columns that replace a valid row's, required parts of the message, sink options."""

    columns: dict[str, str]
    expected: tuple[str, ...]
    options: dict[str, object]


def case(*expected: str, options: dict[str, object] | None = None, **columns: str) -> Case:
    return Case(columns, expected, options or {})


HEADERS = "array(named_struct('key', cast({} as string), 'value', cast('v' as binary)))"

CASES = {
    "no topic": case(
        f"InvalidRecordError: {ROW}: null topic", "Use the topic option", "fill the column topic",
        topic=f"if({IS_BAD}, null, 'odds')",
    ),
    "illegal topic": case(
        f"InvalidTopicError: {ROW}, column topic: ", r"'no/such'", "1 to 249 of the characters",
        topic=f"if({IS_BAD}, 'no/such', 'odds')",
    ),
    "internal topic": case(
        f"InvalidTopicError: {ROW}, column topic: ", "'__consumer_offsets'",
        topic=f"if({IS_BAD}, '__consumer_offsets', 'odds')",
    ),
    "missing topic": case(
        f"UnknownTopicOrPartitionError: {ROW}, column topic: There is no topic 'nowhere'",
        "there are: evens, numbers, odds", "Create it first",
        topic=f"if({IS_BAD}, 'nowhere', 'odds')",
        options={"auto_create_topics_enable": "false"},
    ),
    "partition the topic does not have": case(
        f"InvalidRecordError: {ROW}: partition 2 does not exist, topic odds has 2 partitions",
        "0 to 1", "leave it null",
        partition=f"if({IS_BAD}, 2, null)",
    ),
    "negative partition": case(
        f"InvalidRecordError: {ROW}: partition -1 is negative", "null means partitioning by key",
        partition=f"if({IS_BAD}, -1, null)",
    ),
    "record too large": case(
        f"RecordTooLargeError: {ROW}: a record of 1100\\d\\d\\d bytes is larger than "
        "max.message.bytes = 1048588 of topic odds", "Nothing of this batch is published",
        "raise the topic's setting",
        value=f"if({IS_BAD}, repeat('x', 1100000), cast(value as string))",
    ),
    "header without a key": case(
        f"InvalidRecordError: {ROW} has a header without a key", "omit the header",
        headers=HEADERS.format(f"if({IS_BAD}, null, 'k')"),
    ),
    "time before 1970": case(
        f"InvalidRecordError: {ROW}: timestamp 1969-12-31",
        timestamp=f"if({IS_BAD}, timestamp'1969-12-31 23:59:59', null)",
    ),
}  # fmt: skip
# One that a task finds alone, one that the cluster knows, and one with an option's remedy.
IN_EVERY_RUN = ("header without a key", "missing topic", "record too large")


def state(root: Path) -> tuple[dict[str, int], int]:
    """Versions of the topics' logs, and offsets of the group: none of them may have changed."""
    cluster = Cluster.open(str(root))
    versions = {name: cluster.topic(name).log.version for name in cluster.list_topics()}
    positions = cluster.groups.fetch(pipeline.GROUP).values()
    return versions, sum(sum(partitions.values()) for partitions in positions)


def bad_rows(frame: DataFrame, columns: dict[str, str]) -> DataFrame:
    """The pipeline's rows in two tasks, one of which has a row that cannot be written."""
    topic = f"if({pipeline.NUMBER} % 2 = 0, 'evens', 'odds')"
    chosen = {"key": "key", "value": "cast(value as string)", "topic": topic, **columns}
    return frame.repartition(2).selectExpr(*(f"{sql} as {name}" for name, sql in chosen.items()))


def failure_of(what: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as failure:
        what()
    return str(failure.value)


@pytest.mark.parametrize(
    "names", [IN_EVERY_RUN, pytest.param(tuple(CASES), marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_stream_with_a_bad_row_commits_nothing_and_continues_when_it_is_corrected(
    lab: Lab, names: tuple[str, ...]
) -> None:
    """One row of 40, in one task of two: the other task's rows must not be committed (R60, R65)."""
    lab.feed(0, COUNT)
    cluster = Cluster.open(str(lab.root))
    for topic in pipeline.OUTPUTS:
        cluster.create_topic(topic, partitions=pipeline.PARTITIONS)
    before = state(lab.root)
    for name in names:
        wrong = CASES[name]
        frame = bad_rows(pipeline.numbers(lab.spark, lab.root), wrong.columns)
        query = pipeline.writer(frame, lab.root, lab.checkpoint, **wrong.options).start()
        with pytest.raises(StreamingQueryException) as failure:
            pipeline.run(query)
        check_readable(str(failure.value), wrong.expected)
        assert state(lab.root) == before, name
    lab.run()
    lab.check(COUNT)


def check_readable(message: str, expected: tuple[str, ...]) -> None:
    """The message is complete, and not hidden by stack frames."""
    for words in expected:
        assert re.search(words, message), f"{words!r} not in:\n{message}"
    assert message.count("Traceback (most recent call last)") == 1, message
    assert message.count('  File "') <= 2, message
    assert "During handling of the above exception" not in message
    assert ".scala" not in message.split("Logical Plan")[0]


def test_batch_write_names_the_task_and_the_row_in_it(spark: SparkSession, tmp_path: Path) -> None:
    """Rows count from 0 in each task: 17 of 20 in two tasks is row 7 of task 1 (R65)."""
    root = str(tmp_path)
    pipeline.feed(root, range(3), topic="t")
    version = Cluster.open(root).topic("t").log.version
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "if(id = 17, repeat('x', 2000000), 'small') as value", "cast('t' as string) topic"
    )
    message = failure_of(lambda: frame.write.format("txnlog").mode("append").save(root))
    check_readable(
        message, ("Task 1: Row 7 of this task: a record of 20000\\d\\d bytes", "of topic t")
    )
    assert Cluster.open(root).topic("t").log.version == version
    good = spark.range(0, 20, 1, 2).selectExpr("'k' key", "cast(id as string) value")
    good.write.format("txnlog").option("topic", "t").mode("append").save(root)
    assert len(pipeline.records(root, "t")) == 23


def test_illegal_name_beside_a_new_topic_creates_neither(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A rejected batch creates no empty topic (R60, R64)."""
    frame = spark.sql("select 'v' value, explode(array('fresh', 'no such')) topic")
    message = failure_of(lambda: frame.write.format("txnlog").mode("append").save(str(tmp_path)))
    check_readable(message, ("Task 0: Row 1 of this task, column topic: ", "'no such'"))
    assert Cluster.open(str(tmp_path)).list_topics() == []


def test_wrong_columns_are_refused_before_a_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    """A schema is wrong for all rows: the message names column, type and allowed types (R60)."""
    root = tmp_path / "root"
    wrong = {
        "value": "cast(1.5 as double)",
        "key": "1",
        "topic": "array('t')",
        "partition": "cast(1 as bigint)",
        "timestamp": "'2013-01-01'",
        "headers": "map('k', 'v')",
    }
    types = {
        "value": ("double", "string or binary"),
        "key": ("int", "string or binary"),
        "topic": ("list", "string"),
        "partition": ("bigint", "int"),
        "timestamp": ("string", "double or timestamp"),
        "headers": ("map", "array<struct<key:string,value:binary>>"),
    }
    for name, sql in wrong.items():
        columns = {"value": "'v'", "topic": "'t'", name: sql}
        frame = spark.range(1).selectExpr(*(f"{sql} as {name}" for name, sql in columns.items()))
        message = failure_of(lambda: frame.write.format("txnlog").mode("append").save(str(root)))  # noqa: B023
        found, allowed = types[name]
        check_readable(
            message,
            (
                f"InvalidRecordError: {name} attribute unsupported type {found}",
                re.escape(f"{name} must be a(n) {allowed}"),
                "Cast it, or rename the column",
            ),
        )
    assert not root.exists()


def test_null_values_are_tombstones_and_a_void_column_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As in Kafka a null value deletes its key; NULL without a type may be a mistake (R60)."""
    write = spark.sql("select 'k' key, cast(null as string) value, 't' topic").write
    write.format("txnlog").mode("append").save(str(tmp_path))
    read = spark.read.format("txnlog").option("subscribe", "t").load(str(tmp_path))
    assert [(bytes(row.key), row.value) for row in read.collect()] == [(b"k", None)]
    frame = spark.sql("select 'k' key, null value, 't' topic")
    message = failure_of(lambda: frame.write.format("txnlog").mode("append").save(str(tmp_path)))
    check_readable(message, ("value attribute unsupported type void", "string or binary"))


def test_damaged_topic_log_is_named_with_its_cause_and_nothing_is_lost(lab: Lab) -> None:
    """Of a chain of errors Spark shows the last one only: it must include the first one
    (R66).
    """
    lab.feed(0, COUNT)
    lab.run()
    lab.feed(COUNT, 2 * COUNT)
    commits = sorted((lab.root / "evens" / "_delta_log").glob("*.json"))
    # A commit after the newest one: workers keep what they have read.
    damaged = commits[-1].with_name(f"{int(commits[-1].stem) + 1:020}.json")
    damaged.write_bytes(commits[-1].read_bytes()[:-20])
    try:
        with pytest.raises(StreamingQueryException) as failure:
            lab.run()
        check_readable(str(failure.value), (r"CorruptLogError: .*evens/_delta_log/0+\d\.json",))
        assert "truncated or garbled" in str(failure.value)
    finally:
        damaged.unlink()
    lab.run()
    lab.check(2 * COUNT)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("num_partition", ("num.partition", "Did you mean num.partitions")),
        (
            "transactional_id",
            ("transactional.id is not supported as writeStream option", "what group.id does"),
        ),
    ],
)
def test_option_that_the_sink_does_not_take_is_refused_before_anything_runs(
    lab: Lab, option: str, expected: tuple[str, str]
) -> None:
    """An option that is silently ignored is noticed only in production (R60)."""
    lab.feed(0, 3)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root))
    query = pipeline.writer(frame, lab.root, lab.checkpoint, **{option: "x"})
    message = failure_of(lambda: pipeline.run(query.start()))
    check_readable(message, expected)
    assert lab.values() == []
