"""Sums hold in every snapshot of a root in which processes write, compact and are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.soak.moving import COPIED, GROUP, MOVED, PIPED, TABLES, amounts
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.coordinator.versions import topic_at
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.topics import TopicState
from txnlog.testing.counts import count

ROLES = tuple(
    (role, str(number))
    for role, count in (("move", 3), ("pipe", 2), ("keep", 1), ("rival", 1))
    for number in range(count)
)
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
        # Who takes snapshots comes first: else seven writers fill the disk meanwhile.
        command = ["nice", "-n", "3", sys.executable, "-m", "tests.soak.moving"]
        command += [role, str(self._root), name]
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


class Published:
    """How many rows transactions have published in a table, up to each version."""

    def __init__(self, url: str) -> None:
        self._log = Path(url.removeprefix("file://"), "_delta_log")
        self._rows: list[int] = []

    def rows(self, version: int | None = None) -> int:
        """None: the newest one."""
        while (version is None or len(self._rows) <= version) and self._read_next():
            pass
        return self._rows[-1 if version is None else version]

    def _read_next(self) -> bool:
        try:
            text = (self._log / f"{len(self._rows):020}.json").read_text()
        except FileNotFoundError:
            return False
        actions = [json.loads(line) for line in text.splitlines()]
        ours = [one for one in actions if "txnlogWriteId" in one.get("commitInfo", {})]
        new = sum(int(one["commitInfo"]["operationMetrics"]["numOutputRows"]) for one in ours)
        self._rows.append((self._rows or [0])[-1] + new)
        return True


class Root:
    """One root under test, read by this process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lake"
        self.cluster = Cluster.open(str(self.path), create=True, shards=4)
        for topic in (*MOVED, "in"):
            self.cluster.create_topic(topic, partitions=2)
        self.cluster.create_topic("out", partitions=1)
        urls = {name: str(folder / name) for name in (*TABLES, COPIED)}
        for url in urls.values():
            write_deltalake(url, amounts())
        for future in AdminClient({}, cluster=self.cluster).enlist_tables(urls).values():
            future.result()
        self._published = {name: Published(url) for name, url in urls.items()}

    def check(self, snapshot: Snapshot, views: Mapping[str, TopicState]) -> None:
        """As many records in both topics, and rows in both tables; as many in the output, and its
        table, as the group has read.
        """
        found = {
            topic: sum(
                batch.num_records or 0
                for batch in view.by_path.values()
                if not snapshot.topics[topic].hides(batch)
            )
            for topic, view in views.items()
        }
        assert set(snapshot.tables) == {*TABLES, COPIED}, snapshot.missing
        for table, one in snapshot.tables.items():
            found[table] = self._published[table].rows(one.version)
        position = sum(snapshot.offsets.get(GROUP, {}).get("in", {}).values())
        moved = {found[name] for name in (*MOVED, *TABLES)}
        assert len(moved) == 1, found
        assert found["left"] >= found["in"], found
        assert found["out"] == found[COPIED] == position, (found, position)

    def check_newest(self, snapshot: Snapshot) -> None:
        """By what the process has read for it."""
        logs = {topic: self.cluster.topic_log(topic) for topic in (*MOVED, *PIPED)}
        assert all(snapshot.topics[topic].version == log.log.version for topic, log in logs.items())
        self.check(snapshot, {topic: log.view for topic, log in logs.items()})

    def check_read(self, snapshot: Snapshot) -> None:
        """By its versions, and by the records: the sums of topics and of tables are 0."""
        cluster = self.cluster
        views = {t: topic_at(cluster, t, snapshot).view for t in snapshot.topics}
        self.check(snapshot, views)
        read = [cluster.read(topic, snapshot=snapshot, columns=["value"]) for topic in MOVED]
        assert sum(int(v) for table in read for v in table.column(0).to_pylist()) == 0
        read = [cluster.read(table, snapshot=snapshot) for table in (*TABLES, COPIED)]
        amounts = [[v for v in table.column(0).to_pylist() if v] for table in read]
        assert sum(map(sum, amounts[:2])) == 0
        assert len(amounts[0]) == self._published["debits"].rows(snapshot.tables["debits"].version)
        out = cluster.read("out", snapshot=snapshot, columns=["value"]).column(0).to_pylist()
        assert sorted(map(int, out)) == sorted(amounts[2])

    def heads_are_half(self) -> bool:
        """The control: the newest committed records of each topic and table, read together."""
        logs = self.cluster.topics(MOVED)
        found = {
            sum(
                batch.num_records or 0
                for batch in log.view.by_path.values()
                if batch.status in ("none", "committed")
            )
            for log in logs.values()
        }
        return len(found | {self._published[table].rows() for table in TABLES}) > 1


def stress(folder: Path, snapshots: int, *, kill_every: int) -> None:
    """So many snapshots, and more until the control has been half once."""
    root = Root(folder)
    halves = taken = 0
    begun = time.monotonic()
    kept: dict[str, Snapshot] = {}
    with processes(root.path) as running:
        while root.cluster.read("out", columns=["offset"]).num_rows == 0:
            running.check_alive()
            time.sleep(0.1)
        while taken < snapshots or (not halves and time.monotonic() - begun < SECONDS_MAX):
            halves += root.heads_are_half()
            snapshot = root.cluster.snapshot()
            root.check_newest(snapshot)
            if taken % (snapshots // READS) == 0:
                root.check_read(snapshot)
            taken += 1
            if taken % (snapshots // READS) == 1:
                kept[f"s{taken}"] = root.cluster.snapshot(f"s{taken}")
            if taken % kill_every == 0:
                running.kill_one()
        count("kills", "writer, pipeline or compaction beside snapshots", running.kills)
        print(f"{taken} snapshots, plain heads half in {halves}, {running.kills} kills")
    assert halves
    for name, snapshot in kept.items():
        assert root.cluster.find_snapshot(name) == snapshot
        root.check_read(snapshot)


def test_sums_hold_in_every_snapshot(tmp_path: Path) -> None:
    """Beside transactions, aborts, a pipeline, compaction and SIGKILLs; plain heads are half."""
    stress(tmp_path, 40, kill_every=10)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROOTS))
def test_sums_hold_in_very_many_snapshots(tmp_path: Path, number: int) -> None:
    """100,000 over all roots; each is large by then."""
    stress(tmp_path, SNAPSHOTS, kill_every=100)
