"""Python clients compared with confluent-kafka's: one loop for both, as the names are the same."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

import confluent_kafka

from benchmarks.figures import OURS, Comparison, Figure, median_of
from benchmarks.peers.broker import broker_pid, create_topic, kafka_broker
from benchmarks.peers.processor import PER_MILLION, processor_figures
from benchmarks.processes import own_process
from benchmarks.scale import Scale
from benchmarks.session import take_turns
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.delta.checkpointer import wait_for_background

THEIRS = "confluent-kafka"
PARTITIONS = 4
RECORDS = 100
VALUE = b"v" * 100
INPUT, READ = "input", "read"
AT_ONCE = 500
TIMEOUT_S = 10.0
# By default librdkafka retries a pending request to the coordinator after 100 ms, and waits up to
# 500 ms for more records to read. A commit flushes, so linger.ms makes no difference.
PRODUCER = {"retry.backoff.ms": 1, "linger.ms": 1, "log_level": 3}
# By default it fetches again a second after its queue of 100,000 messages was full.
CONSUMER = {
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
    "isolation.level": "read_committed",
}

_numbers = itertools.count()


def measure(scale: Scale) -> list[Figure]:
    """Transactions of RECORDS records over PARTITIONS partitions, without and with offsets; then
    records out, by `consume` and by `poll`.
    """
    with ExitStack() as stack:
        address = stack.enter_context(kafka_broker(scale.cores))
        theirs = own_process(kafka_runs, address, scale, beside=broker_pid(address))
        call = {THEIRS: stack.enter_context(theirs)}
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="root-"))
        call[OURS] = stack.enter_context(own_process(txnlog_runs, root, scale))
        figures = []
        for method, name, goal in (
            ("produce", "one producer, 100 records", 3.0),
            ("consume_transform_produce", "consume-transform-produce, 100 records", 1.5),
        ):
            figures += _transactions(call, method, name, goal, scale)
        for method in ("consume", "poll"):
            figures += _records(call, method, scale)
    return figures


def _records(call: dict[str, Callable[..., Any]], method: str, scale: Scale) -> list[Figure]:
    turns = {peer: partial(call[peer], method) for peer in call}
    name = f"one consumer, {method}: records"
    compared = Comparison(name, "records/ms", take_turns(turns, scale.rounds))
    return [
        *compared.each(),
        compared.ratio(THEIRS),
        *processor_figures(
            name, turns, warm_ups=1, work=scale.records_by_message / 1e6, unit=PER_MILLION
        ),
    ]


def _transactions(
    call: dict[str, Callable[..., Any]], method: str, name: str, goal: float, scale: Scale
) -> list[Figure]:
    times: dict[str, list[dict[str, float]]] = {peer: [] for peer in call}

    def run(peer: str) -> list[float]:
        found = call[peer](method)
        times[peer].append(found)
        return [found["transactions/s"]]

    rates = take_turns({peer: partial(run, peer) for peer in call}, scale.rounds)
    transactions = scale.client_transactions + scale.client_transactions // 10
    compared = Comparison(name=f"{name}: transactions", unit="1/s", runs=rates)
    return [
        *compared.each(),
        compared.at_least(THEIRS, goal),
        *(
            # Without the warm-up round.
            median_of(f"{name}: {part}: {peer}", [one[part] for one in found[1:]], "ms")
            for part in ("transaction p50", "commit p50")
            for peer, found in times.items()
        ),
        *processor_figures(
            name,
            {peer: partial(call[peer], method) for peer in call},
            warm_ups=1,
            work=transactions * RECORDS / 1e6,
            unit=PER_MILLION,
        ),
    ]


@contextmanager
def kafka_runs(address: str, scale: Scale) -> Iterator[Runs]:
    """confluent-kafka with a broker."""
    common = {"bootstrap.servers": address}
    yield Runs(
        scale,
        producer=lambda more: confluent_kafka.Producer({**common, **PRODUCER, **more}),
        consumer=lambda more: confluent_kafka.Consumer({**common, **CONSUMER, **more}),
        partition=confluent_kafka.TopicPartition,
        create_topic=partial(create_topic, address),
    )


@contextmanager
def txnlog_runs(root: str, scale: Scale) -> Iterator[Runs]:
    """txnlog, in a new cluster, with its defaults."""
    common = {"txnlog.root": root}
    cluster = Cluster.open(root, create=True)
    yield Runs(
        scale,
        producer=lambda more: Producer({**common, **more}),
        consumer=lambda more: Consumer({**common, **more}),
        partition=TopicPartition,
        create_topic=lambda topic, partitions: cluster.create_topic(topic, partitions=partitions),
    )
    wait_for_background()


class Runs:
    """The work of both; each run has a new topic and a new transactional.id."""

    def __init__(
        self,
        scale: Scale,
        *,
        producer: Callable[[dict[str, Any]], Any],
        consumer: Callable[[dict[str, Any]], Any],
        partition: Callable[[str, int, int], Any],
        create_topic: Callable[[str, int], object],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._partition = partition
        self._create_topic = create_topic
        self._count = scale.client_transactions
        self._warm_up = scale.client_transactions // 10
        self._records = scale.records_by_message
        self._create_topic(INPUT, PARTITIONS)
        self._transactions(INPUT, lambda producer: _produce(producer, INPUT, RECORDS))
        self._create_topic(READ, PARTITIONS)
        producer = self._producer({"transactional.id": READ})
        producer.init_transactions()
        for _ in range(self._records // AT_ONCE):
            producer.begin_transaction()
            _produce(producer, READ, AT_ONCE)
            producer.commit_transaction()
        if hasattr(producer, "close"):
            producer.close()

    def produce(self) -> dict[str, float]:
        """Transactions that only produce."""
        topic = f"topic{next(_numbers)}"
        self._create_topic(topic, PARTITIONS)
        return self._transactions(topic, lambda producer: _produce(producer, topic, RECORDS))

    def consume_transform_produce(self) -> dict[str, float]:
        """Each transaction has the records of one `consume`, and the offsets after them."""
        topic = f"topic{next(_numbers)}"
        self._create_topic(topic, PARTITIONS)
        consumer = self._consumer(
            {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([INPUT])

        def step(producer: Any) -> None:
            left = RECORDS
            while left:
                messages = consumer.consume(left, TIMEOUT_S)
                assert messages
                for message in messages:
                    value = message.value()[::-1]
                    producer.produce(topic, value, partition=message.partition())
                left -= len(messages)
            read = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(
                [position for position in read if position.offset >= 0],
                consumer.consumer_group_metadata(),
            )

        try:
            return self._transactions(topic, step)
        finally:
            consumer.close()

    def consume(self) -> list[float]:
        """Records a millisecond of a new consumer, after its first ones."""
        return self._read(lambda consumer: consumer.consume(AT_ONCE, TIMEOUT_S))

    def poll(self) -> list[float]:
        """The same, one record at a time."""
        return self._read(lambda consumer: [consumer.poll(TIMEOUT_S)])

    def _read(self, take: Callable[[Any], list[Any]]) -> list[float]:
        consumer = self._consumer({"group.id": READ, "enable.auto.commit": False})
        numbers = range(PARTITIONS)
        consumer.assign([self._partition(READ, number, 0) for number in numbers])
        try:
            count = left = self._records // AT_ONCE * AT_ONCE - len(take(consumer))
            started = time.perf_counter()
            while left > 0:
                messages = take(consumer)
                assert messages[0].value() == VALUE
                left -= len(messages)
            return [count / (time.perf_counter() - started) / 1000]
        finally:
            consumer.close()

    def _transactions(self, name: str, fill: Callable[[Any], None]) -> dict[str, float]:
        """The first tenth does not count."""
        producer = self._producer({"transactional.id": name})
        producer.init_transactions()
        transactions_ms, commits_ms = [], []
        for _ in range(self._warm_up + self._count):
            started = time.perf_counter()
            producer.begin_transaction()
            fill(producer)
            commit = time.perf_counter()
            producer.commit_transaction()
            done = time.perf_counter()
            transactions_ms.append((done - started) * 1000)
            commits_ms.append((done - commit) * 1000)
        if hasattr(producer, "close"):
            producer.close()
        transactions_ms = transactions_ms[self._warm_up :]
        return {
            "transactions/s": 1000 * self._count / sum(transactions_ms),
            "transaction p50": median(transactions_ms),
            "commit p50": median(commits_ms[self._warm_up :]),
        }


def _produce(producer: Any, topic: str, records: int) -> None:
    for record in range(records):
        producer.produce(topic, VALUE, partition=record % PARTITIONS)
