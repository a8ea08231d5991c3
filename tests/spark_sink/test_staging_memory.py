"""Staging in bounded memory: measured from outside, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_MEMORY_SCRIPT = """
import sys, threading, time
import pyarrow as pa
from spark_sink.staging import Stager
from txnlog.cluster import Cluster

def rss_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

cluster = Cluster.open(sys.argv[1], create=True)
cluster.create_topic("t", partitions=int(sys.argv[2]))
rows = 10_000
part = pa.RecordBatch.from_pydict({
    "key": [b"%09d" % (i * 7919 % 99_991) for i in range(rows)],
    "value": [(b"%07d" % i) * 13 for i in range(rows)],
})
stager = Stager(cluster, topic="t", include_headers=False, target_size_bytes=64 << 20)
start, peak, done = rss_mb(), [0.0], threading.Event()

def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], rss_mb())

watcher = threading.Thread(target=watch)
watcher.start()
staged = stager.write(part for _ in range(int(sys.argv[3])))
done.set()
watcher.join()
assert sum(item.num_records for item in staged) == rows * int(sys.argv[3])
print(round(peak[0] - start))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("partitions", [4, pytest.param(2_000, marks=pytest.mark.soak)])
def test_memory_stays_bounded_whatever_is_staged(tmp_path: Path, partitions: int) -> None:
    """1 GB through one task: an executor's memory is shared by all its tasks."""
    # At least 1 GB: with less, a task that keeps all rows would pass, too.
    script = [sys.executable, "-c", _MEMORY_SCRIPT, str(tmp_path), str(partitions), "1000"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 300
