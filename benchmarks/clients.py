"""The Python clients on a local disk: transactions of one producer and of eight, and records."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import OURS, Comparison, Figure, at_least, at_most, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from benchmarks.session import take_turns
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.producer import Producer
from txnlog.storage.delta.checkpointer import wait_for_background

PARTITIONS = 4
RECORDS = 100
PRODUCERS = 8
VALUE = b"v" * 100
ARROW_ROWS = 50_000
GROUP = "bench"
SPAWN = multiprocessing.get_context("spawn")


def measure(scale: Scale) -> list[Figure]:
    """Transactions of RECORDS records over PARTITIONS partitions; records of 100 bytes."""
    root = new_folder()
    cluster = Cluster.open(root, create=True)
    figures = [
        *_one_producer(cluster, scale, with_offsets=False),
        *_one_producer(cluster, scale, with_offsets=True),
        *_many_producers(cluster, scale),
        *_records_in(cluster, scale),
        *_records_out(cluster, scale),
        *_read_whole(cluster, root, scale),
    ]
    wait_for_background()
    return figures


# -- transactions ----------------------------------------------------------------------------------


def _one_producer(cluster: Cluster, scale: Scale, *, with_offsets: bool) -> list[Figure]:
    topic = f"one{with_offsets:d}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    with Producer({"txnlog.root": cluster.root, "transactional.id": topic}) as producer:
        producer.init_transactions()
        with Consumer({"txnlog.root": cluster.root, "group.id": GROUP}) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            member = consumer.consumer_group_metadata()

            def send(number: int) -> None:
                if with_offsets:
                    producer.send_offsets_to_transaction([TopicPartition(topic, 0, number)], member)

            times_ms = _transactions(producer, topic, scale.client_transactions, send)
    name = "one producer, 100 records" + (" and offsets" if with_offsets else "")
    rate = 1000 * len(times_ms) / sum(times_ms)
    return [
        at_least(f"{name}: transactions", rate, "1/s", 500)
        if not with_offsets
        else reported(f"{name}: transactions", rate, "1/s"),
        at_most(f"{name}: transaction p50", median(times_ms), "ms", 2)
        if not with_offsets
        else reported(f"{name}: transaction p50", median(times_ms), "ms"),
        reported(f"{name}: transaction p95", quantiles(times_ms, n=20)[-1], "ms"),
    ]


def _transactions(
    producer: Producer, topic: str, count: int, send: Callable[[int], None]
) -> list[float]:
    """Milliseconds from begin to the end of commit, after a warm-up of a tenth as many."""
    times_ms = []
    for number in range(count + count // 10):
        started = time.perf_counter()
        producer.begin_transaction()
        for record in range(RECORDS):
            producer.produce(topic, VALUE, partition=record % PARTITIONS)
        send(number)
        producer.commit_transaction()
        times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms[count // 10 :]


def _many_producers(cluster: Cluster, scale: Scale) -> list[Figure]:
    figures = []
    for topics in (1, PRODUCERS):
        names = [f"many{topics}-{number % topics}" for number in range(PRODUCERS)]
        for name in sorted(set(names)):
            cluster.create_topic(name, partitions=PARTITIONS)
        count = scale.client_transactions // 4
        ready = SPAWN.Barrier(PRODUCERS + 1)
        processes = [
            SPAWN.Process(target=_produce, args=(cluster.root, name, number, count, ready))
            for number, name in enumerate(names)
        ]
        for process in processes:
            process.start()
        ready.wait(120)
        started = time.perf_counter()
        for process in processes:
            process.join()
        took_s = time.perf_counter() - started
        assert not any(process.exitcode for process in processes)
        what = "one topic" if topics == 1 else f"{topics} topics"
        rate = PRODUCERS * count / took_s
        figures.append(
            reported(f"{PRODUCERS} producers on {what}, 100 records: transactions", rate, "1/s")
        )
    return figures


def _produce(root: str, topic: str, number: int, count: int, ready: object) -> None:
    with Producer({"txnlog.root": root, "transactional.id": f"{topic}-{number}"}) as producer:
        producer.init_transactions()
        _transactions(producer, topic, 1, lambda number: None)
        ready.wait(120)  # type: ignore[attr-defined]
        for _ in range(count):
            with producer.transaction():
                for record in range(RECORDS):
                    producer.produce(topic, VALUE, partition=record % PARTITIONS)


# -- records ---------------------------------------------------------------------------------------


def _records_in(cluster: Cluster, scale: Scale) -> list[Figure]:
    for topic in ("messages", "arrow"):
        cluster.create_topic(topic, partitions=PARTITIONS)
    table = pa.table({"value": pa.array([VALUE] * ARROW_ROWS, pa.binary())})

    def by_message() -> None:
        with Producer({"txnlog.root": cluster.root}) as producer:
            for number in range(scale.records_by_message):
                producer.produce("messages", VALUE, partition=number % PARTITIONS)
            producer.flush()

    def by_arrow() -> None:
        with Producer({"txnlog.root": cluster.root}) as producer:
            for _ in range(max(1, scale.records // ARROW_ROWS)):
                producer.produce_batch("arrow", table)
            producer.flush()

    return [
        _rate("records in, by message", by_message, scale.records_by_message, 150_000, scale),
        _rate(
            "records in, by Arrow batch",
            by_arrow,
            max(1, scale.records // ARROW_ROWS) * ARROW_ROWS,
            2_000_000,
            scale,
        ),
    ]


def _records_out(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Read the records of _records_in from the beginning."""

    def read(topic: str, records: int, take: Callable[[Consumer], int]) -> Callable[[], None]:
        def run() -> None:
            with Consumer({"txnlog.root": cluster.root, "group.id": GROUP}) as consumer:
                numbers = range(PARTITIONS)
                consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in numbers])
                left = records
                while left > 0:
                    left -= take(consumer)

        return run

    arrow_records = max(1, scale.records // ARROW_ROWS) * ARROW_ROWS
    by_message = read("messages", scale.records_by_message, lambda c: len(c.consume(1_000, 5)))
    by_arrow = read("arrow", arrow_records, lambda c: c.consume_batch(timeout=5).num_rows)
    return [
        _rate("records out, by message", by_message, scale.records_by_message, 150_000, scale),
        _rate("records out, by Arrow batch", by_arrow, arrow_records, 2_000_000, scale),
    ]


def _read_whole(cluster: Cluster, root: str, scale: Scale) -> list[Figure]:
    """`Cluster.read` beside pyarrow's own reader, which checks no checksums, of the same files."""
    names = sorted(cluster.topic("arrow").view.by_path)
    files = [f"{root}/arrow/{name}" for name in names]

    def rate(read: Callable[[], pa.Table]) -> list[float]:
        started = time.perf_counter()
        records = read().num_rows
        return [records / (time.perf_counter() - started) / 1000]

    columns = ["timestamp", "key", "value"]
    ours = partial(cluster.read, "arrow", columns=["offset", *columns])
    theirs = partial(pq.read_table, files, columns=["offset_delta", *columns])
    turns = {"pyarrow": partial(rate, theirs), OURS: partial(rate, ours)}
    compared = Comparison(
        "a topic as an Arrow table", "records/ms", take_turns(turns, scale.rounds)
    )
    return [*compared.each(), compared.ratio("pyarrow", "pyarrow.parquet.read_table of its files")]


def _rate(name: str, run: Callable[[], None], records: int, goal: float, scale: Scale) -> Figure:
    """The median of some runs, after a warm-up run."""
    rates = []
    for _ in range(scale.rounds + 1):
        started = time.perf_counter()
        run()
        rates.append(records / (time.perf_counter() - started))
    return at_least(name, median(rates[1:]), "1/s", goal)
