"""Several sources in one query: unions, joins, with a Spark source, with the sink's group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark

Run = Callable[[DataFrame], list[str]]


@pytest.fixture
def two(topics) -> Any:
    """Topics a and b, with a1..a3 and b1..b3, keyed 1..3."""
    for topic in ("a", "b"):
        topics.create(topic, 2)
        fill(topics, topic, 1, 4)
    return topics


def fill(topics: Any, topic: str, first: int, end: int) -> None:
    numbers = [str(number) for number in range(first, end)]
    topics.append(
        topic,
        first % 2,
        [f"{topic}{number}".encode() for number in numbers],
        keys=[number.encode() for number in numbers],
    )


def stream_of(spark: SparkSession, topics: Any, topic: str, **options: str) -> DataFrame:
    names = {name.replace("_", "."): value for name, value in options.items()}
    given = {"subscribe": topic, "startingOffsets": "earliest", **names}
    return (
        spark.readStream.format("txnlog")
        .options(**given)
        .load(topics.root)
        .selectExpr("cast(key AS string) AS key", "cast(value AS string) AS value", "timestamp")
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a stream of `value` on the available input, from its checkpoint; returns its values."""

    def run_to_end(frame: DataFrame) -> list[str]:
        values: list[str] = []

        def keep(batch: DataFrame, _: int) -> None:
            values.extend(row.value for row in batch.collect())

        query = (
            frame.select("value")
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)
        return sorted(values)

    return run_to_end


def test_union_of_two_topics_and_of_rate_continues_at_a_restart(
    spark: SparkSession, two, run: Run
) -> None:
    """Each source has its own line in the offsets file; lines of other sources are ignored."""
    a, b = stream_of(spark, two, "a", maxOffsetsPerTrigger="2"), stream_of(spark, two, "b")
    rate = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch="2", numPartitions="1")
        .load()
        .select(F.lit("rate").alias("value"))
    )
    frame = a.select("value").union(b.select("value")).union(rate)
    found = run(frame)
    assert [value for value in found if value != "rate"] == ["a1", "a2", "a3", "b1", "b2", "b3"]
    assert "rate" in found
    fill(two, "b", 4, 5)
    assert [value for value in run(frame) if value != "rate"] == ["b4"]


@pytest.mark.parametrize("loads", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_self_union_gives_every_record_twice(
    spark: SparkSession, two, run: Run, loads: int
) -> None:
    """One DataFrame twice, or one topic loaded twice: two complete reads of one topic."""
    frames = [stream_of(spark, two, "a", failOnDataLoss="true") for _ in range(loads)]
    frame = frames[0].union(frames[-1])
    assert run(frame) == ["a1", "a1", "a2", "a2", "a3", "a3"]
    fill(two, "a", 4, 5)
    assert run(frame) == ["a4", "a4"]


@pytest.mark.soak
def test_join_of_two_topics_finds_pairs_across_batches(spark: SparkSession, two, run: Run) -> None:
    """Spark keeps one side until the other arrives; both sources continue from their offsets."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        a = stream_of(spark, two, "a").select("key", F.col("value").alias("left"))
        b = stream_of(spark, two, "b").select("key", F.col("value").alias("right"))
        frame = a.join(b, "key").select(F.concat("left", "right").alias("value"))
        fill(two, "a", 4, 6)
        assert run(frame) == ["a1b1", "a2b2", "a3b3"]
        fill(two, "b", 4, 5)
        assert run(frame) == ["a4b4"]
    finally:
        spark.conf.unset("spark.sql.shuffle.partitions")


def test_join_of_a_stream_with_a_batch_read_of_a_topic(spark: SparkSession, two, run: Run) -> None:
    """A look-up table in a topic, read once per run."""
    table = (
        spark.read.format("txnlog")
        .options(subscribe="b")
        .load(two.root)
        .selectExpr("cast(key AS string) AS key", "cast(value AS string) AS right")
    )
    frame = stream_of(spark, two, "a").join(F.broadcast(table), "key")
    assert run(frame.select(F.concat("value", "right").alias("value"))) == ["a1b1", "a2b2", "a3b3"]


# --- With the sink's group ------------------------------------------------------------------------


def write(frame: DataFrame, topics: Any, checkpoint: Path, group: str) -> None:
    query = (
        frame.select("value", F.lit("out").alias("topic"))
        .writeStream.format("txnlog")
        .options(**{"group.id": group, "checkpointLocation": str(checkpoint)})
        .trigger(availableNow=True)
        .start(topics.root)
    )
    assert query.awaitTermination(600)


def written(topics: Any) -> int:
    log = topics.cluster.topic("out")
    return sum(log.view.high_watermark(partition) for partition in range(log.partitions))


def test_group_of_a_source_used_twice_is_committed_once(
    spark: SparkSession, two, tmp_path: Path
) -> None:
    """One load() under a group may feed several branches; beside it others read without group."""
    grouped = stream_of(spark, two, "a,b", group_id="g").select("value")
    branches = grouped.where("value LIKE 'a%'").union(grouped.where("value LIKE 'b%'"))
    other = stream_of(spark, two, "b").select("value")
    write(branches.union(other), two, tmp_path / "checkpoint", "g")
    assert written(two) == 9
    assert two.cluster.groups.fetch("g") == {"a": {0: 0, 1: 3}, "b": {0: 0, 1: 3}}
    fill(two, "a", 4, 6)
    write(branches.union(other), two, tmp_path / "checkpoint", "g")
    assert written(two) == 11
    assert two.cluster.groups.fetch("g") == {"a": {0: 2, 1: 3}, "b": {0: 0, 1: 3}}


def test_group_of_two_sources_is_refused_with_the_remedy(
    spark: SparkSession, two, tmp_path: Path
) -> None:
    """The second source fences the first; nothing is written before that is detected (R60)."""
    frames = [stream_of(spark, two, topic, group_id="g").select("value") for topic in "ab"]
    with pytest.raises(StreamingQueryException, match="Read the topics with one source"):
        write(frames[0].union(frames[1]), two, tmp_path / "checkpoint", "g")
    assert two.cluster.groups.fetch("g") == {}
    assert "out" not in two.cluster.list_topics() or written(two) == 0


def test_groups_of_two_sources_are_committed_each_under_its_own(
    spark: SparkSession, two, tmp_path: Path
) -> None:
    """Both inputs count as read exactly if the output is published; the sink names one group."""
    frames = [stream_of(spark, two, t, group_id=f"of-{t}").select("value") for t in "ab"]
    write(frames[0].union(frames[1]), two, tmp_path / "checkpoint", "of-b")
    assert written(two) == 6
    assert two.cluster.groups.fetch("of-a") == {"a": {0: 0, 1: 3}}
    assert two.cluster.groups.fetch("of-b") == {"b": {0: 0, 1: 3}}


def test_offsets_file_has_a_line_for_each_source(spark: SparkSession, two, tmp_path: Path) -> None:
    """The sink reads it in the checkpoint: one JSON per source, with the ids of its topics."""
    frame = stream_of(spark, two, "a").union(stream_of(spark, two, "b"))
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    lines = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[2:]
    assert [sorted(json.loads(line)) for line in lines] == [["@", "a"], ["@", "b"]]
