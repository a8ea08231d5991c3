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
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.connector.causes import line_of_cause
from txnlog.errors import StorageError, TxnLogError
from txnlog.housekeeping.compaction.spark_run import CompactionRun, Results
from txnlog.housekeeping.compaction.spark_tasks import (
    POSITIONS,
    RESULTS,
    Part,
    Payload,
    Result,
    packed,
    read_positions,
    rewrite_group,
    rewrite_survivors,
)
from txnlog.protocol.compaction import CompactionGroup
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings
from txnlog.text import printable

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

JOBS_MAX = 256


class Work(NamedTuple):
    """Groups that one Spark job rewrites."""

    groups: Sequence[CompactionGroup]
    run: Callable[[], list[Result]]


class Executors:
    """Rewrites on Spark by many small concurrent jobs; each result is available when its job ends.

    One job with a task per group would also use all cores, but report nothing before its end. Only
    as many jobs run as keep every core busy, so the driver's memory is bounded (D43).
    """

    def __init__(self, spark: SparkSession, root: str, storage: StoreSettings) -> None:
        self._spark = spark
        self._sc = spark.sparkContext
        self._rewrite_group = partial(rewrite_group, root, storage)
        self._read_positions = partial(read_positions, root, storage)
        self._rewrite_survivors = partial(rewrite_survivors, root, storage)
        self._tag = f"txnlog-compact-{uuid.uuid4()}"

    def merge(self, groups: Iterator[list[CompactionGroup]]) -> Results:
        """Rewrite groups with all their records, the groups of a list in one task."""

        def work(task: list[CompactionGroup]) -> Work:
            return Work(
                task,
                lambda: self._sc.parallelize(task, 1).map(self._rewrite_group).collect(),
            )

        return self._as_finished(map(work, groups))

    def key_compact(self, parts: Sequence[Part], payloads: Sequence[Payload]) -> Results:
        """Rewrite groups with the newest record of each key; keys are read and shuffled once.

        Raises StorageError if the keys cannot be read.
        """
        try:
            rdd = self._survivors(parts, payloads)
        except Exception as error:
            raise StorageError(line_of_cause(error)) from error

        def work(task: list[Payload]) -> Work:
            numbers = [payload.number for payload in task]

            def run() -> list[Result]:
                rows = {row.group: row.result for row in self._sc.runJob(rdd, list, numbers)}
                return [pickle.loads(rows[number]) for number in numbers]

            return Work([payload.group for payload in task], run)

        return self._as_finished(map(work, packed(payloads, lambda one: one.group.inputs)))

    def _survivors(self, parts: Sequence[Part], payloads: Sequence[Payload]) -> RDD:
        """An RDD with one partition for each group; its task rewrites the group.

        Groups are in offset order, so the newest record of a key is in the last group that has it:
        two maxima, found by hashing, say where it is and whether it stays.
        """
        from pyspark.sql import functions as F

        tasks = [pickle.dumps(task) for task in packed(parts, lambda part: [part.header])]
        reading = pa.table(
            {
                "task": pa.array(range(len(tasks)), pa.int32()),
                "payload": pa.array(tasks, pa.binary()),
            }
        )
        groups = pa.table(
            {
                "group": pa.array([payload.number for payload in payloads], pa.int32()),
                "offset": pa.nulls(len(payloads), pa.int64()),
                "payload": pa.array(map(pickle.dumps, payloads), pa.binary()),
            }
        )
        self._sc.setJobDescription("compact: newest offset of each key")
        newest = (
            self._spark.createDataFrame(reading)
            .repartitionById(max(1, len(tasks)), "task")
            .mapInArrow(self._read_positions, POSITIONS)
            .groupBy("pass", "key")
            .agg(F.max("position").alias("position"), F.max("group").alias("group"))
            .where("position % 2 = 0")
            .selectExpr("group", "shiftright(position, 1) offset", "CAST(NULL AS binary) payload")
        )
        return (
            newest.unionAll(self._spark.createDataFrame(groups))
            .repartitionById(len(payloads), "group")
            .mapInArrow(self._rewrite_survivors, RESULTS)
            .rdd
        )

    def _as_finished(self, work: Iterator[Work]) -> Results:
        """Run all work, up to two jobs per core and JOBS_MAX at a time."""
        running: dict[Future[list[Result]], Work] = {}
        pool = ThreadPoolExecutor(JOBS_MAX, "compact")
        try:
            while True:
                room = min(2 * self._sc.defaultParallelism, JOBS_MAX) - len(running)
                for item in islice(work, max(0, room)):
                    running[pool.submit(self._run, item)] = item
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    groups = running.pop(future).groups
                    yield from zip(groups, _results(future, len(groups)), strict=True)
        finally:
            if running:
                self._sc.cancelJobsWithTag(self._tag)
            pool.shutdown(cancel_futures=True)

    def _run(self, work: Work) -> list[Result]:
        first, more = work.groups[0], len(work.groups) - 1
        others = f" and {more} more" if more else ""
        self._sc.setJobDescription(f"compact: {first.topic}-{first.partition}{others}")
        self._sc.addJobTag(self._tag)
        return work.run()


def _results(future: Future[list[Result]], count: int) -> list[Result]:
    """The results of a job; if it failed, its error for each of its groups."""
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
        summary = run.run(Executors(spark, arguments.root, storage))
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
