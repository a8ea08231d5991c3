"""Throughput of the source, compared with Spark's Kafka and Delta sources and doing nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.peers.broker import broker_pid, connector, create_topic, kafka_broker
from benchmarks.peers.processor import PER_MILLION, processor_figures
from benchmarks.places import Place
from benchmarks.processes import own_process
from benchmarks.scale import Scale
from benchmarks.session import (
    bench_session,
    input_stream,
    run_query,
    take_turns,
)
from benchmarks.source import RATE, TOPIC, SourceRuns, fill

READS_PER_ROUND = 4
# The best of those tried: 1 MiB per partition and fetch, and 500 records per poll, are Kafka's.
CONSUMER = {
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "10000",
}


def measure(scale: Scale) -> list[Figure]:
    """Each peer in its own session, with the same records, into Spark's noop sink."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="source-")))
        address = stack.enter_context(kafka_broker(scale.cores))
        beside = {"Kafka": broker_pid(address)}
        call = {
            peer: stack.enter_context(
                own_process(source_runs, root, peer, address, scale, beside=beside.get(peer))
            )
            for peer in (OURS, "Kafka", "Delta", "nothing")
        }
        turns = {
            micro_batches: {peer: partial(call[peer], peer.lower(), micro_batches) for peer in call}
            for micro_batches in (scale.micro_batches, 1)
        }
        found = {
            micro_batches: take_turns(
                turns[micro_batches],
                scale.rounds,
                warm_ups=scale.peer_warm_ups,
                runs=scale.peer_runs,
            )
            for micro_batches in (scale.micro_batches, 1)
        }
        reads = {
            OURS: partial(call[OURS], "txnlog_batch"),
            "read_committed": partial(call[OURS], "read_committed"),
            "Kafka": partial(call["Kafka"], "kafka_batch"),
            "Delta": partial(call["Delta"], "delta_batch"),
        }
        batches = take_turns(
            {peer: partial(_several, read) for peer, read in reads.items()},
            scale.rounds,
            warm_ups=scale.peer_warm_ups,
        )
    name = "source, 2 M records in"
    many = Comparison(f"{name} 10 micro-batches", RATE, found[scale.micro_batches])
    one = Comparison(f"{name} one micro-batch", RATE, found[1])
    batch = Comparison("batch read of 2 M records", RATE, batches)
    committed = Comparison("batch read of 2 M records", RATE, batches, ours="read_committed")
    limit = "a Python source of equal rows"
    return [
        *many.each(),
        many.at_least("Kafka", 1.3),
        many.ratio("Delta"),
        many.ratio("nothing", limit),
        *one.each(),
        one.at_least("Kafka", 1.5),
        one.ratio("Delta"),
        one.ratio("nothing", limit),
        *batch.each(),
        batch.ratio("Kafka"),
        batch.ratio("Delta"),
        committed.at_least("Delta", 0.95),
        committed.ratio("Kafka"),
        *(
            figure
            for comparison, micro_batches in ((many, scale.micro_batches), (one, 1))
            for figure in processor_figures(
                comparison.name,
                turns[micro_batches],
                warm_ups=scale.peer_warm_ups * scale.peer_runs,
                work=scale.records / 1e6,
                unit=PER_MILLION,
            )
        ),
        *processor_figures(
            batch.name,
            reads,
            warm_ups=scale.peer_warm_ups * (1 + READS_PER_ROUND),
            work=scale.records / 1e6,
            unit=PER_MILLION,
        ),
    ]


def _several(read: Callable[[], list[float]]) -> list[float]:
    """Several reads, as one takes half a second and varies much; after a warm-up."""
    read()
    return [rate for _ in range(READS_PER_ROUND) for rate in read()]


@contextmanager
def source_runs(root: Path, peer: str, address: str, scale: Scale) -> Iterator[SourceRuns]:
    """The runs in the session of one peer; the first one fills the tables, Kafka's its topic."""
    with bench_session(connector() if peer == "Kafka" else None, cores=scale.cores) as spark:
        folder = root / f"checkpoints-{peer}"
        folder.mkdir()
        if peer == OURS:
            fill(spark, root, scale)
        runs = KafkaSourceRuns(spark, Place.on_disk(root), folder, scale, address=address)
        if peer == "Kafka":
            runs.fill_kafka()
        yield runs


class KafkaSourceRuns(SourceRuns):
    """Also from a topic of the broker at `address`."""

    def __init__(self, *arguments: Any, address: str) -> None:
        super().__init__(*arguments)
        self._address = address

    def fill_kafka(self) -> None:
        """The same keys to the same partitions, as the partitioner is the same."""
        create_topic(self._address, TOPIC, self._scale.partitions)
        frame = input_stream(
            self._spark,
            f"{self._place.root}/input",
            micro_batches=self._scale.micro_batches,
            scale=self._scale,
        )
        options = {"kafka.bootstrap.servers": self._address, "topic": TOPIC}
        run_query(frame.writeStream.format("kafka").options(**options), self._folder)

    def kafka(self, micro_batches: int) -> list[float]:
        reader = self._limited(self._subscribed(self._spark.readStream), micro_batches)
        return self._stream(reader.load(), micro_batches)

    def kafka_batch(self) -> list[float]:
        return self._batch(self._subscribed(self._spark.read).load())

    def _subscribed(self, reader: Any) -> Any:
        options = {"kafka.bootstrap.servers": self._address, "subscribe": TOPIC, **CONSUMER}
        return reader.format("kafka").options(**options)
