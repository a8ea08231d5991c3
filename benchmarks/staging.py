"""Peak memory of one task of the sink that stages far more than fits into its limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, at_most
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from spark_sink.sink import TARGET_SIZE_BYTES
from spark_sink.staging import Stager
from txnlog.cluster import Cluster

STATUS = Path("/proc/self/status")
PARTITIONS = 4
ROWS = 10_000
VALUE_BYTES = 100
KEY_BYTES = 8


def measure(scale: Scale) -> list[Figure]:
    """Peak memory of this process, above what it had before the task."""
    if not STATUS.exists():
        print("left out: peak memory is read in /proc, which this system has not")
        return []
    root = new_folder()
    cluster = Cluster.open(root, create=True)
    cluster.create_topic("big", partitions=PARTITIONS)
    # So that the memory of the libraries is part of the start value.
    _stage(cluster, 1)
    before_bytes = _status_bytes("VmRSS")
    _stage(cluster, scale.staged_bytes // (ROWS * VALUE_BYTES))
    above_bytes = _status_bytes("VmHWM") - before_bytes
    return [
        at_most("peak memory of a task staging 2 GB", above_bytes / 1e6, "MB", 400, "its start")
    ]


def _stage(cluster: Cluster, batches: int) -> None:
    stager = Stager(
        cluster, topic="big", include_headers=False, target_size_bytes=TARGET_SIZE_BYTES
    )
    staged = stager.write(_random_batches(batches))
    assert sum(item.num_records for item in staged) == batches * ROWS


def _random_batches(count: int) -> Iterator[pa.RecordBatch]:
    """Incompressible bytes, so that encoded files are as large as their rows."""
    random = np.random.default_rng(1)
    for number in range(count):
        yield pa.RecordBatch.from_arrays(
            [_random_bytes(random, KEY_BYTES), _random_bytes(random, VALUE_BYTES)],
            names=["key", "value"],
        )
        if number % 100 == 99:
            print(f"\r{number + 1:,} of {count:,} batches", end="", flush=True)
    print("\r", end="")


def _random_bytes(random: np.random.Generator, width: int) -> pa.Array:
    offsets = pa.array(np.arange(0, (ROWS + 1) * width, width, dtype=np.int32))
    data = pa.py_buffer(random.bytes(ROWS * width))
    return pa.Array.from_buffers(pa.binary(), ROWS, [None, offsets.buffers()[1], data])


def _status_bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
