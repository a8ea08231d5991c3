"""What requests to an object store cost: per million transactions and batches, per idle month.

`python -m benchmarks.prices` prints the table of docs/object-stores.md. Requests are counted with a
store in memory and a virtual clock, so the table is the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from unittest.mock import patch

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_source.reading import read_partition
from spark_source.schema import spark_schema
from spark_source.stream import open_reader
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore

PRICES_OF = "S3 Standard, us-east-1, list prices of 2025"
USD_PER_1000: Mapping[str, float] = {
    "put": 0.005,
    "list": 0.005,
    "get": 0.0004,
    "head": 0.0004,
    "delete": 0.0,
}
MONTH_S = 30 * 24 * 3600
MILLION = 1_000_000
_COUNTED_S = 60
_TURNS = 20
_SETTINGS = LogSettings(checkpoint_mode="off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Requests by verb, of one unit of what `name` says."""

    name: str
    requests: Mapping[str, float]

    def times(self, count: float) -> Cost:
        """The requests of `count` units."""
        scaled = {verb: number * count for verb, number in self.requests.items()}
        return Cost(name=self.name, requests=scaled)

    @property
    def usd(self) -> float:
        """Their price; storage and traffic are not in it."""
        return sum(USD_PER_1000[verb] * number / 1000 for verb, number in self.requests.items())


def counted(name: str, store: RoundsStore, units: float) -> Cost:
    """The cost of a unit, from the calls that a store has made for `units` of them."""
    calls = Counter(verb for verb, _ in store.calls)
    return Cost(name=name, requests={verb: number / units for verb, number in calls.items()})


def transaction(topics: int, partitions: int, *, with_offsets: bool = False) -> Cost:
    """A producer's transaction with a record in each partition, 100 ms after the one before."""
    shared = _world(topics, partitions)
    store = RoundsStore(shared)
    config = {"txnlog.root": "memory://", "transactional.id": "p"}
    cluster = Cluster.open(store, settings=_SETTINGS)
    with Producer(config, cluster=cluster, background=False) as producer:
        producer.init_transactions()
        group = ConsumerGroupMetadata("g", cluster.groups.start("g"))
        for turn in range(_TURNS + 2):
            store.clock.sleep_ms(100)
            if turn == 2:
                store.calls.clear()
            producer.begin_transaction()
            if with_offsets:
                producer.send_offsets_to_transaction([TopicPartition("t0", 0, turn)], group)
            for topic in range(topics):
                for partition in range(partitions):
                    producer.produce(f"t{topic}", b"value", partition=partition)
            producer.commit_transaction()
        name = f"transaction of a producer, {_topics(topics)} x {partitions} partitions"
        name += ", with offsets of a group" if with_offsets else ""
        return counted(name, store, _TURNS)


def source_batch(files: int) -> Cost:
    """The source's part of a micro-batch: finding the records, and reading their files."""
    shared = _world(1, files)
    store = RoundsStore(shared)
    cluster = Cluster.open(store, settings=_SETTINGS)
    writer = Cluster.open(shared.open(), settings=_SETTINGS)
    options = {"path": "memory://", "subscribe": "t0", "startingOffsets": "latest"}
    with (
        patch.object(Cluster, "cached", lambda *given, **named: cluster),
        patch("spark_source.reading.executor_cluster", lambda *given, **named: cluster),
        Producer({"txnlog.root": "memory://"}, cluster=writer, background=False) as producer,
    ):
        reader = open_reader(options, spark_schema(include_headers=False))
        at = reader.latestOffset({}, ReadAllAvailable())
        store.calls.clear()
        for _ in range(_TURNS):
            for partition in range(files):
                producer.produce("t0", b"value", partition=partition)
            producer.flush()
            end = reader.latestOffset(at, ReadAllAvailable())
            for task in reader.partitions(at, end):
                list(read_partition(reader._settings, task))
            at = end
    return counted(f"source of a micro-batch with {files} partitions", store, _TURNS)


def idle_source() -> Cost:
    """A second of a stream without new records; Spark asks 100 times a second."""
    store = RoundsStore(_world(1, 1))
    cluster = Cluster.open(store, settings=_SETTINGS)
    options = {"path": "memory://", "subscribe": "t0", "startingOffsets": "earliest"}
    with patch.object(Cluster, "cached", lambda *given, **named: cluster):
        reader = open_reader(options, spark_schema(include_headers=False))
        at = reader.latestOffset({}, ReadAllAvailable())
        store.calls.clear()
        until_ms = store.clock.boot_ms() + 1000 * _COUNTED_S
        while store.clock.boot_ms() < until_ms:
            reader.latestOffset(at, ReadAllAvailable())
            store.clock.sleep_ms(10)
    return counted("idle stream of one topic, a month", store, _COUNTED_S)


def idle_consumer(topics: int) -> Cost:
    """A second of a consumer without new records."""
    store = RoundsStore(_world(topics, 1))
    cluster = Cluster.open(store, settings=_SETTINGS)
    reader = Consumer({"enable.auto.commit": False}, cluster=cluster, background=False)
    reader.assign([TopicPartition(f"t{number}", 0) for number in range(topics)])
    reader.poll(60)
    store.calls.clear()
    reader.poll(_COUNTED_S)
    return counted(f"idle consumer of {_topics(topics)}, a month", store, _COUNTED_S)


def costs() -> list[Cost]:
    """The rows of the table."""
    return [
        *(transaction(*shape).times(MILLION) for shape in ((1, 1), (1, 16), (4, 4))),
        transaction(1, 1, with_offsets=True).times(MILLION),
        *(source_batch(files).times(MILLION) for files in (1, 16)),
        idle_source().times(MONTH_S),
        *(idle_consumer(topics).times(MONTH_S) for topics in (1, 100)),
    ]


def table(found: Iterable[Cost]) -> str:
    """Markdown; requests in millions, a million transactions or batches in a row."""
    head = "| per million, or per month | puts and lists | gets and heads | deletes | USD |"
    lines = [head, "|---|--:|--:|--:|--:|"]
    for cost in found:
        asked = cost.requests
        dear = asked.get("put", 0) + asked.get("list", 0)
        cheap = asked.get("get", 0) + asked.get("head", 0)
        deletes = asked.get("delete", 0)
        cells = [f"{number / MILLION:,.1f} M" for number in (dear, cheap, deletes)]
        lines.append(f"| {cost.name} | {' | '.join(cells)} | {cost.usd:,.2f} |")
    return "\n".join(lines)


def _topics(count: int) -> str:
    return f"{count} topic{'s' * (count > 1)}"


def _world(topics: int, partitions: int) -> SharedMemory:
    shared = SharedMemory()
    cluster = Cluster.open(shared.open(), create=True, settings=_SETTINGS)
    for number in range(topics):
        cluster.create_topic(f"t{number}", partitions=partitions)
    return shared


if __name__ == "__main__":
    print(f"{PRICES_OF}; without storage and traffic.\n")
    print(table(costs()))
