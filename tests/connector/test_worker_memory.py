"""Memory of Spark's Python workers: no leak, few objects are traversed, pages are used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_sink import sink
from spark_source import reading
from spark_source.planning import FileSlice, PartitionRange
from txnlog.cluster import Cluster
from txnlog.settings.config import parse_config

PROGRAM = """
import gc, sys, types, weakref
from txnlog.connector import worker_memory as spark_workers

class Thing:
    pass

def cycle():
    thing = Thing()
    thing.itself = thing
    return thing, weakref.ref(thing)

gc.disable()
thing, before = cycle()
del thing
spark_workers.collect_garbage()
assert before() is not None and gc.get_freeze_count() == 0, "not a worker of Spark"

sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
kept, later = cycle()
spark_workers.collect_garbage()
assert gc.get_freeze_count() > 1_000 and len(gc.get_objects()) < 100, "frozen"

del kept
thing, between = cycle()
del thing
spark_workers.collect_garbage()
assert between() is None and later() is not None, "garbage is collected, frozen objects are not"
for _ in range(spark_workers.UNFREEZE_EVERY):
    spark_workers.collect_garbage()
assert before() is None and later() is None, "after unfreezing they are"
assert gc.get_freeze_count() > 1_000
"""

FREED = """
import resource
import numpy as np
from txnlog.connector.worker_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(500):
        whole = np.ones(200_000)
        halves = [whole[:100_000] + 1, whole[100_000:] + 1]
        del whole, halves
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if faults() > 50_000:
    keep_freed_memory()
    faults()
    assert faults() < 5_000
"""


def test_only_what_is_new_is_looked_at_and_all_garbage_goes_in_time() -> None:
    project = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=project)


def test_freed_memory_is_used_again() -> None:
    """Where the C library gives it back to the system by default, as glibc does."""
    project = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", FREED], check=True, cwd=project)


def test_each_task_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that writes, and one that reads; in between nothing is collected."""
    calls: list[str] = []
    monkeypatch.setattr(sink, "collect_garbage", lambda: calls.append("write"))
    monkeypatch.setattr(reading, "collect_garbage", lambda: calls.append("read"))
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("t", partitions=1)
    options = parse_config({"path": str(tmp_path), "topic": "t"}, "writeStream")
    rows = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b"v"]})
    monkeypatch.setattr(sink, "task_context", lambda: SimpleNamespace(partitionId=lambda: 0))
    monkeypatch.setattr(sink, "message_bytes_max", lambda task: 0)
    (staged,) = sink.stage_rows(options, cluster.cluster_id, iter([rows, rows])).batches
    assert calls == ["write"]
    file = FileSlice(f"t/{staged.path}", 0, 1, staged.size_bytes, staged.num_records)
    found = PartitionRange("t", 0, 0, 2, (file,))
    read = reading.read_ranges(cluster.store, [found], include_headers=False)
    assert next(read).num_rows == 2
    assert calls == ["write"]
    assert next(read, None) is None
    assert calls == ["write", "read"]
