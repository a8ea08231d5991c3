"""Producers of one topic, all at once: how many transactions it takes behind a store's latency.

In virtual time: each request takes 22 to 28 ms and nothing else does, so the figures do not depend
on the processor, of which 32 clients on a few cores would have too little.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

from obstore.store import MemoryStore

from benchmarks.figures import Figure, at_least, at_most, reported
from benchmarks.scale import Scale
from txnlog.cluster import Cluster
from txnlog.producer import Producer
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.virtual_time import SlowStore, VirtualTime

PRODUCERS = (1, 4, 16, 32)
ALIGNED = 25
PARTITIONS = 16
LATENCY_MS = (22.0, 28.0)
SETTINGS = LogSettings(checkpoint_mode="off")
OPENING_MS = 10_000.0
WARM_UP_MS = 3_000.0
MEASURED_MS = 10_000.0


class Found(NamedTuple):
    """The times of each producer's transactions in ms, and requests per transaction."""

    times_ms: list[list[float]]
    requests: float

    @property
    def rate(self) -> float:
        return 1000 * sum(map(len, self.times_ms)) / MEASURED_MS

    @property
    def fairness(self) -> float:
        counts = [len(times) for times in self.times_ms]
        return min(counts) / max(counts)

    def percentile(self, percent: int) -> float:
        ordered = sorted(chain.from_iterable(self.times_ms))
        return ordered[len(ordered) * percent // 100]


class _FarStore(SlowStore):
    """What clients take for an object store."""

    is_remote = True


def measure(scale: Scale) -> list[Figure]:
    """Transactions of one record, one after the other, and one a second by all at once."""
    figures: list[Figure] = []
    found = Found([[]], 0)
    for producers in PRODUCERS:
        found = transactions(producers)
        name = f"{producers} producers of one topic behind 25 ms"
        figures.append(reported(f"{name}: transactions", found.rate, "1/s"))
        figures += [
            reported(f"{name}: p{percent}", found.percentile(percent), "ms") for percent in (50, 99)
        ]
        figures.append(reported(f"{name}: requests of a transaction", found.requests, ""))
    aligned = transactions(ALIGNED, every_ms=1_000)
    all_at_once = f"{ALIGNED} producers, all at once each second"
    most = f"{PRODUCERS[-1]} producers of one topic"
    return [
        *figures,
        at_least(f"{most}: transactions a second", found.rate, "1/s", 80),
        at_most(f"{most}: p99", found.percentile(99), "ms", 700),
        at_least(f"{most}: slowest", found.fairness, "x", 0.6, "the fastest"),
        reported(f"{all_at_once}: p50", aligned.percentile(50), "ms"),
        at_most(f"{all_at_once}: p99", aligned.percentile(99), "ms", 500),
    ]  # fmt: skip


def transactions(producers: int, *, every_ms: float = 0.0) -> Found:
    """Of producers with an id and a process each."""
    random.seed(producers)
    backing, time = MemoryStore(), VirtualTime()
    stores = [_FarStore(backing, time, latency_ms=LATENCY_MS, seed=n) for n in range(producers)]
    Cluster.open(stores[0], create=True, settings=SETTINGS).create_topic("t", partitions=PARTITIONS)
    times_ms: list[list[float]] = [[] for _ in stores]
    requests = [0] * producers
    begin_ms = time.at_ms + OPENING_MS

    def program(number: int) -> None:
        cluster = Cluster.open(stores[number], settings=SETTINGS)
        config = {"txnlog.root": "memory://", "transactional.id": f"id-{number}"}
        producer = Producer(config, cluster=cluster, background=False)
        producer.init_transactions()

        def write() -> None:
            producer.begin_transaction()
            producer.produce("t", b"v" * 100, partition=number % PARTITIONS)
            producer.commit_transaction()

        time.sleep_ms(begin_ms - time.at_ms)
        _until(time, begin_ms + WARM_UP_MS, every_ms, write)
        before = stores[number].requests
        times_ms[number] += _until(time, begin_ms + WARM_UP_MS + MEASURED_MS, every_ms, write)
        requests[number] = stores[number].requests - before

    time.run([partial(program, number) for number in range(producers)])
    return Found(times_ms, sum(requests) / sum(map(len, times_ms)))


def _until(
    time: VirtualTime, end_ms: float, every_ms: float, write: Callable[[], None]
) -> list[float]:
    """Write until then, at each multiple of `every_ms`; how long each took."""
    took_ms: list[float] = []
    while time.at_ms < end_ms:
        if every_ms:
            time.sleep_ms(every_ms - time.at_ms % every_ms)
        begun_ms = time.at_ms
        write()
        took_ms.append(time.at_ms - begun_ms)
    return took_ms
