"""Many processes that write one log on a local disk: a topic, a shard of ids, a group's offsets."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import quantiles
from typing import Any

from benchmarks.figures import Figure, reported
from benchmarks.folders import memory_folder, new_folder
from benchmarks.processes import SPAWN
from benchmarks.scale import Scale
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer

PARTITIONS = 16
VALUE = b"v" * 100
TOPIC, GROUP = "bench", "bench"
START_S = 300
STEADY_S = 3.0
"""A member that has had its partitions for so long has seen the last of the others join."""

Write = Callable[[], None]
Writer = AbstractContextManager[Write]


def measure(scale: Scale) -> list[Figure]:
    """Transactions of one record, and commits of one offset, in memory and on a disk."""
    figures: list[Figure] = []
    places: dict[str, Callable[[], str]] = {"disk": new_folder}
    memory = memory_folder()
    if memory is not None:
        places["memory"] = lambda: tempfile.mkdtemp(prefix="txnlog-bench-", dir=memory)
    for place, folder in places.items():
        for count in scale.writer_processes:
            figures += _to_one_topic(f"{place}, one topic", count, folder(), scale)
    for count in scale.writer_processes[1:]:
        figures += _to_one_shard(f"{place}, one shard of ids", count, folder(), scale)
        figures += _to_one_group(f"{place}, one group", count, folder(), scale)
    return figures


def _to_one_topic(name: str, count: int, root: str, scale: Scale) -> list[Figure]:
    _create(root, topics=1)
    writers = [
        partial(_transactions, root, f"id-{number}", f"{TOPIC}0", number) for number in range(count)
    ]
    return _measured(name, writers, scale)


def _to_one_shard(name: str, count: int, root: str, scale: Scale) -> list[Figure]:
    """Of the state log, by ids that write to a topic each."""
    ids = _ids_of_one_shard(_create(root, topics=count))
    writers = [
        partial(_transactions, root, next(ids), f"{TOPIC}{number}", 0) for number in range(count)
    ]
    return _measured(name, writers, scale)


def _to_one_group(name: str, count: int, root: str, scale: Scale) -> list[Figure]:
    _create(root, topics=1)
    return _measured(name, [partial(_offset_commits, root, count)] * count, scale)


def _create(root: str, *, topics: int) -> Cluster:
    cluster = Cluster.open(root, {"fsync": "false"}, create=True)
    for number in range(topics):
        cluster.create_topic(f"{TOPIC}{number}", partitions=PARTITIONS)
    return cluster


def _measured(name: str, writers: Sequence[Callable[[], Writer]], scale: Scale) -> list[Figure]:
    """Each writer in a process of its own, all at once."""
    ready, results = SPAWN.Barrier(len(writers)), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_write_for, args=(scale.writer_s, ready, results, open_writer))
        for open_writer in writers
    ]
    for process in processes:
        process.start()
    times_ms = [results.get(timeout=START_S + scale.writer_s) for _ in processes]
    for process in processes:
        process.join()
    numbers = [len(some) for some in times_ms]
    cuts = quantiles(itertools.chain.from_iterable(times_ms), n=100)
    name = f"{len(writers)} processes, {name}"
    return [
        reported(f"{name}: commits", sum(numbers) / scale.writer_s, "1/s"),
        reported(f"{name}: slowest / fastest", min(numbers) / max(numbers), "x"),
        *(reported(f"{name}: p{cut}", cuts[cut - 1], "ms") for cut in (50, 95, 99)),
        reported(f"{name}: longest", max(map(max, times_ms)), "ms"),
    ]


def _ids_of_one_shard(cluster: Cluster) -> Iterator[str]:
    ids = (f"id-{number}" for number in itertools.count())
    shard = cluster.shard_of("id-0")
    return (found for found in ids if cluster.shard_of(found) == shard)


def _write_for(
    duration_s: float, ready: Any, results: Any, open_writer: Callable[[], Writer]
) -> None:
    """Write for some seconds, one commit after the other; the result is the ms of each."""
    with open_writer() as write:
        write()
        ready.wait(START_S)
        times_ms = []
        end_s = time.perf_counter() + duration_s
        while (begun_s := time.perf_counter()) < end_s:
            write()
            times_ms.append((time.perf_counter() - begun_s) * 1000)
    results.put(times_ms)


@contextmanager
def _transactions(root: str, transactional_id: str, topic: str, partition: int) -> Iterator[Write]:
    with Producer({"txnlog.root": root, "transactional.id": transactional_id}) as producer:
        producer.init_transactions()

        def write() -> None:
            with producer.transaction():
                producer.produce(topic, VALUE, partition=partition)

        yield write


@contextmanager
def _offset_commits(root: str, members: int) -> Iterator[Write]:
    """Of a member, after the rebalance that gives each its partitions."""
    config = {"txnlog.root": root, "group.id": GROUP, "enable.auto.commit": False}
    with Consumer(config) as consumer:
        consumer.subscribe([f"{TOPIC}0"])
        steady_s = time.perf_counter()
        while time.perf_counter() - steady_s < STEADY_S:
            before = consumer.assignment()
            consumer.poll(0.1)
            if len(before) != PARTITIONS // members or consumer.assignment() != before:
                steady_s = time.perf_counter()
        offsets = itertools.cycle((0, 1))
        mine = consumer.assignment()[0].partition

        def write() -> None:
            position = TopicPartition(f"{TOPIC}0", mine, next(offsets))
            consumer.commit(offsets=[position], asynchronous=False)

        yield write
