"""Sums hold in every snapshot of a root in which processes write, compact and are killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.soak.moving import GROUP, MOVED, PIPED
from txnlog.cluster import Cluster
from txnlog.coordinator.snapshots import topic_at
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.topics import TopicState
from txnlog.testing.counts import count

ROLES = (("move", "0"), ("move", "1"), ("move", "2"), ("pipe", "0"), ("pipe", "1"), ("keep", "0"))
READS = 5
SNAPSHOTS, ROOTS = 5_000, 20
SECONDS_MAX = 120


class Processes:
    """They begin again when they are killed, with the same ids."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = (root.parent / "processes.log").open("ab")
        self._running = [self._start(*role) for role in ROLES]
        self.kills = 0

    def _start(self, role: str, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.soak.moving", role, str(self._root), name]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill_one(self) -> None:
        at = random.randrange(len(ROLES))
        self._running[at].kill()
        self._running[at].wait()
        self._running[at] = self._start(*ROLES[at])
        self.kills += 1

    def check_alive(self) -> None:
        assert all(one.poll() is None for one in self._running)

    def end(self) -> None:
        for one in self._running:
            one.kill()
            one.wait()
        self._log.close()


@contextmanager
def processes(root: Path) -> Iterator[Processes]:
    running = Processes(root)
    try:
        yield running
    finally:
        running.end()


def check(cluster: Cluster, snapshot: Snapshot, views: Mapping[str, TopicState]) -> None:
    """As many records in both topics, and as many in the output as the group has read."""
    found = {
        topic: sum(
            batch.num_records or 0
            for batch in view.by_path.values()
            if not snapshot.topics[topic].hides(batch)
        )
        for topic, view in views.items()
    }
    position = sum(snapshot.offsets.get(GROUP, {}).get("in", {}).values())
    assert found["left"] == found["right"] >= found["in"], found
    assert found["out"] == position, (found, position)


def check_newest(cluster: Cluster, snapshot: Snapshot) -> None:
    """By what the process has read for it."""
    logs = {topic: cluster.topic_log(topic) for topic in (*MOVED, *PIPED)}
    assert all(snapshot.topics[topic].version == log.log.version for topic, log in logs.items())
    check(cluster, snapshot, {topic: log.view for topic, log in logs.items()})


def check_read(cluster: Cluster, snapshot: Snapshot) -> None:
    """By its versions, and by the records: the sum of both topics is 0."""
    check(cluster, snapshot, {t: topic_at(cluster, t, snapshot).view for t in snapshot.topics})
    values = [cluster.read(topic, snapshot=snapshot, columns=["value"]) for topic in MOVED]
    assert sum(int(v) for table in values for v in table.column(0).to_pylist()) == 0


def heads_are_half(cluster: Cluster) -> bool:
    """The control: the newest committed records of each topic, tailed together."""
    logs = cluster.topics(MOVED)
    found = [
        sum(
            batch.num_records or 0
            for batch in log.view.by_path.values()
            if batch.status in ("none", "committed")
        )
        for log in logs.values()
    ]
    return found[0] != found[1]


def stress(folder: Path, snapshots: int, *, kill_every: int) -> None:
    """So many snapshots, and more until the control has been half once."""
    root = folder / "lake"
    cluster = Cluster.open(str(root), create=True, shards=4)
    for topic in (*MOVED, "in"):
        cluster.create_topic(topic, partitions=2)
    cluster.create_topic("out", partitions=1)
    halves = taken = 0
    begun = time.monotonic()
    kept: dict[str, Snapshot] = {}
    with processes(root) as running:
        while cluster.read("out", columns=["offset"]).num_rows == 0:
            running.check_alive()
            time.sleep(0.1)
        while taken < snapshots or (not halves and time.monotonic() - begun < SECONDS_MAX):
            halves += heads_are_half(cluster)
            snapshot = cluster.snapshot()
            check_newest(cluster, snapshot)
            if taken % (snapshots // READS) == 0:
                check_read(cluster, snapshot)
            taken += 1
            if taken % (snapshots // READS) == 1:
                kept[f"s{taken}"] = cluster.snapshot(f"s{taken}")
            if taken % kill_every == 0:
                running.kill_one()
        count("kills", "writer, pipeline or compaction beside snapshots", running.kills)
        print(f"{taken} snapshots, plain heads half in {halves}, {running.kills} kills")
    assert halves
    for name, snapshot in kept.items():
        assert cluster.find_snapshot(name) == snapshot
        check_read(cluster, snapshot)


def test_sums_hold_in_every_snapshot(tmp_path: Path) -> None:
    """Beside transactions, aborts, a pipeline, compaction and SIGKILLs; plain heads are half."""
    stress(tmp_path, 40, kill_every=10)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROOTS))
def test_sums_hold_in_very_many_snapshots(tmp_path: Path, number: int) -> None:
    """100,000 over all roots; each is large by then."""
    stress(tmp_path, SNAPSHOTS, kill_every=100)
