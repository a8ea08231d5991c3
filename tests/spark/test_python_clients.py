"""A Spark stream between a Python producer and a Python consumer, all at work at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Lab
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import Message
from txnlog.producer import Producer
from txnlog.testing.invariants import check_cluster

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

PARTITIONS = 2
RECORDS = 5
ABORTED_EVERY = 3
READ_WHILE_WRITING = 100
PAUSE_S = 0.05
WAIT_S = 600


class Writer:
    """A thread that writes transactions into topic a until told to stop; every third is aborted."""

    def __init__(self, root: str, publish: str) -> None:
        self.written: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        self.failed: list[BaseException] = []
        self._producer = Producer(
            {"txnlog.root": root, "transactional.id": "python", "transaction.publish": publish}
        )
        self._is_told = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End after the present transaction; `written` is what was committed, per partition."""
        self._is_told.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._producer:
                self._producer.init_transactions()
                self._write()
        except BaseException as error:
            self.failed.append(error)

    def _write(self) -> None:
        number = 0
        while not self._is_told.wait(PAUSE_S):
            is_kept = number % ABORTED_EVERY != ABORTED_EVERY - 1
            values = range(number * RECORDS, (number + 1) * RECORDS)
            self._producer.begin_transaction()
            for value in values:
                self._producer.produce("a", str(value), partition=value % PARTITIONS)
            self._producer.flush()
            if is_kept:
                self._producer.commit_transaction()
                for value in values:
                    self.written[value % PARTITIONS].append(value)
            else:
                self._producer.abort_transaction()
            number += 1


def start_copy(lab: Lab) -> StreamingQuery:
    """A stream from a to b that commits what it has read under the group `copiers`."""
    options = {
        "subscribe": "a",
        "group.id": "copiers",
        "startingOffsets": "committed",
        "auto.offset.reset": "earliest",
    }
    frame = lab.spark.readStream.format("txnlog").options(**options).load(str(lab.root))
    writer = frame.selectExpr("partition", "value", "'b' as topic").writeStream.format("txnlog")
    return (
        writer.option("txnlog.root", str(lab.root))
        .option("checkpointLocation", str(lab.checkpoint))
        .option("group.id", "copiers")
        .trigger(processingTime="200 milliseconds")
        .start()
    )


@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_python_clients_and_a_spark_stream_share_topics_exactly_once(
    lab: Lab, publish: str
) -> None:
    """Three kinds of clients, one protocol: nothing lost, doubled, torn or out of order.

    The stream copies a to b under a group while the producer writes a, and the consumer reads b
    while the stream writes it (R15, R16, R45, R50, R51).
    """
    root = str(lab.root)
    cluster = Cluster.open(root, create=True)
    for topic in ("a", "b"):
        cluster.create_topic(topic, partitions=PARTITIONS)
    read: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    consumer = Consumer(
        {"txnlog.root": root, "group.id": "python", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["b"])

    def read_up_to(count: Callable[[], int]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while sum(map(len, read.values())) < count():
            assert time.monotonic() < deadline_s, f"{read} of {count()} records"
            assert not writer.failed, writer.failed
            assert query.isActive, query.exception()
            note(read, consumer.consume(1_000, 0.2))

    with Writer(root, publish) as writer:
        query = start_copy(lab)
        read_up_to(lambda: READ_WHILE_WRITING)
        writer.stop()
        read_up_to(lambda: sum(map(len, writer.written.values())))
    # What has no record at its end is to be seen as read, too; and nothing more is to come.
    query.processAllAvailable()
    note(read, consumer.consume(1_000, 1))
    consumer.close()
    query.stop()
    assert read == writer.written
    view = Cluster.open(root).topic("a").view
    ends = {p: view.last_stable_offset(p) for p in range(PARTITIONS)}
    assert cluster.groups.fetch("copiers") == {"a": ends}
    assert cluster.groups.fetch("python") == {"b": {p: len(read[p]) for p in range(PARTITIONS)}}
    check_cluster(Cluster.open(root), settled=True)


def note(read: dict[int, list[int]], messages: list[Message]) -> None:
    """Keep what was read; offsets of b are dense."""
    for message in messages:
        values = read[message.partition()]
        assert message.offset() == len(values), message
        values.append(int(message.value() or b"-1"))
