"""Producers and copiers that are killed, or suspended while a successor takes over; the check."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess

from tests.soak import clients
from tests.soak.clients import COPIES, FENCED, GROUP, PARTITIONS, RECORDS, SOURCES, Home
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.testing.invariants import check_cluster

SPAWN = multiprocessing.get_context("spawn")
PUBLICATIONS = ("deferred", "eager")
SLEEPS_EVERY = 5
DRAIN_S_MAX = 1_200


@dataclass(slots=True)
class Client:
    """A role under one transactional.id, and its current process."""

    name: str
    role: str
    publish: tuple[str, ...]
    process: SpawnProcess
    life: int = 0


class Bounce:
    """One cluster, its clients, and a checker that is never killed.

    `home_of_clients`: the same cluster, as the clients reach it, if another way than this process.
    """

    def __init__(
        self,
        home: Home,
        *,
        producers: int,
        copiers: int,
        seed: int,
        home_of_clients: Home | None = None,
    ) -> None:
        self.home = home
        self._home_of_clients = home_of_clients or home
        self.folder = home.folder
        self.chosen = random.Random(seed)
        self.kills = self.sleeps = 0
        self._sleepers: list[SpawnProcess] = []
        self._woken: list[SpawnProcess] = []
        self._copier_zombies: list[SpawnProcess] = []
        cluster = home.open(create=True)
        for topic in (*SOURCES, COPIES):
            cluster.create_topic(topic, partitions=PARTITIONS)
        self._checker = self._begin("check", "checker", 0, ())
        self.producers = [self._client("produce", f"producer{n}", n) for n in range(producers)]
        self.copiers = [self._client("copy", f"copier{n}", n) for n in range(copiers)]

    def run(
        self,
        duration_s: float,
        *,
        every_s: float = 1.0,
        disturb: Callable[[int], object] = lambda number: None,
    ) -> None:
        """Kill one after the other, or suspend it until the next one's turn.

        `disturb` is called before each, with its number.
        """
        for number in range(1, int(duration_s / every_s) + 1):
            time.sleep(every_s)
            disturb(number)
            sleeps = number % SLEEPS_EVERY < 2
            clients = self._await_owners() if sleeps else [*self.producers, *self.copiers]
            self._check_alive()
            self._wake()
            client = self.chosen.choice(clients)
            self._succeed(client, sleeps=sleeps and self._may_sleep(client))

    def finish(self) -> None:
        """Stop all clients; every order is copied then."""
        self._wake()
        for sleeper in self._woken:
            self._await_end(sleeper, FENCED)
        (self.folder / "stop").touch()
        for client in self.producers:
            self._await_end(client.process, 0)
        cluster = self.home.open()
        # A copier commits the offset after the last record, as Kafka's clients do, or its position,
        # which is behind aborted data at the end of a partition, too.
        ends = {p: found[-1][0] + 1 for p, found in enumerate(self._read()[SOURCES[0]]) if found}
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while not self._are_copied(cluster, ends):
            assert time.monotonic() < deadline_s, f"not all was copied up to {ends}"
            self._check_alive(copiers_only=True)
            time.sleep(0.2)
        (self.folder / "stop-copiers").touch()
        for client in self.copiers:
            self._await_end(client.process, 0)
        (self.folder / "stop-checker").touch()
        self._await_end(self._checker, 0)

    def _are_copied(self, cluster: Cluster, ends: dict[int, int]) -> bool:
        found = cluster.groups.fetch(GROUP, fence=True, patience_ms=60_000).get(SOURCES[0], {})
        return all(found.get(partition, 0) >= end for partition, end in ends.items())

    def close(self) -> None:
        """Kill the remaining processes of a failed test."""
        clients_left = [client.process for client in (*self.producers, *self.copiers)]
        for process in (*clients_left, *self._sleepers, *self._woken, self._checker):
            if process.is_alive():
                process.kill()
                process.join()

    # -- the verdict -------------------------------------------------------------------------------

    def verdict(self) -> str:
        """Check the topics; returns a line of figures."""
        assert not self._failures()
        read = self._read()
        checked = json.loads((self.folder / "checked.json").read_text())
        assert {
            t: [[tuple(r) for r in p] for p in parts] for t, parts in checked.items()
        } == read, "who read all the while has seen something else than who reads now"
        committed = self._check_transactions(read)
        for partition in range(PARTITIONS):
            orders = [value for _, value in read[SOURCES[0]][partition]]
            copies = [value for _, value in read[COPIES][partition]]
            assert copies == orders, f"partition {partition}: copies differ from what was copied"
        check_cluster(self.home.open(), settled=True)
        records = sum(len(p) for parts in read.values() for p in parts)
        return (
            f"{committed} transactions and {records} records read, after {self.kills} kills and "
            f"{self.sleeps} zombies, in {self.generations()} generations of the copiers"
        )

    def generations(self) -> int:
        """How often the copiers' group has shared out its partitions."""
        group = self.home.open().groups.describe(GROUP)
        return group.generation if group else 0

    def _check_transactions(self, read: dict[str, list[list[tuple[int, str]]]]) -> int:
        """Whole, once, in order; all that was acknowledged, and at most one more for each life."""
        parts: defaultdict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
        for topic in SOURCES:
            for partition, records in enumerate(read[topic]):
                newest: dict[tuple[str, str], tuple[int, int]] = {}
                for offset, value in records:
                    name, life, number, record, fate = value.split(".")
                    assert fate == "yes", f"{topic}-{partition}@{offset}: {value} was aborted"
                    at = (int(number), int(record))
                    before = newest.get((name, life), (-1, -1))
                    assert before < at, f"{topic}-{partition}@{offset}: {value} after {before}"
                    newest[name, life] = at
                    parts[name, life, int(number)][int(record)] += 1
        for transaction, found in parts.items():
            assert found == Counter(range(RECORDS)), f"{transaction} is torn: {found}"
        seen: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        for name, life, number in parts:
            seen[name, life].add(number)
        for client in self.producers:
            for life in range(client.life + 1):
                path = self.folder / f"done-{client.name}-{life}"
                done = {int(line) for line in path.read_text().split()} if path.exists() else set()
                shown = seen.pop((client.name, str(life)), set())
                assert done <= shown, f"{path.name}: {done - shown} acknowledged, but not there"
                more = shown - done
                assert len(more) <= 1, f"{path.name}: {more} were never acknowledged"
                assert not more or min(more) > max(done, default=-1)
        assert not seen, f"transactions without a producer: {seen}"
        return len(parts)

    def _read(self) -> dict[str, list[list[tuple[int, str]]]]:
        """All records that a new reader gets."""
        found: dict[str, list[list[tuple[int, str]]]] = {}
        with Consumer(self.home.settings) as reader:
            for topic in (*SOURCES, COPIES):
                found[topic] = [[] for _ in range(PARTITIONS)]
                reader.assign(
                    [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
                )
                while messages := reader.consume(10_000, 0.1):
                    for message in messages:
                        record = (message.offset() or 0, (message.value() or b"").decode())
                        found[topic][message.partition()].append(record)
        return found

    # -- processes ---------------------------------------------------------------------------------

    def _client(self, role: str, name: str, number: int) -> Client:
        publish = (PUBLICATIONS[number % 2],)
        return Client(name, role, publish, self._begin(role, name, 0, publish))

    def _begin(self, role: str, name: str, life: int, more: tuple[str, ...]) -> SpawnProcess:
        arguments = (getattr(clients, role), self._home_of_clients, name, life, *more)
        process = SPAWN.Process(target=clients.guarded, args=arguments, daemon=True)
        process.start()
        return process

    def _succeed(self, client: Client, *, sleeps: bool) -> None:
        """The next process: its predecessor is dead, or suspended and will be fenced (R44)."""
        process = client.process
        assert process.pid is not None
        if sleeps:
            os.kill(process.pid, signal.SIGSTOP)
            self._sleepers.append(process)
            if client.role == "copy":
                self._copier_zombies.append(process)
            self.sleeps += 1
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            self.kills += 1
        client.life += 1
        client.process = self._begin(client.role, client.name, client.life, client.publish)

    def _await_owners(self) -> list[Client]:
        """Who is past its init, however slow the machine is; one is.

        Who sleeps before it and wakes up after its successor's is no zombie: the newer one.
        """
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while True:
            clients = [*self.producers, *self.copiers]
            owners = [c for c in clients if (self.folder / f"owner-{c.name}-{c.life}").exists()]
            if owners:
                return owners
            assert time.monotonic() < deadline_s, "no client has finished its init"
            self._check_alive()
            time.sleep(0.05)

    def _may_sleep(self, client: Client) -> bool:
        """Whether the group has a partition for each member if this one becomes a zombie, too.

        Who wakes up joins the group again, and meets its fence with its next transaction; without
        a partition it has none. Many zombies would leave no generation the time to copy anything.
        """
        zombies = sum(zombie.is_alive() for zombie in self._copier_zombies)
        return client.role != "copy" or len(self.copiers) + zombies < PARTITIONS

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            os.kill(sleeper.pid or 0, signal.SIGCONT)
        self._woken += self._sleepers
        self._sleepers.clear()

    def _check_alive(self, *, copiers_only: bool = False) -> None:
        processes = {client.name: client.process for client in self.copiers}
        if not copiers_only:
            processes.update({client.name: client.process for client in self.producers})
        processes["checker"] = self._checker
        for name, process in processes.items():
            assert process.is_alive(), f"{name} ended with {process.exitcode}: {self._failures()}"

    def _await_end(self, process: SpawnProcess, exit_code: int) -> None:
        process.join(DRAIN_S_MAX)
        assert process.exitcode == exit_code, f"{process.exitcode}: {self._failures()}"

    def _failures(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("failed-*")))
