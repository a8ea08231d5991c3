"""Processes of one in-memory cluster that stop, die and continue where a trace says.

A process is a thread with its own store handle and memory; one runs at a time, so a trace
has one outcome. A process can stop at the write of a commit: every decision is one.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import FaultyStore, SharedMemory, SimulatedCrash

WAIT_S = 600
PLAIN = LogSettings(checkpoint_mode="off")


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a process stops or dies: `how` is stop or die, `when` is before or after.

    `write` is an operation, with a table if that matters: PREPARE_COMMIT, WRITE TXN MARKERS:orders.
    """

    how: str
    when: str
    write: str

    def is_at(self, when: str, operation: str, table: str) -> bool:
        return when == self.when and self.write in (operation, f"{operation}:{table}")


class GatedStore(FaultyStore):
    """The store of a process; reports each commit and stops at the given one."""

    def __init__(self, shared: SharedMemory, process: Process) -> None:
        super().__init__(shared.backing, clock=shared.clock, shared=shared)
        self._process = process

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As ObjectStore's, with a stop point before and after every commit."""
        table, is_commit, version = path.partition("/_delta_log/")
        if not is_commit:
            return super().put_if_absent(path, data)
        operation = _operation(data)
        what = f"{operation} to {table}"
        self._process.pass_gate("before", operation, table, what)
        landed = super().put_if_absent(path, data)
        number = int(version.removesuffix(".json"))
        self._process.record(
            f"writes {what}, version {number}"
            if landed
            else f"finds another's version {number} where {what} was to be"
        )
        self._process.pass_gate("after", operation, table, what)
        return landed


class Process:
    """One process: its cluster, the state row it last read, and its current act."""

    def __init__(self, name: str, shared: SharedMemory) -> None:
        self.name = name
        self.store = GatedStore(shared, self)
        self.cluster = _open(self.store)
        self.row: TransactionMetadata | None = None
        self.sequences: dict[str, int] = {}
        self._stop: Stop | None = None
        self._is_stopped = False
        self._recorded: list[str] = []
        self._events: queue.Queue[str] = queue.Queue()
        self._gate = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def run(self, act: Callable[[], str], stop: Stop | None) -> list[str]:
        """Start an act; returns its writes, and how it ended or where it stopped."""
        assert not self._is_stopped, f"{self.name} has a stopped act: continue it first"
        self._stop = stop
        self._thread = threading.Thread(target=self._run_act, args=(act,), daemon=True)
        self._thread.start()
        return self._await_event()

    def resume(self, stop: Stop | None) -> list[str]:
        """Continue a stopped act."""
        assert self._is_stopped, f"{self.name} is not stopped"
        self._stop = stop
        self._is_stopped = False
        self._gate.release()
        return self._await_event()

    def end(self) -> None:
        """End a stopped thread, at the end of a trace."""
        if self._is_stopped:
            self.store.dead = True
            self.resume(None)

    def record(self, line: str) -> None:
        if threading.current_thread() is self._thread:
            self._recorded.append(f"{self.name} {line}")

    def pass_gate(self, when: str, operation: str, table: str, what: str) -> None:
        stop = self._stop
        if threading.current_thread() is not self._thread:
            return
        if stop is None or not stop.is_at(when, operation, table):
            return
        where = f" before it writes {what}" if when == "before" else ""
        if stop.how == "die":
            self.store.dead = True
            raise SimulatedCrash(f"dies{where}")
        self._is_stopped = True
        self._events.put(f"stops{where}")
        assert self._gate.acquire(timeout=WAIT_S)
        if self.store.dead:
            raise SimulatedCrash("ends")

    def _run_act(self, act: Callable[[], str]) -> None:
        try:
            ended = act()
        except SimulatedCrash as crash:
            ended = str(crash)
        except TxnLogError as error:
            ended = f"gets {type(error).__name__}: {error.message}"
        except BaseException as error:
            ended = f"fails with {error!r}"
        self._events.put(ended)

    def _await_event(self) -> list[str]:
        event = self._events.get(timeout=WAIT_S)
        recorded, self._recorded = self._recorded, []
        if self._stop is not None and not self._is_stopped and not self.store.dead:
            raise AssertionError(f"{self.name} {event}, and never came to {self._stop}")
        return [*recorded, self._normalised(event)]

    def _normalised(self, event: str) -> str:
        """Replace the parts that differ between runs and machines."""
        own = f"process {os.getpid()} on {socket.gethostname()}"
        return f"{self.name} {event.replace(own, self.name)}"


class World:
    """The shared store, the processes by name, and a plain reader."""

    def __init__(self) -> None:
        self.shared = SharedMemory()
        _open(self.shared.open())
        self.processes: dict[str, Process] = {}

    def process(self, name: str) -> Process:
        """The process of that name; a new one if there is none, or it is dead."""
        found = self.processes.get(name)
        if found is None or found.store.dead:
            found = self.processes[name] = Process(name, self.shared)
        return found

    def reader(self) -> Cluster:
        """A process that has read nothing yet."""
        return _open(self.shared.open())

    def end(self) -> None:
        for process in self.processes.values():
            process.end()


def _open(store: ObjectStore) -> Cluster:
    cluster = Cluster.open(store, create=True, shards=1, offsets_shards=1, settings=PLAIN)
    # The traces begin with a cluster that has been in use.
    cluster.shard(0)
    cluster.offsets_log("any")
    return cluster


def _operation(data: bytes) -> str:
    found: Mapping[str, Any] = msgspec.json.decode(data.split(b"\n", 1)[0])
    return str(found["commitInfo"]["operation"])
