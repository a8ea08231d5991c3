"""Real processes on a local disk: members are killed, and others take over their partitions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from tests.consumer.copy_process import copy
from tests.consumer.records import staged
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.one_off import commit_one_off
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Owner
from txnlog.testing.counts import count
from txnlog.testing.invariants import check_cluster

PARTITIONS = 8
DEADLINE_S = 600


class Group:
    """Four copying processes, and the records they have copied."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "cluster")
        self.stop_file = folder / "stop"
        self.cluster = Cluster.open(self.root, create=True)
        self.cluster.create_topic("t", partitions=PARTITIONS)
        self.cluster.create_topic("out", partitions=1)
        self.produced = 0
        self.copies: list[tuple[int, int]] = []
        self.reader = Consumer({"txnlog.root": self.root, "auto.offset.reset": "earliest"})
        self.reader.assign([TopicPartition("out", 0)])
        self._context = multiprocessing.get_context("spawn")
        self.processes: dict[str, SpawnProcess] = {}

    def start(self, name: str) -> None:
        arguments = (self.root, name, str(self.stop_file))
        process = self._context.Process(target=copy, args=arguments, daemon=True)
        process.start()
        self.processes[name] = process

    def produce(self, count: int) -> None:
        """Write `count` records into every partition."""
        for partition in range(PARTITIONS):
            values = [b"%d" % (self.produced + number) for number in range(count)]
            self.produced += count
            batch = staged(self.cluster, values, partition=partition)
            commit_one_off(self.cluster, [batch], Owner(run_id="test"))

    def await_copies(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.copies) < self.produced:
            assert time.monotonic() < deadline, f"{len(self.copies)} of {self.produced} copied"
            for message in self.reader.consume(timeout=0.2):
                number, pid = (message.value() or b"").split()
                self.copies.append((int(number), int(pid)))

    def owners(self) -> dict[str, int]:
        """Member's client id -> its number of partitions."""
        group = self.cluster.groups.describe("g")
        if group is None:
            return {}
        return {
            group.members[member_id].client_id: sum(map(len, topics.values()))
            for member_id, topics in group.assignment.items()
            if member_id in group.members
        }

    def await_loads(self, expected: list[int]) -> None:
        """Wait until the members have these numbers of partitions."""
        deadline = time.monotonic() + DEADLINE_S
        while sorted(self.owners().values()) != expected:
            assert time.monotonic() < deadline, f"{self.owners()} is not {expected}"
            time.sleep(0.05)

    def kill(self, name: str) -> int:
        process = self.processes.pop(name)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        count("kills", "member of a group")
        return process.pid

    def stop(self) -> None:
        self.stop_file.touch()
        for process in self.processes.values():
            process.join(DEADLINE_S)
            assert process.exitcode == 0


@pytest.mark.slow
def test_killed_members_partitions_are_taken_over_and_every_record_is_copied_once(
    tmp_path: Path,
) -> None:
    """SIGKILL in the middle of transactions, twice, and a new member (R48, R50)."""
    group = Group(tmp_path)
    for number in range(4):
        group.start(f"w{number}")
    group.await_loads([2, 2, 2, 2])
    group.produce(50)
    group.await_copies()
    while len({pid for _, pid in group.copies}) < 4:
        group.produce(1)
        group.await_copies()
    group.produce(100)
    dead = [group.kill("w0")]
    group.await_loads([2, 3, 3])
    group.await_copies()
    group.start("w4")
    group.await_loads([2, 2, 2, 2])
    group.produce(100)
    dead.append(group.kill("w2"))
    group.await_copies()
    before = len(group.copies)
    group.produce(10)
    group.await_copies()
    assert not {pid for _, pid in group.copies[before:]} & set(dead)
    group.stop()
    assert group.reader.consume(timeout=0.5) == []
    assert Counter(number for number, _ in group.copies) == Counter(range(group.produced))
    assert group.owners() == {}
    check_cluster(group.cluster)
