"""The pipeline: reads flights, writes departures and cancellations, in ordinary PySpark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from flights_data import months_of, read_flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

INPUT_TOPIC = "flights"
DEPARTURES = "departures"
CANCELLATIONS = "cancellations"
OUTPUT_TOPICS = (DEPARTURES, CANCELLATIONS)
GROUP_ID = "flights-by-outcome"
MAX_OFFSETS_PER_TRIGGER = 6_000


def as_records(spark: SparkSession, flights: pa.Table) -> DataFrame:
    """Flights as records of topic `flights`: key (tail number or null) and value (JSON).

    The columns position and dep_time are for the feeder and the check.
    """
    columns = [name for name in flights.column_names if name != "position"]
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    return spark.createDataFrame(flights).select(
        "position",
        "dep_time",
        F.col("tailnum").alias("key"),
        F.to_json(F.struct(*columns), options).alias("value"),
    )


def feed(spark: SparkSession, root: str, months: Sequence[int] | None = None) -> int:
    """Write the flights month by month into topic `flights`; returns the number of rows.

    A month is one transaction, and a month that was written before is skipped: txnVersion is the
    month, as in a Delta table's idempotent writes.
    """
    flights = read_flights(months=months)
    for month in months_of(flights):
        rows = flights.filter(pc.equal(flights["month"], month))
        # Order is kept within one task, so all rows of a key go to one task, in order.
        records = as_records(spark, rows).repartition(2, "key").sortWithinPartitions("position")
        (
            records.select("key", "value")
            .write.format("txnlog")
            .mode("append")
            .option("topic", INPUT_TOPIC)
            .option("txnAppId", "flights-feeder")
            .option("txnVersion", month)
            .save(root)
        )
        print(f"month {month}: {rows.num_rows:,} flights fed", flush=True)
    return len(flights)


def by_outcome(flights: DataFrame) -> DataFrame:
    """Records of topic `flights`, each with its output topic.

    Reads column value (string or binary JSON); returns key, value, topic.
    """
    dep_time = F.get_json_object(F.col("value").cast("string"), "$.dep_time")
    topic = F.when(dep_time.isNull(), CANCELLATIONS).otherwise(DEPARTURES)
    return flights.select("key", "value", topic.alias("topic"))


def start_stream(
    spark: SparkSession,
    root: str,
    checkpoint: str,
    *,
    max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER,
    available_now: bool = False,
) -> StreamingQuery:
    """Start the query that splits the flights; each micro-batch is one transaction.

    With a new checkpoint folder it starts at the group's committed offsets.
    """
    flights = (
        spark.readStream.format("txnlog")
        .option("subscribe", INPUT_TOPIC)
        .option("group.id", GROUP_ID)
        .option("startingOffsets", "committed")
        .option("auto.offset.reset", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        .load(root)
    )
    writer = (
        by_outcome(flights)
        .writeStream.format("txnlog")
        .option("path", root)
        .option("group.id", GROUP_ID)
        .option("checkpointLocation", checkpoint)
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()
