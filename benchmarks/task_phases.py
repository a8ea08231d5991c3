"""Where a task of the sink spends processor time between Spark's socket and the staged file."""

from __future__ import annotations

import cProfile
import hashlib
import pstats
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from benchmarks.figures import Figure, median_of
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from spark_sink.sink import TARGET_SIZE_BYTES
from spark_sink.staging import Stager
from txnlog.cluster import Cluster

PARTITIONS = 4
ROWS = 10_000
KEYS = 100_000
# Phase -> functions, whose time includes what they call; none of a phase calls another of it.
PHASES = {
    "receiving Arrow batches": ("_received",),
    "columns checked, made into records, their sizes": (
        "check_columns", "rows_of_batch", "record_sizes",
    ),
    "topic, bounds, the order by partition": ("lanes", "_order_by_lane"),
    "murmur2 of the keys": ("partition_for_keys",),
    "take by partition": ("take",),
    "Parquet encoding": ("write_table",),
    "CRC-32 of the seal": ("<built-in method zlib.crc32>",),
    "the write": ("<built-in method posix.write>",),
}  # fmt: skip
# What they call has phases of its own.
WITHIN = {
    "topic, bounds, the order by partition": ("murmur2 of the keys",),
    "Parquet encoding": ("CRC-32 of the seal", "the write"),
}
REST = "slices, offsets, timestamps, the rest, and the profiler itself"


def measure(scale: Scale) -> list[Figure]:
    """ms of processor time for a million records, in one thread, by Python's profiler."""
    cluster = Cluster.open(new_folder(), create=True)
    cluster.create_topic("t", partitions=PARTITIONS)
    count = max(1, min(scale.records, 1_000_000) // ROWS)
    stream = _stream(count)
    found: dict[str, list[float]] = {}
    for number in range(scale.rounds + 1):
        spent_ms = _phases_ms(cluster, stream)
        if number:
            for phase, phase_ms in spent_ms.items():
                found.setdefault(phase, []).append(phase_ms * 1_000_000 / (count * ROWS))
    figures = [
        median_of(f"task of the sink, {phase}", values, "ms per million records")
        for phase, values in found.items()
    ]
    whole = [sum(values) for values in zip(*found.values(), strict=True)]
    return [*figures, median_of("task of the sink, in all", whole, "ms per million records")]


def _phases_ms(cluster: Cluster, stream: pa.Buffer) -> dict[str, float]:
    stager = Stager(cluster, topic="t", include_headers=False, target_size_bytes=TARGET_SIZE_BYTES)
    profile = cProfile.Profile(time.thread_time)
    here, spark = socket.socketpair()
    sender = threading.Thread(target=spark.sendall, args=(stream,))
    sender.start()
    with here, spark, here.makefile("rb") as source:
        profile.runcall(stager.write, _received(source))
        sender.join()
    stats: Any = pstats.Stats(profile)
    spent: dict[str, float] = {}
    for (_, _, name), (_, _, _, cumulative_s, _) in stats.stats.items():
        spent[name] = spent.get(name, 0.0) + cumulative_s * 1000
    phases = {phase: sum(spent[name] for name in names) for phase, names in PHASES.items()}
    for phase, others in WITHIN.items():
        phases[phase] -= sum(phases[other] for other in others)
    return {**phases, REST: stats.total_tt * 1000 - sum(phases.values())}


def _received(source: BinaryIO) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(source) as reader:
        yield from reader


def _stream(batches: int) -> pa.Buffer:
    """What Spark sends: keys, and values of 100 hex digits."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    with pa.ipc.new_stream(sink, schema) as writer:
        for begin in range(0, batches * ROWS, ROWS):
            numbers = range(begin, begin + ROWS)
            keys = [b"key-%d" % (number % KEYS) for number in numbers]
            digests = (hashlib.shake_128(b"%d" % number) for number in numbers)
            values = [digest.hexdigest(50).encode() for digest in digests]
            writer.write_batch(pa.record_batch([keys, values], schema=schema))
    return sink.getvalue()
