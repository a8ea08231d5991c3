"""Counts that processes add to by what they have read, with SIGKILLs, beside delta-rs."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.soak.change_kills import NAME, TOPIC, count_in
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.testing.invariants import check_cluster, read_committed

pytestmark = pytest.mark.soak

PROCESSES, KILLS, CONFLICTS = 2, 30, 10
SECONDS_MAX = 900
ZERO = pa.table({"id": pa.array([0], pa.int64())})


def test_count_has_what_the_topic_has_through_kills(tmp_path: Path) -> None:
    """One that counted twice, or not, or without its record, would show for ever (R77)."""
    root, url = str(tmp_path / "root"), str(tmp_path / "count")
    write_deltalake(url, ZERO)
    cluster = Cluster.open(root, create=True)
    cluster.create_topic(TOPIC, partitions=2)
    table_id = str(DeltaTable(url).metadata().id)
    cluster.enlist(NAME, EnlistedTable(url=url, table_id=table_id, since_ms=0))
    told = tmp_path / "told"

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.soak.change_kills", root, f"tx-{number}"]
        with told.open("ab") as file:
            return subprocess.Popen(command, stdout=file)

    choose = random.Random(7)
    running = [start(number) for number in range(PROCESSES)]
    others: list[Callable[[], object]] = [
        lambda: DeltaTable(url).optimize.compact(),
        lambda: write_deltalake(url, ZERO, mode="append"),
    ]

    def lines() -> list[str]:
        return told.read_text().splitlines()

    kills, until = 0, time.monotonic() + SECONDS_MAX
    while kills < KILLS or lines().count("conflict") < CONFLICTS:
        before = len(lines())
        while len(lines()) == before:
            assert time.monotonic() < until, f"{kills} kills, {lines()[-10:]}"
            time.sleep(0.05)
        time.sleep(choose.uniform(0, 1.2))
        number = choose.randrange(PROCESSES)
        running[number].kill()
        running[number].wait()
        kills += 1
        running[number] = start(number)
        with suppress(DeltaError):
            choose.choice(others)()
    for process in running:
        process.kill()
        process.wait()
    sweeper = Sweeper(cluster, interval_ms=1)
    for _ in range(3):
        sweeper.sweep()
        time.sleep(0.01)
    check_cluster(cluster, settled=True)
    batches = read_committed(cluster.topic(TOPIC).view).values()
    assert count_in(cluster)[0] == sum(map(len, batches)) >= lines().count("added") > 0
