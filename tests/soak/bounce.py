"""Producers and copiers that are killed, or suspended while a successor takes over; the check."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess

from tests.soak import clients
from tests.soak.clients import (
    COPIES,
    COUNTED,
    FENCED,
    GROUP,
    PARTITIONS,
    RECORDS,
    SOURCES,
    Habit,
    Home,
)
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.testing.invariants import check_cluster

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.soak.clients"])
HABITS = (Habit("deferred"), Habit("eager"))
SLEEPS_EVERY = 5
DRAIN_S_MAX = 1_200
POLL_S = 0.05


@dataclass(slots=True)
class Client:
    """A role under one transactional.id, and its current process."""

    name: str
    role: str
    habit: Habit
    process: ForkServerProcess
    life: int = 0


class Bounce:
    """One cluster, its clients, and a checker that is never killed.

    `home_of_clients`: the same cluster, as the clients reach it, if another way than this process.
    `steps`: each life of a producer dies at the next of these fail points, if it comes to that;
    how often it may pass there before, at most.
    """

    def __init__(
        self,
        home: Home,
        *,
        producers: int,
        copiers: int,
        seed: int,
        home_of_clients: Home | None = None,
        habits: Sequence[Habit] = HABITS,
        steps: Mapping[str, int] = {},
    ) -> None:
        self.home = home
        self._home_of_clients = home_of_clients or home
        self.folder = home.folder
        self.chosen = random.Random(seed)
        self.kills = self.sleeps = 0
        self.died: Counter[str] = Counter()
        self._habits, self._steps, self._lives = habits, [*steps.items()], itertools.count()
        self._sleepers: list[ForkServerProcess] = []
        self._woken: list[ForkServerProcess] = []
        self._copier_zombies: list[ForkServerProcess] = []
        cluster = home.open(create=True)
        for topic in (*SOURCES, COPIES):
            cluster.create_topic(topic, partitions=PARTITIONS)
        self._checker = self._begin("check", "checker", 0)
        self.producers = [self._client("produce", f"producer{n}", n) for n in range(producers)]
        self.copiers = [self._client("copy", f"copier{n}", n) for n in range(copiers)]

    def run(
        self,
        duration_s: float,
        *,
        every_s: float = 1.0,
        disturb: Callable[[int], object] = lambda number: None,
    ) -> None:
        """Kill one after the other, or suspend it until the next one's turn; then go on until some
        have died at each of the steps.

        `disturb` is called before each, with its number.
        """
        for number in range(1, int(duration_s / every_s) + 1):
            self._pass(every_s)
            disturb(number)
            self._check_alive()
            self._wake()
            sleeps = number % SLEEPS_EVERY < 2
            clients = self._await_owners() if sleeps else [*self.producers, *self.copiers]
            client = self.chosen.choice(clients)
            self._succeed(client, sleeps=sleeps and self._may_sleep(client))
        self._wake()
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while missing := dict(self._steps).keys() - self.died.keys():
            assert time.monotonic() < deadline_s, f"no life comes to {missing}"
            self._pass(POLL_S)

    def _pass(self, time_s: float) -> None:
        """Wait; who dies meanwhile at its fail point has a successor at once."""
        until_s = time.monotonic() + time_s
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s) if self._steps else left_s)
            self._check_alive()

    def finish(self) -> None:
        """Stop all clients; every order is copied then."""
        self._wake()
        exit_codes = (FENCED, -signal.SIGKILL) if self._steps else (FENCED,)
        for sleeper in self._woken:
            self._await_end(sleeper, *exit_codes)
        (self.folder / "stop").touch()
        self._steps = []
        for client in self.producers:
            client.process.join(DRAIN_S_MAX)
            if client.process.exitcode:
                self._succeed_dead(client)
            self._await_end(client.process, 0)
        cluster = self.home.open()
        # A copier commits the offset after the last record, as Kafka's clients do, or its position,
        # which is behind aborted data at the end of a partition, too.
        ends = {p: found[-1][0] + 1 for p, found in enumerate(self._read()[SOURCES[0]]) if found}
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while self.copiers and not self._are_copied(cluster, ends):
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
        for partition in range(PARTITIONS) if self.copiers else ():
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
            if client.habit.group:
                positions = self.home.open().groups.fetch(client.habit.group)
                shown = sum(name == client.name for name, _, _ in parts)
                counted = positions.get(COUNTED, {}).get(0, 0)
                assert counted == shown, f"{client.name}: {counted} counted, {shown} there"
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
        habit = self._next_habit(role, self._habits[number % len(self._habits)])
        return Client(name, role, habit, self._begin(role, name, 0, habit))

    def _next_habit(self, role: str, habit: Habit) -> Habit:
        if role != "produce" or not self._steps:
            return replace(habit, failpoint="")
        step, times_max = self._steps[next(self._lives) % len(self._steps)]
        return replace(habit, failpoint=f"{step}@{self.chosen.randint(1, times_max)}")

    def _begin(self, role: str, name: str, life: int, *more: Habit) -> ForkServerProcess:
        arguments = (getattr(clients, role), self._home_of_clients, name, life, *more)
        process = FORKS.Process(target=clients.guarded, args=arguments, daemon=True)
        process.start()
        return process

    def _succeed(self, client: Client, *, sleeps: bool) -> None:
        """The next process: its predecessor is dead, or suspended and will be fenced (R44)."""
        process = client.process
        if sleeps:
            _send(process, signal.SIGSTOP)
            self._sleepers.append(process)
            if client.role == "copy":
                self._copier_zombies.append(process)
            self.sleeps += 1
        else:
            process.kill()
            process.join()
            self.kills += 1
        self._begin_next(client)

    def _succeed_dead(self, client: Client) -> None:
        """The next process of one that has died at its fail point."""
        exit_code = client.process.exitcode
        is_killed = bool(client.habit.failpoint) and exit_code == -signal.SIGKILL
        assert is_killed, f"{client.name} ended with {exit_code}: {self._failures()}"
        self.died[client.habit.failpoint.partition("@")[0]] += 1
        self._begin_next(client)

    def _begin_next(self, client: Client) -> None:
        client.life += 1
        client.habit = self._next_habit(client.role, client.habit)
        client.process = self._begin(client.role, client.name, client.life, client.habit)

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
            _send(sleeper, signal.SIGCONT)
        self._woken += self._sleepers
        self._sleepers.clear()

    def _check_alive(self, *, copiers_only: bool = False) -> None:
        for client in (*self.copiers, *(() if copiers_only else self.producers)):
            if not client.process.is_alive():
                self._succeed_dead(client)
        ended = f"the checker ended with {self._checker.exitcode}: {self._failures()}"
        assert self._checker.is_alive(), ended

    def _await_end(self, process: ForkServerProcess, *exit_codes: int) -> None:
        process.join(DRAIN_S_MAX)
        assert process.exitcode in exit_codes, f"{process.exitcode}: {self._failures()}"

    def _failures(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("failed-*")))


def _send(process: ForkServerProcess, number: int) -> None:
    """It may have died at its fail point."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
