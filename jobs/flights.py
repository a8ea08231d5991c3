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

from flights_data import FlightsDataError
from flights_kills import DEFAULT_KILLS, parse_kills
from flights_pipeline import MAX_OFFSETS_PER_TRIGGER, feed, start_stream
from pyspark.sql import SparkSession
from spark_session import spark_environment


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


def _open_session(app_name: str) -> SparkSession:
    """A session with the settings of conf/ and of spark-submit, including its master."""
    os.environ.update(spark_environment(os.environ))
    return SparkSession.builder.appName(app_name).getOrCreate()


def _run_feed(arguments: argparse.Namespace) -> int:
    feed(_open_session("flights-feeder"), arguments.root, arguments.months)
    return 0


def _run_stream(arguments: argparse.Namespace) -> int:
    query = start_stream(
        _open_session("flights-by-outcome"),
        arguments.root,
        arguments.checkpoint,
        max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        available_now=arguments.available_now,
    )
    query.awaitTermination()
    return 0


def _run_check(arguments: argparse.Namespace) -> int:
    from flights_check import check_root  # the drivers that stream start without it

    report = check_root(_open_session("flights-check"), arguments.root, arguments.months)
    if arguments.report is not None:
        arguments.report.write_text(report.to_json(), encoding="utf-8")
    for line in report.lines():
        print(line)
    return 0 if report.ok else 1


def _run_demo(arguments: argparse.Namespace) -> int:
    from flights_demo import DemoOptions, run_demo  # needs rich, which a cluster may lack

    return run_demo(
        DemoOptions(
            data_dir=arguments.data_dir,
            seed=arguments.seed,
            months=arguments.months,
            kills=arguments.kills,
            max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        )
    )


def parse_months(text: str) -> list[int]:
    months = [int(month) for month in text.split(",")]
    if not all(1 <= month <= 12 for month in months):
        raise argparse.ArgumentTypeError(f"months are 1 to 12, got {text}")
    return sorted(set(months))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flights.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    months = argparse.ArgumentParser(add_help=False)
    months.add_argument(
        "--months", type=parse_months, help="only these months, as 1,2 (default: all)"
    )
    paced = argparse.ArgumentParser(add_help=False)
    paced.add_argument("--max-offsets-per-trigger", type=int, default=MAX_OFFSETS_PER_TRIGGER)
    rooted = argparse.ArgumentParser(add_help=False)
    rooted.add_argument("--root", required=True, help="the cluster's root directory")

    demo = commands.add_parser("demo", parents=[months, paced], help="run all, with kills")
    demo.add_argument("--data-dir", type=Path, help="an empty or new folder")
    demo.add_argument("--seed", type=int, help="seed of the kills (default: a new one, printed)")
    demo.add_argument(
        "--kills",
        type=parse_kills,
        default=parse_kills(DEFAULT_KILLS),
        help=f"the kills, in this order (default: {DEFAULT_KILLS})",
    )
    demo.set_defaults(run=_run_demo)
    feeder = commands.add_parser("feed", parents=[months, rooted], help="write topic flights")
    feeder.set_defaults(run=_run_feed)
    stream = commands.add_parser("stream", parents=[paced, rooted], help="split the flights")
    stream.add_argument("--checkpoint", required=True, help="the query's checkpoint folder")
    stream.add_argument("--available-now", action="store_true", help="stop at the current end")
    stream.set_defaults(run=_run_stream)
    check = commands.add_parser("check", parents=[months, rooted], help="check the output")
    check.add_argument("--report", type=Path, help="a file for the report, as JSON")
    check.set_defaults(run=_run_check)
    return parser


if __name__ == "__main__":
    sys.exit(main())
