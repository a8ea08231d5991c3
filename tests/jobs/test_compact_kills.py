"""SIGKILL of the whole compaction job at each of its steps, with a query running through it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flights_driver import DriverProcess, driver_environment, spark_submit_command

from tests.spark import pipeline
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.spark_run import CompactionRun
from txnlog.testing.counts import count
from txnlog.verifying.report import VerifySettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.soak]

LATEST = "latest"
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
MERGING = (
    "compaction.rewritten",  # in an executor: its file is there, and no process knows
    "compaction.staged",
    "compaction.committed",
)
KEY_COMPACTING = (*MERGING, "compaction.cleaned.before", "compaction.cleaned.after")
DEATHS = (
    *((step, [LATEST]) for step in KEY_COMPACTING),
    # What the query reads, and what it writes.
    *((step, [pipeline.SOURCE]) for step in MERGING),
    *((step, list(pipeline.OUTPUTS)) for step in MERGING),
)

BATCHES, BATCH = 12, 10
WAIT_S = 600


class Jobs:
    """`spark-submit jobs/compact.py`, each in processes of its own that can all be killed."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self.started: list[DriverProcess] = []

    def start(self, topics: Sequence[str] = (), *, stop_at: str = "") -> DriverProcess:
        """Start one, for all topics or some, which stays at a fail point."""
        folder = self._folder / f"job-{len(self.started)}"
        folder.mkdir()
        chosen = [word for topic in topics for word in ("--topic", topic)]
        arguments = ["--root", str(self._root), "--segment-bytes", "20000", *chosen]
        command = spark_submit_command(arguments)
        command = ["jobs/compact.py" if word == "jobs/flights.py" else word for word in command]
        environment = driver_environment(
            folder,
            {
                "TXNLOG_FAILPOINT": f"{stop_at}:pause" if stop_at else "",
                "TXNLOG_FAILPOINT_STATE": str(folder / "hits"),
            },
        )
        self.started.append(DriverProcess(command, environment, folder / "log"))
        return self.started[-1]

    def kill_at(self, step: str, topics: Sequence[str]) -> None:
        """Start one for these topics and kill all of it at a step."""
        job = self.start(topics, stop_at=step)
        hits = job.log.with_name("hits")
        await_that(lambda: hits.exists() or job.exit_code() is not None)
        assert job.exit_code() is None, job.log_tail()
        job.kill()
        count("kills", "compaction job, at each step")

    def finish(self, job: DriverProcess) -> dict[str, object]:
        """Wait for one to end well; its summary."""
        await_that(lambda: job.exit_code() is not None)
        assert job.exit_code() == 0, job.log_tail()
        lines = job.log.read_text(encoding="utf-8").splitlines()
        (summary,) = (json.loads(line) for line in lines if line.startswith('{"groups"'))
        return summary  # type: ignore[no-any-return]


def await_that(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def jobs(root: Path, scratch: Path) -> Iterator[Jobs]:
    jobs = Jobs(scratch, root)
    yield jobs
    for job in jobs.started:
        job.kill()


@pytest.fixture
def query(spark: SparkSession, root: Path, tmp_path: Path) -> Iterator[StreamingQuery]:
    """A query that reads what is compacted and writes what is compacted, until the test ends."""
    feed(root, range(0))
    writer = pipeline.writer(
        pipeline.split(pipeline.numbers(spark, root, maxOffsetsPerTrigger=15)),
        root,
        tmp_path / "checkpoint",
    )
    query = writer.trigger(processingTime="0 seconds").start()
    yield query
    query.stop()


def feed(root: Path, numbers: range) -> None:
    """Small transactions, each number into the query's input and into a compacted topic."""
    cluster = Cluster.open(str(root), create=True)
    for name, config in ((pipeline.SOURCE, {}), (LATEST, COMPACTED)):
        cluster.create_topic(name, partitions=pipeline.PARTITIONS, config=config, exist_ok=True)
    for first in range(numbers.start, numbers.stop, BATCH):
        for topic in (pipeline.SOURCE, LATEST):
            pipeline.feed(root, range(first, min(first + BATCH, numbers.stop)), topic)


def test_job_killed_at_every_step_loses_and_doubles_nothing(
    root: Path, jobs: Jobs, query: StreamingQuery
) -> None:
    """Each death leaves what the next run takes up; a query sees none of it (R20, R22, R23)."""
    count = 0
    for step, topics in DEATHS:
        feed(root, range(count, count + BATCHES * BATCH))
        count += BATCHES * BATCH
        jobs.kill_at(step, topics)
        assert query.exception() is None
        query.processAllAvailable()
        pipeline.check(root, count)
        check_latest(root, count, compacted=False)
        verify_deep(root)
    pair = [jobs.start(), jobs.start()]
    for _ in range(BATCHES):
        feed(root, range(count, count + BATCH))
        count += BATCH
        time.sleep(0.2)
    for job in pair:
        assert jobs.finish(job)["failures"] == []
    assert jobs.finish(jobs.start())["passes"] in (0, 2)

    query.processAllAvailable()
    query.stop()
    pipeline.check(root, count)
    check_latest(root, count)
    verify_deep(root)
    cluster = Cluster.open(str(root))
    assert len(cluster.topic(pipeline.SOURCE).view.by_path) < BATCHES * pipeline.PARTITIONS
    names = [pipeline.SOURCE, LATEST]
    assert not list(CompactionRun(cluster, names, segment_bytes=20_000).plan())


def check_latest(root: Path, count: int, *, compacted: bool = True) -> None:
    """Each record is there once, at its offset; `compacted`: only the newest of each key."""
    found = pipeline.records(root, LATEST)
    numbers = sorted(record.value for record in found)
    newest = list(range(count))[-pipeline.KEYS :]
    assert len(set(numbers)) == len(numbers)
    assert numbers[-pipeline.KEYS :] == newest
    assert not compacted or numbers == newest
    source = {record.value: record for record in pipeline.records(root, pipeline.SOURCE)}
    for record in found:
        was = source[record.value]
        assert (record.partition, record.offset) == (was.partition, was.offset)


def verify_deep(root: Path) -> None:
    """`txnlog verify --deep` finds nothing."""
    found = AdminClient({"txnlog.root": str(root)}).verify(VerifySettings(deep=True)).result()
    assert not found.findings.kept
