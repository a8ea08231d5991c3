"""Compaction on Spark: small batches become segments; of each key the newest record stays.

    spark-submit jobs/compact.py --root <root> [--topic <topic>]... [--dry-run]

The driver plans from the headers in the topics' logs and opens no data file; executors rewrite;
the driver commits each group of files as soon as it is rewritten. The job may be killed at any time
and started again. It may run beside producers, consumers, queries, `txnlog housekeeping` and other
compaction jobs: a group that another process compacted first is given up. A topic that cannot be
read stops no other, unless it was named.

Progress goes to stderr, a summary as JSON to stdout. Exit codes: 0 done, 1 something failed, 2
wrong usage. This file imports nothing of its folder: in cluster mode Spark ships it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from txnlog.cluster import Cluster
from txnlog.connector.causes import line_of_cause
from txnlog.errors import TxnLogError
from txnlog.housekeeping.compaction.spark_run import CompactionRun, Result, Work, rewrite_at
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings
from txnlog.text import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS_MAX = 256


def rewrite_on_executors(
    spark: SparkSession, root: str, storage: StoreSettings, tasks: Iterator[Sequence[Work]]
) -> Iterator[tuple[Work, Result]]:
    """Do each task in a small Spark job of its own, up to two per core and JOBS_MAX at a time.

    One job of all tasks would also use all cores, but report nothing before its end. Only as many
    jobs run as keep every core busy, so the driver's memory is bounded (D43).
    """
    sc = spark.sparkContext
    tag = f"txnlog-compact-{uuid.uuid4()}"
    rewrite = partial(rewrite_at, root, storage)

    def run(task: Sequence[Work]) -> list[Result]:
        others = f" and {len(task) - 1} more" if len(task) > 1 else ""
        sc.setJobDescription(f"compact: {task[0].topic}-{task[0].partition}{others}")
        sc.addJobTag(tag)
        return sc.parallelize(task, 1).map(rewrite).collect()

    running: dict[Future[list[Result]], Sequence[Work]] = {}
    pool = ThreadPoolExecutor(JOBS_MAX, "compact")
    try:
        while True:
            room = min(2 * sc.defaultParallelism, JOBS_MAX) - len(running)
            for task in islice(tasks, max(0, room)):
                running[pool.submit(run, task)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                yield from zip(task, _results(future, len(task)), strict=True)
    finally:
        if running:
            sc.cancelJobsWithTag(tag)
        pool.shutdown(cancel_futures=True)


def _results(future: Future[list[Result]], count: int) -> list[Result]:
    """The results of a job; if it failed, its error for each of its results."""
    error = future.exception()
    return future.result() if error is None else [line_of_cause(error)] * count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    arguments = _arguments(argv)
    storage = StoreSettings(arguments.storage)
    try:
        cluster = Cluster.open(arguments.root, storage)
        run = CompactionRun(
            cluster, arguments.topic, segment_bytes=arguments.segment_bytes, report=_report
        )
    except TxnLogError as error:
        _report(f"error: {error.message}")
        return 1
    if arguments.dry_run:
        for row in (plan := list(run.plan())):
            _report(
                f"{row.action} {row.topic}-{row.partition}: {row.inputs:,} files of "
                f"{row.bytes:,} bytes in {row.groups:,} groups, "
                f"offsets {row.base_offset:,} to {row.last_offset:,}"
            )
        failures = run.summary.failures
        shown = {"plan": [row._asdict() for row in plan], "failures": failures}
        print(json.dumps(shown), flush=True)
        return 1 if failures else 0
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("txnlog-compact").getOrCreate()
    try:
        summary = run.run(partial(rewrite_on_executors, spark, arguments.root, storage))
    finally:
        spark.stop()
    print(json.dumps(asdict(summary)), flush=True)
    return 1 if summary.failures else 0


def _report(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        # The value is not shown: it may be a secret.
        raise argparse.ArgumentTypeError("must be key=value")
    return key.removeprefix(STORAGE_PREFIX), value


def _size_bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of bytes of at least 1, not {text!r}")
    return int(text)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compact.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = os.environ.get("TXNLOG_ROOT")
    parser.add_argument(
        "--root", default=root, required=not root, help="the cluster's root (TXNLOG_ROOT)"
    )
    parser.add_argument(
        "--storage",
        action="append",
        type=_setting,
        metavar="KEY=VALUE",
        help="setting of the object store, repeatable; TXNLOG_STORAGE keeps secrets out of the "
        "command line",
    )
    parser.add_argument("--topic", action="append", help="repeatable (default: all topics)")
    parser.add_argument(
        "--segment-bytes", type=_size_bytes, help="overrides segment.bytes of the topics"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")
    arguments = parser.parse_args(argv)
    if arguments.storage is None:
        try:
            arguments.storage = [*map(_setting, os.environ.get("TXNLOG_STORAGE", "").split())]
        except argparse.ArgumentTypeError as error:
            parser.error(f"TXNLOG_STORAGE: {error}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
