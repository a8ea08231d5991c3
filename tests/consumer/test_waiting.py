"""How long a record waits at an object store until a call returns it: in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
from obstore.store import MemoryStore

from tests.consumer.records import consumer, put
from tests.world import PLAIN
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.testing.virtual_time import SlowStore, VirtualTime

LATENCY_MS = 25.0
OPENING_MS = 1_000
DURATION_MS = 4_000
TIMEOUT_S = 0.2
GAPS_MS = {"often": (60, 100), "faster than looks": (10, 30), "at times": (300, 500)}
LOOK_MS = 5 * LATENCY_MS
"""A look at the log that finds two commits, with their files."""

CALLS: dict[str, Callable[[Consumer], Sequence[bytes | None]]] = {
    "poll": lambda reader: [m.value() for m in (reader.poll(TIMEOUT_S),) if m is not None],
    "consume 500": lambda reader: [m.value() for m in reader.consume(500, TIMEOUT_S)],
    "consume 3": lambda reader: [m.value() for m in reader.consume(3, TIMEOUT_S)],
    "consume": lambda reader: [m.value() for m in reader.consume(timeout=TIMEOUT_S)],
    "batch": lambda reader: reader.consume_batch(timeout=TIMEOUT_S)["value"].to_pylist(),
    "batch without a time-out": lambda reader: reader.consume_batch()["value"].to_pylist(),
}


class FarStore(SlowStore):
    """A store that a consumer treats as an object store: each request waits for a network."""

    is_remote = True


@dataclass
class Waits:
    """Of all records, from their commit until they were returned; and how long calls took."""

    records_ms: list[float] = field(default_factory=list)
    calls_ms: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> float:
        return sorted(self.records_ms)[len(self.records_ms) * percent // 100]


@cache
def waits(call: str, gap: str) -> Waits:
    """One producer that commits a record at each gap, and a consumer that calls again and again."""
    backing, time, found = MemoryStore(), VirtualTime(), Waits()
    committed_ms: list[float] = []
    near = FarStore(backing, time, latency_ms=(0, 0), seed="producer")
    producer = Cluster.open(near, create=True, shards=2, offsets_shards=1, settings=PLAIN)
    producer.create_topic("t", partitions=1)
    gaps = random.Random(1)
    dues_ms = [time.at_ms]
    opened_ms, end_ms = time.at_ms + OPENING_MS, time.at_ms + OPENING_MS + DURATION_MS
    while dues_ms[-1] < end_ms:
        dues_ms.append(dues_ms[-1] + gaps.uniform(*GAPS_MS[gap]))

    def produce() -> None:
        for due_ms in dues_ms:
            time.sleep_ms(due_ms - time.at_ms)
            put(producer, b"%d" % len(committed_ms))
            committed_ms.append(time.at_ms)

    def consume() -> None:
        far = FarStore(backing, time, latency_ms=(LATENCY_MS, LATENCY_MS), seed="consumer")
        reader = consumer(Cluster.open(far, settings=PLAIN), enable_auto_commit=False)
        reader.assign([TopicPartition("t", 0)])
        left = len(dues_ms)
        while left:
            began_ms = time.at_ms
            values = CALLS[call](reader)
            left -= len(values)
            if began_ms >= opened_ms:
                found.calls_ms.append(time.at_ms - began_ms)
                since_ms = [committed_ms[int(value or b"")] for value in values]
                found.records_ms += [time.at_ms - ms for ms in since_ms]

    time.run([produce, consume])
    return found


@pytest.mark.parametrize("gap", GAPS_MS)
@pytest.mark.parametrize("call", ["consume 500", "consume 3"])
def test_record_waits_for_consume_no_longer_than_its_timeout(call: str, gap: str) -> None:
    """While each look at the log found another record, the time-out was forgotten: 1.2 seconds."""
    limit_ms = waits("poll", gap).percentile(95) + 1_000 * TIMEOUT_S
    assert waits(call, gap).percentile(95) <= limit_ms


@pytest.mark.parametrize("gap", GAPS_MS)
@pytest.mark.parametrize("call", ["consume", "batch", "batch without a time-out"])
def test_record_waits_for_a_batch_as_for_poll(call: str, gap: str) -> None:
    """What returns as soon as there is a record looked again as long as there was another."""
    for percent in (50, 95):
        limit_ms = 1.3 * waits("poll", gap).percentile(percent)
        assert waits(call, gap).percentile(percent) <= limit_ms


@pytest.mark.parametrize("call", ["consume 500", "consume", "batch"])
def test_consume_ends_at_its_timeout_or_with_the_look_under_way(call: str) -> None:
    """One call took as long as the producer was at work."""
    assert max(waits(call, "often").calls_ms) <= 1_000 * TIMEOUT_S + LOOK_MS


def test_consume_waits_for_all_records_until_its_timeout() -> None:
    """As confluent-kafka: it returns fewer only when the time has passed."""
    early = [ms for ms in waits("consume 500", "often").calls_ms if ms < 1_000 * TIMEOUT_S]
    assert len(early) <= DURATION_MS / 1_000 + 1, "only for the consumer's duties, once a second"
