"""Micro-batches of 100 records, topic to topic: ours, Kafka to Kafka, Delta to Delta, nothing.

And what of it is whose: the same with Python on one side only or on none, and by Spark's phases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import OURS, Comparison, Figure, median_of
from benchmarks.latency import (
    GROUP,
    NAME,
    ROWS,
    SOURCE,
    TRIGGER,
    WITH_GROUP,
    LatencyRuns,
    Phases,
    figures,
    fill,
    triggers_ms,
)
from benchmarks.peers.broker import broker_pid, connector, create_topic, kafka_broker
from benchmarks.peers.processor import processor_figures
from benchmarks.processes import own_process
from benchmarks.scale import TOPIC_PARTITIONS, Scale
from benchmarks.session import bench_session, take_turns

CONSUMER = {"kafka.isolation.level": "read_committed", "kafka.fetch.max.wait.ms": "10"}
PRODUCER = {"kafka.linger.ms": "0"}
# Parts of a micro-batch that are measured without topics at both ends.
PARTS = {
    "Kafka to a JVM sink that does nothing": ("Kafka", "kafka_to_jvm"),
    "Kafka to a Python sink that does nothing": ("Kafka", "kafka_to_python"),
    "a Python source that does nothing to such a JVM sink": ("nothing", "nothing_to_jvm"),
}


def measure(scale: Scale) -> list[Figure]:
    """Medians of triggerExecution, each peer in a session of its own."""
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="latency-"))
        address = stack.enter_context(kafka_broker(scale.cores))
        beside = {"Kafka": broker_pid(address)}
        fill(root, scale)
        fill_kafka(address, scale)
        call = {
            peer: stack.enter_context(
                own_process(latency_runs, root, peer, address, scale, beside=beside.get(peer))
            )
            for peer in (OURS, "nothing", "Kafka", "Delta")
        }
        turns = {
            OURS: partial(call[OURS], "txnlog"),
            WITH_GROUP: partial(call[OURS], "txnlog", GROUP),
            "nothing": partial(call["nothing"], "nothing"),
            "Kafka": partial(call["Kafka"], "kafka"),
            "Delta": partial(call["Delta"], "delta"),
            **{name: partial(call[peer], method) for name, (peer, method) in PARTS.items()},
        }
        phases: dict[str, list[Phases]] = {name: [] for name in turns}
        found = take_turns(
            {name: partial(_median_ms, turns[name], phases[name]) for name in turns},
            scale.rounds,
            warm_ups=scale.peer_warm_ups,
        )
        steps = {
            OURS: call[OURS]("steps"),
            WITH_GROUP: call[OURS]("steps", GROUP),
        }
    topics = {name: runs for name, runs in found.items() if name not in PARTS}
    warm_up = scale.peer_warm_ups * scale.small_micro_batches
    return [
        *Comparison(NAME, "ms", topics).each(),
        *figures(found, found, steps),
        Comparison(NAME, "ms", found).ratio("Kafka", "Kafka to Kafka"),
        *(median_of(f"micro-batch of 100 records, {name}", found[name], "ms") for name in PARTS),
        *processor_figures(
            NAME,
            {name: turns[name] for name in topics},
            warm_ups=scale.peer_warm_ups,
            work=(scale.small_warm_up + scale.small_micro_batches) / 1000,
            unit="ms",
        ),
        *(figure for name in topics for figure in _phase_figures(name, phases[name][warm_up:])),
    ]


def _median_ms(run: Callable[[], list[Phases]], phases: list[Phases]) -> list[float]:
    micro_batches = run()
    phases += micro_batches
    return [median(triggers_ms(micro_batches))]


def _phase_figures(peer: str, micro_batches: list[Phases]) -> list[Figure]:
    """By Spark's names; the remainder is the time between them."""
    names = sorted({name for phases in micro_batches for name in phases} - {TRIGGER})
    found = {name: [float(phases.get(name, 0)) for phases in micro_batches] for name in names}
    found["rest"] = [2.0 * phases[TRIGGER] - sum(phases.values()) for phases in micro_batches]
    return [
        median_of(f"phase {phase}: {peer}", times_ms, "ms") for phase, times_ms in found.items()
    ]


def fill_kafka(address: str, scale: Scale) -> None:
    """As many records as in txnlog's topic, evenly over partitions: triggers split them evenly."""
    create_topic(address, SOURCE, TOPIC_PARTITIONS)
    producer = Producer({"bootstrap.servers": address})
    for number in range(ROWS * (scale.small_warm_up + scale.small_micro_batches)):
        key = b"key-%d" % (number % ROWS)
        producer.produce(SOURCE, b"v" * 100, key=key, partition=number % TOPIC_PARTITIONS)
    producer.flush()


@contextmanager
def latency_runs(root: str, peer: str, address: str, scale: Scale) -> Iterator[LatencyRuns]:
    """The runs in the session of one peer."""
    with bench_session(connector() if peer == "Kafka" else None, cores=scale.cores) as spark:
        folder = Path(root, f"own-{peer}")
        folder.mkdir()
        yield KafkaLatencyRuns(spark, Path(root), folder, scale, address=address)


class KafkaLatencyRuns(LatencyRuns):
    """Also from and to topics of the broker at `address`."""

    def __init__(self, *arguments: Any, address: str) -> None:
        super().__init__(*arguments)
        self._broker = {"kafka.bootstrap.servers": address}
        self._address = address

    def kafka(self) -> list[Phases]:
        topic = f"topic{next(self._numbers)}"
        create_topic(self._address, topic, TOPIC_PARTITIONS)
        writer = self._source().drop("topic", "partition").writeStream.format("kafka")
        return self._run(writer.options(topic=topic, **self._broker, **PRODUCER))

    def kafka_to_jvm(self) -> list[Phases]:
        return self._run(self._source().writeStream.format("noop"))

    def kafka_to_python(self) -> list[Phases]:
        return self._run(self._source().writeStream.format(NOTHING))

    def _source(self) -> Any:
        options = {"subscribe": SOURCE, "startingOffsets": "earliest", **self._broker, **CONSUMER}
        reader = self._spark.readStream.format("kafka").options(**options)
        return reader.option("maxOffsetsPerTrigger", ROWS).load()
