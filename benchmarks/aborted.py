"""Committed records between ten times as many aborted ones: their cost for a reader (R52).

Each transaction is published eagerly, so that an abort leaves batches and markers behind.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.figures import OURS, Comparison, Figure, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from benchmarks.session import take_turns
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.producer import Producer
from txnlog.storage.delta.checkpointer import wait_for_background

PARTITIONS = 20
ABORTED_PER_COMMITTED = 10
ALONE = "the same without the aborted ones"


def measure(scale: Scale) -> list[Figure]:
    """Two records in two partitions per transaction; a new consumer reads all, in turns."""
    root = new_folder()
    cluster = Cluster.open(root, create=True)
    topics = {OURS: ABORTED_PER_COMMITTED, ALONE: 0}
    started_s = time.perf_counter()
    for number, aborted in enumerate(topics.values()):
        _write(cluster, f"topic{number}", scale.committed_transactions, aborted)
    written_s = time.perf_counter() - started_s
    wait_for_background()
    expected = 2 * scale.committed_transactions
    readers = {
        name: partial(_read_ms, root, f"topic{number}", expected)
        for number, name in enumerate(topics)
    }
    committed = scale.committed_transactions
    name = f"{committed:,} transactions between {committed * ABORTED_PER_COMMITTED:,} aborted ones"
    read = Comparison(f"{name}: opened and read", "ms", take_turns(readers, scale.rounds))
    return [
        *read.each(),
        read.at_most(ALONE, 2),
        reported(f"{name}: writing both topics", written_s, "s"),
    ]


def _write(cluster: Cluster, topic: str, committed: int, aborted_per_committed: int) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS)
    config = {
        "txnlog.root": cluster.root,
        "transactional.id": topic,
        "transaction.publish": "eager",
        "linger.ms": 60_000,
    }
    turns = aborted_per_committed + 1
    with Producer(config) as producer:
        producer.init_transactions()
        for number in range(committed * turns):
            producer.begin_transaction()
            for partition in (number % PARTITIONS, (number + 7) % PARTITIONS):
                producer.produce(topic, b"%d" % number, partition=partition)
            producer.flush()
            if number % turns == aborted_per_committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def _read_ms(root: str, topic: str, expected: int) -> list[float]:
    started_s = time.perf_counter()
    partitions = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
    with Consumer({"txnlog.root": root}) as reader:
        reader.assign(partitions)
        left = expected
        while left:
            found = len(reader.consume(left, 10.0))
            assert found
            left -= found
        return [(time.perf_counter() - started_s) * 1000]
