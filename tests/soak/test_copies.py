"""Copies of a root in which processes write, compact and are killed; the copying is killed, too."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.soak.moving import GROUP, MOVED
from tests.soak.test_snapshots import Root, processes
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.testing.counts import count
from txnlog.verifying.report import VerifySettings

COPIES = 20


def begin(root: Path, copy: Path) -> subprocess.Popen[bytes]:
    """A process that copies."""
    command = [sys.executable, "-m", "txnlog.cli.main", "backup", str(root), str(copy)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def check(copy: Path) -> int:
    """Verified deeply; the sum of both topics is 0, and the output is what the group has read."""
    found = AdminClient({"txnlog.root": str(copy)}).verify(VerifySettings(deep=True)).result()
    assert not list(found.findings), list(found.findings)
    assert not found.errors
    cluster = Cluster.open(str(copy))
    tables = {topic: cluster.read(topic, columns=["value"]) for topic in (*MOVED, "in", "out")}
    rows = {topic: table.num_rows for topic, table in tables.items()}
    assert rows["left"] == rows["right"] >= rows["in"]
    assert sum(int(v) for t in MOVED for v in tables[t].column(0).to_pylist()) == 0
    committed = cluster.groups.fetch(GROUP).get("in", {})
    assert rows["out"] == sum(committed.values())
    return rows["left"]


def stress(folder: Path, copies: int) -> None:
    """So many copies to one place, of which every second one is killed before."""
    made = Root(folder)
    root, copy = made.path, folder / "copy"
    kills, rows, former = 0, 0, 0
    with processes(root) as running:
        while made.cluster.read("out", columns=["offset"]).num_rows == 0:
            running.check_alive()
            time.sleep(0.1)
        for number in range(copies):
            killed = begin(root, copy)
            time.sleep(random.uniform(0.4, 1.2))
            kills += killed.poll() is None
            killed.kill()
            killed.wait()
            running.kill_one()
            if former:
                # Whatever has become of the second copy, one of the two is there.
                restored = folder / f"restored-{number}"
                AdminClient({"txnlog.root": str(copy)}).backup(str(restored)).result()
                assert check(restored) >= former
            assert begin(root, copy).wait() == 0
            former, rows = rows, check(copy)
            assert rows > former
        count("kills", "copying a root beside writers", kills)


@pytest.mark.soak
def test_copies_of_a_root_under_load_are_whole(tmp_path: Path) -> None:
    """Beside transactions, aborts, a pipeline, compaction and SIGKILLs of all of them (R75)."""
    stress(tmp_path, COPIES)
