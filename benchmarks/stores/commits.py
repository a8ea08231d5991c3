"""Transactions of a producer on S3: a commit of many topics waits for few requests, too."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median

from benchmarks.figures import Figure, at_most, reported
from benchmarks.scale import Scale
from benchmarks.stores.server import ROUND_TRIP_MS, s3_server
from txnlog.admin import AdminClient, NewTopic
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore

SHAPES = ((1, 1), (1, 16), (4, 4), (4, 16))
"""Topics of a transaction, and partitions of each."""

GROUP = "bench"
COUNTED = 9
ROUNDS_MAX = 3
WIDE_MAX = 1.3


def measure(scale: Scale) -> list[Figure]:
    """The p50 of `commit_transaction` for each of SHAPES, in turns; and with offsets."""
    with s3_server() as server, ExitStack() as stack:
        settings = server.far.settings("commits")
        admin = AdminClient(settings)
        writers: list[Writer] = []
        for topics, partitions in SHAPES:
            prefix = f"{topics}x{partitions}"
            names = [f"{prefix}-{number}" for number in range(topics)]
            admin.create_topics([NewTopic(name, partitions) for name in names])
            config = {**settings, "transactional.id": prefix}
            producer = stack.enter_context(Producer(config))
            writers.append(Writer(producer, names, partitions))
        consumer = stack.enter_context(Consumer({**settings, "group.id": GROUP}))
        with_offsets = Writer(writers[0].producer, writers[0].topics, 1, consumer)
        variants = [*writers, with_offsets]
        times_ms: list[list[float]] = [[] for _ in variants]
        for turn in range(scale.store_transactions + 2):
            for variant, times in zip(variants, times_ms, strict=True):
                variant.begin()
                took_ms = variant.commit_ms(turn)
                variant.producer.flush()
                # The first two open logs and find topics.
                if turn >= 2:
                    times.append(took_ms)
    p50 = [median(times) for times in times_ms]
    return _figures(p50)


def _figures(p50: list[float]) -> list[Figure]:
    names = [f"commit of {topics} x {partitions}" for topics, partitions in SHAPES]
    figures = [
        reported(f"{name} (topics x partitions), p50", took_ms, "ms")
        for name, took_ms in zip(names, p50, strict=False)
    ]
    widest, narrowest, with_offsets = p50[len(SHAPES) - 1], p50[0], p50[len(SHAPES)]
    return [
        *figures,
        reported("commit of 1 x 1 with group offsets, p50", with_offsets, "ms"),
        at_most(f"{names[-1]} / 1 x 1", widest / narrowest, "x", WIDE_MAX, names[0]),
        reported(
            f"{names[-1]}, in round trips of {ROUND_TRIP_MS:g} ms", widest / ROUND_TRIP_MS, ""
        ),
        at_most(f"{names[-1]}, requests in a row", _rounds(*SHAPES[-1]), "", ROUNDS_MAX),
    ]


def _rounds(topics: int, partitions: int) -> float:
    """How many requests of a commit wait for one another, counted in memory."""
    store = RoundsStore(SharedMemory())
    cluster = Cluster.open(store, create=True)
    names = [f"topic-{number}" for number in range(topics)]
    for name in names:
        cluster.create_topic(name, partitions=partitions)
    config = {"txnlog.root": store.url, "transactional.id": "counted"}
    writer = Writer(Producer(config, cluster=cluster, background=False), names, partitions)
    counts = []
    for turn in range(COUNTED):
        writer.begin()
        store.rounds = 0
        writer.commit_ms(turn)
        counts.append(store.rounds)
    return median(counts)


class Writer:
    """Transactions of one record for each partition of each topic."""

    def __init__(
        self,
        producer: Producer,
        topics: list[str],
        partitions: int,
        consumer: Consumer | None = None,
    ) -> None:
        self.producer = producer
        self.topics = topics
        self._partitions = partitions
        self._consumer = consumer
        if consumer is None:
            producer.init_transactions()
        else:
            consumer.assign([TopicPartition(topics[0], 0, 0)])

    def begin(self) -> None:
        """Begin a transaction and produce its records."""
        self.producer.begin_transaction()
        for topic in self.topics:
            for partition in range(self._partitions):
                self.producer.produce(topic, b"v" * 100, partition=partition)

    def commit_ms(self, number: int) -> float:
        """The time of one `commit_transaction`, and of the offsets sent before it."""
        started = time.perf_counter()
        if self._consumer is not None:
            self.producer.send_offsets_to_transaction(
                [TopicPartition(self.topics[0], 0, number)],
                self._consumer.consumer_group_metadata(),
            )
        self.producer.commit_transaction()
        return (time.perf_counter() - started) * 1000
