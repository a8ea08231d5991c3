"""A cluster under constant writes while housekeeping runs: does anything grow?

An hour is SHORT_HOUR_MS here, for the retention of log files, removed files and unreferenced files;
so a run of some minutes stands for many hours. No process may pause for longer than half of it
while it trusts a log in memory: in production, that is half an hour.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks.figures import OURS, Comparison, Figure, at_most, reported
from benchmarks.latency import ROWS
from benchmarks.opening import opening
from benchmarks.processes import own_process
from benchmarks.scale import Scale
from benchmarks.session import bench_session, triggers_ms
from benchmarks.transactions import PARTITIONS, small_records, stage
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.protocol import vacuum
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

TOPIC = "flat"
SHORT_HOUR_MS = 30_000
SETTINGS = LogSettings(log_retention_ms=SHORT_HOUR_MS, trust_ms=SHORT_HOUR_MS // 2)
# A transaction may take its time-out, and the vacuum age is twice that.
TIMEOUT_MS = SHORT_HOUR_MS // 2
# A rate that a writer and one housekeeper reach on two cores, even of a slow machine: the number
# of files that wait for vacuum is proportional to it.
TRANSACTIONS_PER_S = 150
LOOKS = 100
TURNS = 4
MEMORY = "/dev/shm"
YOUNG = "a young cluster"


def measure(scale: Scale) -> list[Figure]:
    """p50 of transactions and micro-batches against a young cluster; opening; file counts."""
    total = scale.flat_transactions
    few = total // 100
    # Many short-lived files: ext4 does not reuse their inodes for minutes.
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-", dir=memory) as folder:
        root, young_root = f"{folder}/old", f"{folder}/young"
        writer = _Writer.begin(root)
        with own_process(housekeeping, root):
            writer.write(total, looks=LOOKS)
            # A machine's speed changes within minutes: so both take turns, instead of measuring
            # early and late.
            young = _Writer.begin(young_root)
            young.write(few)
            for _ in range(TURNS):
                writer.write(few // TURNS)
                young.write(few // TURNS)
            copied_ms = _copied_ms(root, young_root, scale)
            warm_ms, process_s = opening(root, TOPIC, end_offset=writer.end_offset())
        wait_for_background()
    after = f"after {total:,} transactions, with housekeeping"
    committed = Comparison(
        f"a transaction {after}",
        "ms",
        {OURS: _p50_of_turns(writer, few), YOUNG: _p50_of_turns(young, few)},
    )
    copied = Comparison(f"micro-batch of {ROWS} records {after}", "ms", copied_ms)
    return [
        *committed.each(),
        committed.at_most(YOUNG, 1.2),
        *copied.each(),
        copied.at_most(YOUNG, 1.2),
        at_most(f"opening a cluster of {total:,} transactions, warm", warm_ms, "ms", 100),
        at_most(f"opening a cluster of {total:,} transactions, new process", process_s, "s", 1.2),
        *writer.file_figures(),
    ]


def _p50_of_turns(writer: _Writer, count: int) -> list[float]:
    """p50 of each turn among the last `count` transactions."""
    size = count // TURNS
    last = writer.times_ms[-count:]
    return [median(last[at : at + size]) for at in range(0, count, size)]


@dataclass(slots=True)
class _Writer:
    """A producer of TRANSACTIONS_PER_S; it counts files at intervals."""

    cluster: Cluster
    topic: TopicLog
    row: TransactionMetadata
    times_ms: list[float] = field(default_factory=list)
    data_files: list[int] = field(default_factory=list)
    log_files: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, root: str) -> _Writer:
        cluster = Cluster.open(root, create=True, settings=SETTINGS)
        topic = cluster.create_topic(TOPIC, partitions=PARTITIONS, config={"retention.ms": "-1"})
        metadata = topic.log.metadata
        assert metadata is not None
        # Delta's property: how long a checkpoint keeps the names of removed files.
        retention = vacuum.format_retention(SHORT_HOUR_MS)
        properties = {**metadata.configuration, vacuum.RETENTION_PROPERTY: retention}
        topic.log.commit(
            [replace(metadata, configuration=properties)], operation="SET TBLPROPERTIES"
        )
        owner = Owner(run_id="flat")
        row = cluster.coordinator.init_producer_id("flat", owner, timeout_ms=TIMEOUT_MS)
        return cls(cluster, topic, row)

    def write(self, count: int, *, looks: int = 0) -> None:
        """`count` transactions of PARTITIONS small files; counts all files `looks` times."""
        records = small_records()
        due_s = time.perf_counter()
        for number in range(1, count + 1):
            time.sleep(max(0.0, due_s - time.perf_counter()))
            started = time.perf_counter()
            # Relative to now: lost time is not caught up at a higher rate.
            due_s = started + 1 / TRANSACTIONS_PER_S
            staged = stage(self.cluster, self.topic, records)
            self.row = self.cluster.coordinator.commit(self.row, staged)
            self.times_ms.append((time.perf_counter() - started) * 1000)
            if looks and number % (count // looks) == 0:
                self._look(number, count)

    def end_offset(self) -> int:
        """The sum of the end offsets of all partitions."""
        self.topic.refresh()
        return sum(self.topic.view.high_watermark(number) for number in range(PARTITIONS))

    def file_figures(self) -> list[Figure]:
        """File counts in the second half of the run, relative to the second quarter: the first is
        shorter than the retention. Means, as vacuum deletes many files at once.
        """
        figures = []
        for what, counts in (("data files", self.data_files), ("log files", self.log_files)):
            quarter, half = len(counts) // 4, len(counts) // 2
            before, after = mean(counts[quarter:half]), mean(counts[half:])
            against = f"the second quarter: {after:,.0f} to {before:,.0f} files"
            name = f"with housekeeping: {what} in the second half of the run"
            figures.append(at_most(name, after / before, "x", 1.2, against))
            figures.append(reported(f"with housekeeping: most {what}", max(counts), ""))
        return figures

    def _look(self, number: int, count: int) -> None:
        log = data = 0
        for folder, _, names in os.walk(self.cluster.root.removeprefix("file://")):
            if folder.endswith("_delta_log"):
                log += len(names)
            else:
                data += len(names)
        self.data_files.append(data)
        self.log_files.append(log)
        recent_ms = median(self.times_ms[-count // LOOKS :])
        print(
            f"  {number:,} of {count:,} transactions, p50 {recent_ms:.2f} ms, "
            f"{data:,} data files, {log:,} log files",
            flush=True,
        )


@contextmanager
def housekeeping(root: str) -> Iterator[Housekeeper]:
    """`txnlog housekeeping`, on a thread of this process."""
    vacuum.VACUUM_AGE_MS_MIN = SHORT_HOUR_MS
    keeper = Housekeeper(
        Cluster.open(root, settings=SETTINGS),
        HousekeepingSettings(
            remove_interval_ms=SHORT_HOUR_MS // 3,
            retention_check_interval_ms=SHORT_HOUR_MS // 3,
            cleaner_backoff_ms=1_000,
            log_retention_ms=SHORT_HOUR_MS,
            vacuum_age_ms=SHORT_HOUR_MS,
            vacuum_interval_ms=SHORT_HOUR_MS,
        ),
    )
    stop = threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stop,))
    thread.start()
    try:
        yield keeper
    finally:
        stop.set()
        thread.join()


# -- micro-batches ---------------------------------------------------------------------------------


def _copied_ms(old: str, young: str, scale: Scale) -> dict[str, list[float]]:
    """p50 of a query in each cluster that copies new records, in a warm session."""
    with own_process(_session, old, young, scale) as call:
        call("copy")
        rounds = [call("copy") for _ in range(scale.rounds)]
    print(f"  micro-batch p50, old and young: {rounds}", flush=True)
    return {OURS: [ms for ms, _ in rounds], YOUNG: [ms for _, ms in rounds]}


@contextmanager
def _session(old: str, young: str, scale: Scale) -> Iterator[_Copying]:
    with bench_session() as spark:
        yield _Copying(spark, (old, young), scale)


@dataclass(slots=True)
class _Copying:
    """A query in each cluster, from the topic to another; both run at once.

    They get ROWS records to copy in turns. So neither query, nor its workers, pauses for longer
    than half of SHORT_HOUR_MS while it trusts a log in memory.
    """

    spark: SparkSession
    roots: tuple[str, ...]
    scale: Scale

    def copy(self) -> list[float]:
        """p50 of triggerExecution in each, without the warm-up."""
        batches = self.scale.small_warm_up + self.scale.small_micro_batches
        with ExitStack() as stack:
            copies = [stack.enter_context(self._started(root)) for root in self.roots]
            for _ in range(batches):
                for feed, _ in copies:
                    feed()
            found = []
            for _, query in copies:
                progress = [one for one in query.recentProgress if one["numInputRows"]]
                assert len(progress) == batches
                found.append(median(triggers_ms(progress)[self.scale.small_warm_up :]))
            return found

    @contextmanager
    def _started(self, root: str) -> Iterator[tuple[Callable[[], None], StreamingQuery]]:
        """A new query, and a function that runs one micro-batch of it."""
        cluster = Cluster.open(root, settings=SETTINGS)
        topic = cluster.topic(TOPIC)
        target = f"copy-{uuid.uuid4()}"
        cluster.create_topic(target, partitions=PARTITIONS, config={"retention.ms": "-1"})
        reader = self.spark.readStream.format("txnlog").option("subscribe", TOPIC)
        frame = reader.option("startingOffsets", "latest").load(root)
        writer = (
            frame.drop("topic", "partition")
            .writeStream.format("txnlog")
            .option("topic", target)
            .option("path", root)
            .option("transaction.timeout.ms", TIMEOUT_MS)
        )
        records = small_records(ROWS // PARTITIONS)
        with tempfile.TemporaryDirectory() as folder:
            query = writer.option("checkpointLocation", folder).start()

            def feed() -> None:
                staged = stage(cluster, topic, records)
                commit_one_off(cluster, staged, Owner(run_id="flat"))
                query.processAllAvailable()

            try:
                query.processAllAvailable()
                yield feed, query
            finally:
                query.stop()
