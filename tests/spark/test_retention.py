"""Streams over topics whose oldest files go while they run."""

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
    """Ten times a second all that the stream has committed goes; how many files it was each time.

    An age would be a race with a machine that is slow today.
    """
    told = threading.Event()
    removed: list[int] = []

    def run() -> None:
        cluster = Cluster.open(str(lab.root))
        keeper = Retention(cluster)
        while not told.wait(0.1):
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
        told.set()
        thread.join()


def test_stream_that_keeps_up_reads_everything_once_while_files_go(lab: Lab) -> None:
    """The log start follows at the stream's heels, and files leave the table (R14, R20, R22)."""
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


def test_stream_that_fell_behind_fails_with_what_is_gone_or_goes_on_without(lab: Lab) -> None:
    """failOnDataLoss names topic, partition and offsets; switched off, nothing else is lost."""
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
    said = str(refused.value)
    for partition, start in enumerate(gone):
        expected = f"to {start - 1} of partition {partition} of topic numbers are below its log"
        assert expected in said
    assert "failOnDataLoss" in said
    lab.run(source={"failOnDataLoss": "false"})
    kept = [*range(2 * CHUNK), *range(4 * CHUNK, 5 * CHUNK)]
    assert lab.values() == kept
