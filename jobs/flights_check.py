"""Checks with two readers that each flight is in exactly one topic, exactly once, in order.

One reader is format("txnlog") with read_committed, the other is Spark's Delta reader, which uses
only the column txn_status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce

from flights_data import read_flights
from flights_pipeline import (
    CANCELLATIONS,
    DEPARTURES,
    GROUP_ID,
    INPUT_TOPIC,
    OUTPUT_TOPICS,
    as_records,
)
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from txnlog import Cluster

COMMITTED = "txn_status IN ('none', 'committed')"
MARKERS = "WRITE TXN MARKERS"
"""The operation that ends a transaction in a topic. The pipeline never aborts one with data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one reader found in some topics, compared with what is expected, as numbers of rows.

    out_of_order: rows right after a later input row of the same key and topic-partition.
    scattered_keys: keys of a topic that are in more than one partition.
    offset_gaps: offsets from 0 to a partition's end that no row has, or that several rows have.
    fingerprint: equal if two readers found the same rows at the same offsets.
    """

    reader: str
    rows: int
    missing: int
    duplicates: int
    unexpected: int
    misplaced: int
    wrong_keys: int
    out_of_order: int
    scattered_keys: int
    offset_gaps: int
    fingerprint: str

    def problems(self) -> list[str]:
        """One line for each count that should be 0 and is not."""
        zeros = (
            "missing",
            "duplicates",
            "unexpected",
            "misplaced",
            "wrong_keys",
            "out_of_order",
            "scattered_keys",
            "offset_gaps",
        )
        return [
            f"{self.reader}: {name.replace('_', ' ')} {getattr(self, name):,}"
            for name in zeros
            if getattr(self, name)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of the check: deliveries by reader, transactions, and all problems."""

    deliveries: tuple[Delivery, ...]
    rows_by_topic: dict[str, int]
    transactions: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def delivery(self, reader: str) -> Delivery:
        """The delivery of one reader."""
        return next(delivery for delivery in self.deliveries if delivery.reader == reader)

    def to_json(self) -> str:
        """The report as JSON; from_json is the inverse."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that to_json wrote."""
        fields = json.loads(text)
        fields["deliveries"] = tuple(Delivery(**delivery) for delivery in fields["deliveries"])
        fields["problems"] = tuple(fields["problems"])
        return cls(**fields)

    def lines(self) -> list[str]:
        """The report as text."""
        topics = ", ".join(f"{topic} {rows:,}" for topic, rows in self.rows_by_topic.items())
        verdict = self.problems or ("exactly once, in order, the same for both readers",)
        return [f"rows: {topics}", f"transactions: {self.transactions:,}", *verdict]


def expected_output(spark: SparkSession, months: Sequence[int] | None = None) -> DataFrame:
    """Every flight with the topic it belongs to: position, topic, key, value (its digest)."""
    records = as_records(spark, read_flights(months=months))
    topic = F.when(F.col("dep_time").isNull(), CANCELLATIONS)
    columns = ("position", topic.otherwise(DEPARTURES).alias("topic"), *_key_and_digest())
    return records.select(*columns)


def read_topics(spark: SparkSession, root: str, topics: Sequence[str]) -> DataFrame:
    """The topics' records under read_committed.

    Columns: topic, partition, offset, key, value (its digest).
    """
    records = (
        spark.read.format("txnlog")
        .option("subscribe", ",".join(topics))
        .option("isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .load(root)
    )
    return records.select("topic", "partition", "offset", *_key_and_digest())


def read_tables(spark: SparkSession, root: str, topics: Sequence[str]) -> DataFrame:
    """The same columns by SQL on the topics' Delta tables."""
    tables = [
        spark.sql(
            f"SELECT '{topic}' AS topic, partition, base_offset + offset_delta AS offset, "
            f"key, value FROM delta.`{root}/{topic}` WHERE {COMMITTED}"
        )
        for topic in topics
    ]
    rows = reduce(lambda above, below: above.unionByName(below), tables)
    return rows.select("topic", "partition", "offset", *_key_and_digest())


def check_delivery(reader: str, found: DataFrame, expected: DataFrame) -> Delivery:
    """Compare the rows of a reader with the input.

    found: topic, partition, offset, key, value. expected: position (the input's order), topic,
    key, value; values are unique. A flight is identified by its value (or the value's digest),
    so a row with one changed byte is one missing and one unexpected row.
    """
    wanted = expected.select(
        "value", "position", F.col("topic").alias("wanted_topic"), F.col("key").alias("wanted_key")
    )
    in_order = Window.partitionBy("topic", "partition", "key").orderBy("offset")
    before = F.lag("position").over(in_order)
    matched = found.join(F.broadcast(wanted), "value", "left").withColumn(
        "follows_later", F.col("key").isNotNull() & (before > F.col("position"))
    )
    is_expected = F.col("position").isNotNull()
    row = F.xxhash64("topic", "partition", "offset", "key", "value").cast("decimal(38,0)")
    totals = _only_row(
        matched.agg(
            F.count("*").alias("rows"),
            F.count("position").alias("expected"),
            F.count_distinct("position").alias("distinct"),
            _count(is_expected & (F.col("topic") != F.col("wanted_topic"))).alias("misplaced"),
            _count(is_expected & ~F.col("key").eqNullSafe(F.col("wanted_key"))).alias("wrong_keys"),
            _count(F.col("follows_later")).alias("out_of_order"),
            F.sum(row).alias("hash"),
        )
    )
    return Delivery(
        reader=reader,
        rows=totals["rows"],
        missing=expected.count() - totals["distinct"],
        duplicates=totals["expected"] - totals["distinct"],
        unexpected=totals["rows"] - totals["expected"],
        misplaced=totals["misplaced"],
        wrong_keys=totals["wrong_keys"],
        out_of_order=totals["out_of_order"],
        scattered_keys=_scattered_keys(found),
        offset_gaps=_offset_gaps(found),
        fingerprint=f"{totals['rows']}/{totals['hash']}",
    )


def committed_offsets(spark: SparkSession, root: str, group_id: str) -> dict[str, dict[str, int]]:
    """The group's committed positions by topic and partition, from the Delta table of offsets."""
    shard = f"delta.`{root}/__consumer_offsets-{Cluster.open(root).offsets_shard_of(group_id)}`"
    row = spark.sql(f"SELECT offsets FROM {shard} WHERE group_id = '{group_id}'").first()
    committed = json.loads(row["offsets"]) if row is not None else {}
    return {
        topic: {partition: entry[0] for partition, entry in partitions.items()}
        for topic, partitions in committed.items()
    }


def count_transactions(spark: SparkSession, root: str, topics: Sequence[str]) -> int:
    """The number of committed transactions in any of the topics, from their tables' history.

    The headers of their batches do not show it: compaction has merged them.
    """
    ends = [
        spark.sql(f"DESCRIBE HISTORY delta.`{root}/{topic}`")
        .where(f"operation = '{MARKERS}'")
        .select("operationParameters.producerId", "operationParameters.producerEpoch")
        for topic in topics
    ]
    return reduce(lambda above, below: above.union(below), ends).distinct().count()


def check_root(spark: SparkSession, root: str, months: Sequence[int] | None = None) -> Report:
    """Check the output with both readers, and that the group has read all input."""
    expected = expected_output(spark, months).cache()
    found = {
        "txnlog": read_topics(spark, root, OUTPUT_TOPICS).cache(),
        "delta": read_tables(spark, root, OUTPUT_TOPICS).cache(),
    }
    deliveries = tuple(check_delivery(name, rows, expected) for name, rows in found.items())
    problems = [problem for delivery in deliveries for problem in delivery.problems()]
    if len({delivery.fingerprint for delivery in deliveries}) > 1:
        problems.append("txnlog and delta: the two readers found different rows or offsets")
    by_topic = {r["topic"]: r["count"] for r in found["txnlog"].groupBy("topic").count().collect()}
    rows_fed = read_topics(spark, root, [INPUT_TOPIC]).count()
    problems += offset_problems(committed_offsets(spark, root, GROUP_ID), rows_fed)
    return Report(
        deliveries=deliveries,
        rows_by_topic={topic: by_topic.get(topic, 0) for topic in OUTPUT_TOPICS},
        transactions=count_transactions(spark, root, OUTPUT_TOPICS),
        problems=tuple(problems),
    )


def offset_problems(committed: Mapping[str, Mapping[str, int]], rows_fed: int) -> list[str]:
    """Problems of the group's offsets: offsets are dense, so they count the rows read."""
    rows_read = sum(committed.get(INPUT_TOPIC, {}).values())
    if rows_read == rows_fed:
        return []
    return [f"group {GROUP_ID}: its offsets count {rows_read:,} rows, but {rows_fed:,} were fed"]


def _scattered_keys(found: DataFrame) -> int:
    keyed = found.where(F.col("key").isNotNull()).groupBy("topic", "key")
    return keyed.agg(F.count_distinct("partition").alias("n")).where("n > 1").count()


def _offset_gaps(found: DataFrame) -> int:
    partitions = found.groupBy("topic", "partition").agg(
        F.count("*").alias("rows"),
        F.count_distinct("offset").alias("distinct"),
        (F.max("offset") + 1).alias("end"),
    )
    gaps = F.col("end") - F.col("distinct") + F.col("rows") - F.col("distinct")
    return int(_only_row(partitions.agg(F.coalesce(F.sum(gaps), F.lit(0)).alias("gaps")))["gaps"])


def _only_row(aggregate: DataFrame) -> Row:
    row = aggregate.first()
    assert row is not None, "an aggregate without groups has one row"
    return row


def _count(condition: Column) -> Column:
    return F.count_if(F.coalesce(condition, F.lit(False)))


def _key_and_digest() -> tuple[Column, Column]:
    # Rows of 350 bytes are compared by digest, so that the joins of the check carry less. The
    # probability that two of 336,776 share one is below 1 in 300 million, and would be reported.
    return F.col("key").cast("string").alias("key"), F.md5(F.col("value").cast("binary")).alias(
        "value"
    )
