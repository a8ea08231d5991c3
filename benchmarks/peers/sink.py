"""Throughput of the sink, compared with Spark's Kafka and Delta sinks and one that does nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS, Comparison, Figure, reported
from benchmarks.peers.broker import broker_pid, connector, create_topic, kafka_broker
from benchmarks.peers.processor import PER_MILLION, processor_figures
from benchmarks.processes import own_process
from benchmarks.scale import Scale
from benchmarks.session import bench_session, take_turns, write_input
from benchmarks.sink import NAME, RATE, SinkRuns

# The sink guarantees at-least-once with or without enable.idempotence; with it, a broker that was
# briefly slow rejected batches as out of order until they timed out.
# Which one is fastest depends on the machine: each run tries them first. With Kafka's defaults,
# 16 KiB and no wait, the sink is half as fast.
PRODUCERS = {
    "64 KiB": {"kafka.batch.size": "65536", "kafka.linger.ms": "1"},
    "256 KiB": {"kafka.batch.size": "262144", "kafka.linger.ms": "5"},
    "256 KiB, lz4": {
        "kafka.batch.size": "262144",
        "kafka.linger.ms": "5",
        "kafka.compression.type": "lz4",
    },
}
BUFFER = {"kafka.buffer.memory": str(64 << 20), "kafka.enable.idempotence": "false"}
TRIES = 2


def measure(scale: Scale) -> list[Figure]:
    """Each peer in its own session, all from the same Parquet files."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sink-")))
        address = stack.enter_context(kafka_broker(scale.cores))
        beside = {"Kafka": broker_pid(address)}
        call = {
            peer: stack.enter_context(
                own_process(sink_runs, folder, peer, address, scale, beside=beside.get(peer))
            )
            for peer in (OURS, "Kafka", "Delta", "nothing")
        }
        found, kafka, turns = {}, {}, {}
        for micro_batches in (scale.micro_batches, 1):
            kafka[micro_batches] = "Kafka, " + call["Kafka"]("choose", micro_batches)
            # A session gets faster for many runs: each gets as many as Kafka's choice took.
            for peer in call:
                if peer != "Kafka":
                    call[peer]("warm_up", peer.lower(), micro_batches)
            turns[micro_batches] = {
                peer: partial(call[peer], peer.lower(), micro_batches) for peer in call
            }
            found[micro_batches] = take_turns(
                turns[micro_batches],
                scale.rounds,
                warm_ups=scale.peer_warm_ups,
                runs=scale.peer_runs,
            )
        files = call[OURS]("files_of_input", scale.micro_batches)
    many = Comparison(f"{NAME} 10 micro-batches", RATE, found[scale.micro_batches])
    one = Comparison(f"{NAME} one micro-batch", RATE, found[1])
    limit = "a Python sink that drops its rows"
    return [
        *many.each(),
        many.at_least("Kafka", 1.3, kafka[scale.micro_batches]),
        many.at_least("Delta", 3),
        many.ratio("nothing", limit),
        *one.each(),
        one.at_least("Kafka", 2, kafka[1]),
        one.ratio("Delta"),
        one.ratio("nothing", limit),
        reported(f"{NAME} 10 micro-batches: data files of txnlog's topic", files, "files"),
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
    ]


@contextmanager
def sink_runs(folder: Path, peer: str, address: str, scale: Scale) -> Iterator[SinkRuns]:
    """The runs in the session of one peer; the first one writes the input for all."""
    with bench_session(connector() if peer == "Kafka" else None, cores=scale.cores) as spark:
        source = folder / "input"
        if not source.exists():
            write_input(spark, folder, scale)
        own = folder / peer
        own.mkdir()
        yield KafkaSinkRuns(spark, own, str(source), scale, address=address)


class KafkaSinkRuns(SinkRuns):
    """Also to topics of the broker at `address`."""

    def __init__(self, *arguments: Any, address: str) -> None:
        super().__init__(*arguments)
        self._address = address
        self._producer: dict[str, str] = {}

    def choose(self, micro_batches: int) -> str:
        """Use the fastest of PRODUCERS from now on; returns its name."""
        rates: dict[str, float] = dict.fromkeys(PRODUCERS, 0.0)
        self.kafka(micro_batches)
        for _ in range(TRIES):
            for name, self._producer in PRODUCERS.items():
                rates[name] = max(rates[name], *self.kafka(micro_batches))
        best = max(PRODUCERS, key=rates.__getitem__)
        self._producer = PRODUCERS[best]
        print(f"  Kafka's producer: {best}, of {rates}", flush=True)
        return best

    def warm_up(self, peer: str, micro_batches: int) -> None:
        """As many runs as `choose` makes."""
        for _ in range(1 + TRIES * len(PRODUCERS)):
            getattr(self, peer)(micro_batches)

    def files_of_input(self, micro_batches: int) -> int:
        """How many data files a run makes."""
        before = self._data_files()
        self.txnlog(micro_batches)
        return self._data_files() - before

    def _data_files(self) -> int:
        return sum(1 for _ in self._folder.rglob("topic*/*.parquet"))

    def kafka(self, micro_batches: int) -> list[float]:
        topic = f"topic{next(self._numbers)}"
        create_topic(self._address, topic, self._scale.partitions)
        options = {"kafka.bootstrap.servers": self._address, "topic": topic}
        return self._run("kafka", {**options, **BUFFER, **self._producer}, micro_batches)
