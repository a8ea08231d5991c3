"""The flights of New York 2013, split exactly once into departures and cancellations.

    spark-submit jobs/flights.py                 the demo: feed, stream, kill, restart, check
    spark-submit jobs/flights.py feed   --root <root>
    spark-submit jobs/flights.py stream --root <root> --checkpoint <folder> [--available-now]
    spark-submit jobs/flights.py check  --root <root>

`feed` writes the flights month by month into topic `flights`, keyed by tail number. `stream` reads
them and writes each one into `departures` or `cancellations`: both topics and the group's offsets
in one transaction per micro-batch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from flights_data import FlightsDataError, months_of, read_flights
from flights_kills import DEFAULT_KILLS, parse_kills
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from spark_session import spark_environment

INPUT_TOPIC = "flights"
DEPARTURES = "departures"
CANCELLATIONS = "cancellations"
OUTPUT_TOPICS = (DEPARTURES, CANCELLATIONS)
GROUP_ID = "flights-by-outcome"
MAX_OFFSETS_PER_TRIGGER = 6_000


def open_session(app_name: str) -> SparkSession:
    """A session with conf/ and what spark-submit was told, its master included."""
    os.environ.update(spark_environment(os.environ))
    return SparkSession.builder.appName(app_name).getOrCreate()


def as_records(spark: SparkSession, flights: pa.Table) -> DataFrame:
    """Flights as records of topic `flights`: position, key (tail number or null), value (JSON)."""
    columns = [name for name in flights.column_names if name != "position"]
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    return spark.createDataFrame(flights).select(
        "position",
        F.col("tailnum").alias("key"),
        F.to_json(F.struct(*columns), options).alias("value"),
    )


def feed(spark: SparkSession, root: str, months: Sequence[int] | None = None) -> int:
    """Write the flights month by month into topic `flights`; returns the number of rows.

    A month is one transaction, and one that was written before is not written again: txnVersion
    is the month, as in a Delta table's idempotent writes.
    """
    flights = read_flights(months=months)
    for month in months_of(flights):
        rows = flights.filter(pc.equal(flights["month"], month))
        # A key's order is the order within one task, so all rows of a key go to one task, in order.
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
    """Records of topic `flights` as records of the topic each one belongs to.

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

    With a new checkpoint folder it goes on where the group's committed offsets are.
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0].startswith("--"):
        words = ["demo", *words] if words != ["--help"] else words
    arguments = _parser().parse_args(words)
    try:
        status: int = arguments.run(arguments)
    except FlightsDataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


def _run_feed(arguments: argparse.Namespace) -> int:
    feed(open_session("flights-feeder"), arguments.root, arguments.months)
    return 0


def _run_stream(arguments: argparse.Namespace) -> int:
    query = start_stream(
        open_session("flights-by-outcome"),
        arguments.root,
        arguments.checkpoint,
        max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        available_now=arguments.available_now,
    )
    query.awaitTermination()
    return 0


def _run_check(arguments: argparse.Namespace) -> int:
    from flights_check import check_root  # it imports this module

    report = check_root(open_session("flights-check"), arguments.root, arguments.months)
    if arguments.report is not None:
        arguments.report.write_text(report.to_json(), encoding="utf-8")
    for line in report.lines():
        print(line)
    return 0 if report.ok else 1


def _run_demo(arguments: argparse.Namespace) -> int:
    from flights_demo import DemoOptions, run_demo  # it imports this module

    return run_demo(
        DemoOptions(
            data_dir=arguments.data_dir,
            seed=arguments.seed,
            months=arguments.months,
            kills=arguments.kills,
            max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        )
    )


def _months(text: str) -> list[int]:
    months = [int(month) for month in text.split(",")]
    if not all(1 <= month <= 12 for month in months):
        raise argparse.ArgumentTypeError(f"months are 1 to 12, got {text}")
    return sorted(set(months))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flights.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--months", type=_months, help="only these months, as 1,2 (default: all)")
    paced = argparse.ArgumentParser(add_help=False)
    paced.add_argument("--max-offsets-per-trigger", type=int, default=MAX_OFFSETS_PER_TRIGGER)
    rooted = argparse.ArgumentParser(add_help=False)
    rooted.add_argument("--root", required=True, help="the cluster's root directory")

    demo = commands.add_parser("demo", parents=[every, paced], help="everything, under kills")
    demo.add_argument("--data-dir", type=Path, help="an empty or new folder")
    demo.add_argument("--seed", type=int, help="of the kills (default: a new one, printed)")
    demo.add_argument(
        "--kills",
        type=parse_kills,
        default=parse_kills(DEFAULT_KILLS),
        help=f"in this order (default: {DEFAULT_KILLS})",
    )
    demo.set_defaults(run=_run_demo)
    feeder = commands.add_parser("feed", parents=[every, rooted], help="write topic flights")
    feeder.set_defaults(run=_run_feed)
    stream = commands.add_parser("stream", parents=[paced, rooted], help="split the flights")
    stream.add_argument("--checkpoint", required=True, help="the query's checkpoint folder")
    stream.add_argument("--available-now", action="store_true", help="stop at the present end")
    stream.set_defaults(run=_run_stream)
    check = commands.add_parser("check", parents=[every, rooted], help="exactly once, in order?")
    check.add_argument("--report", type=Path, help="a file for the findings, as JSON")
    check.set_defaults(run=_run_check)
    return parser


if __name__ == "__main__":
    sys.exit(main())
