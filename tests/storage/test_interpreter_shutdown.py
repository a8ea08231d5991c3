"""Commits while the interpreter shuts down: no thread can be started any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txnlog.cluster import Cluster

# Python stops its thread pools before it calls atexit's functions.
PROGRAM = """
import atexit, sys
from txnlog.cluster import Cluster
from txnlog.producer import Producer
from txnlog.storage.delta.delta_log import LogSettings

root = sys.argv[1]
cluster = Cluster.open(root, create=True, shards=1, settings=LogSettings(checkpoint_interval=1))
cluster.create_topic("orders", exist_ok=True)
producer = Producer(
    {"txnlog.root": root, "transactional.id": "tx"}, cluster=cluster, background=False
)
producer.init_transactions()
if sys.argv[2] == "warm":
    with producer.transaction():
        producer.produce("orders", "early")

def late():
    with producer.transaction():
        producer.produce("orders", "late")
    print("committed")

atexit.register(late)
"""


@pytest.mark.parametrize("pool", ["warm", "cold"])
def test_commit_at_exit_lands_and_returns(tmp_path: Path, pool: str) -> None:
    """It had landed, and raised "cannot schedule new futures after interpreter shutdown": the
    caller took it for a failure (R63).
    """
    root = str(tmp_path / "root")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, root, pool],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "committed\n"), done.stderr
    assert "RuntimeError" not in done.stderr
    log = Cluster.open(root).topic("orders")
    assert sum(log.view.high_watermark(p) for p in range(log.partitions)) == 1 + (pool == "warm")


READ = """
import atexit
from obstore.store import MemoryStore
from txnlog.storage.store.objects import ObjectStore

store = ObjectStore(MemoryStore(), "memory://")
store._at_once = 8
paths = [f"a/{number}" for number in range(20)]
for path in paths:
    store.put(path, path.encode())
atexit.register(lambda: print([item.decode() for item in store.get_many(paths)] == paths))
"""


def test_many_objects_are_read_at_exit() -> None:
    """A commit at exit may have to read what others have written meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", READ], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


BACKGROUND = """
import sys
from tests.storage.number_log import created
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store.objects import ObjectStore

settings = LogSettings(checkpoint_interval=5, checkpoint_mode="background")
created(ObjectStore.from_url(sys.argv[1]), 5, settings)
"""


def test_exit_waits_for_a_checkpoint_in_the_background(tmp_path: Path) -> None:
    """A short job would never write one. What a library imports then must be importable."""
    root = tmp_path / "root"
    done = subprocess.run(
        [sys.executable, "-c", BACKGROUND, str(root)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(root.glob("*/_delta_log/*5.checkpoint.parquet"))
