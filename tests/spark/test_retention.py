"""Streams over topics whose oldest files are deleted while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import pipeline
from tests.spark.conftest import Lab
from txnlog.admin.topics import delete_records
from txnlog.cluster import Cluster
from txnlog.housekeeping.retention import Retention
from txnlog.testing.invariants import check_cluster

pytestmark = [pytest.mark.spark, pytest.mark.soak]

CHUNK = 20
WAIT_S = 600


def configure(lab: Lab, **config: int) -> None:
    """`retention_ms` stands for retention.ms."""
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    log = Cluster.open(str(lab.root)).topic(pipeline.SOURCE)
    log.alter(lambda now: {**now, **given})


def log_starts(lab: Lab) -> list[int]:
    view = Cluster.open(str(lab.root)).topic(pipeline.SOURCE).view
    return [view.log_start_offset(number) for number in range(pipeline.PARTITIONS)]


@contextmanager
def removal_all_the_while(lab: Lab) -> Iterator[list[int]]:
    """Ten times a second delete what the stream has committed; returns the files of each time.

    An age would be a race with a machine that is slow today.
    """
    stopped = threading.Event()
    removed: list[int] = []

    def run() -> None:
        cluster = Cluster.open(str(lab.root))
        keeper = Retention(cluster)
        while not stopped.wait(0.1):
            group = cluster.groups.describe(pipeline.GROUP)
            read = {} if group is None else group.positions().get(pipeline.SOURCE, {})
            if read:
                delete_records(cluster, pipeline.SOURCE, read)
            removed.append(keeper.enforce_all())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield removed
    finally:
        stopped.set()
        thread.join()


def test_stream_that_keeps_up_reads_everything_once_while_files_are_deleted(lab: Lab) -> None:
    """The log start follows the stream closely, and files are removed (R14, R20, R22)."""
    lab.feed(0, CHUNK)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root))
    writer = pipeline.writer(frame, lab.root, lab.checkpoint).trigger(processingTime="0 seconds")
    query = writer.start()
    fed = CHUNK
    deadline_s = time.monotonic() + WAIT_S
    with removal_all_the_while(lab) as removed:
        while sum(removed) < 20:
            assert time.monotonic() < deadline_s
            lab.feed(fed, fed + CHUNK)
            fed += CHUNK
            time.sleep(0.2)
        while len(lab.values()) < fed:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    query.stop()
    assert min(log_starts(lab)) > 0
    assert lab.values() == list(range(fed))
    check_cluster(Cluster.open(str(lab.root)))


def test_stream_that_fell_behind_fails_naming_the_loss_or_continues(lab: Lab) -> None:
    """failOnDataLoss names topic, partition and offsets; if false, nothing else is lost."""
    lab.feed(0, 2 * CHUNK)
    lab.run()
    lab.feed(2 * CHUNK, 4 * CHUNK)
    configure(lab, retention_bytes=0)
    assert Retention(Cluster.open(str(lab.root))).enforce_all() > 0
    configure(lab, retention_bytes=-1)
    lab.feed(4 * CHUNK, 5 * CHUNK)
    gone = log_starts(lab)
    with pytest.raises(StreamingQueryException) as refused:
        lab.run()
    message = str(refused.value)
    for partition, start in enumerate(gone):
        expected = f"to {start - 1} of partition {partition} of topic numbers are below its log"
        assert expected in message
    assert "failOnDataLoss" in message
    lab.run(source={"failOnDataLoss": "false"})
    kept = [*range(2 * CHUNK), *range(4 * CHUNK, 5 * CHUNK)]
    assert lab.values() == kept
