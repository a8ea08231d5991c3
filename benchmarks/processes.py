"""Processes that run methods on request, stay warm in between, and count processor time."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


class Caller:
    """Calls methods in a process. `spent_s` has the processor time of each call, by method and
    arguments: of the process with all below it (a JVM, its Python workers), and of `beside`.
    """

    def __init__(self, connection: Connection, beside: int | None) -> None:
        self._connection = connection
        self._beside = beside
        self.spent_s: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)

    def __call__(self, method: str, *values: Any) -> Any:
        before = processor_times_s(self._beside)
        self._connection.send((method, values))
        value, spent_s = _answer(self._connection)
        beside_s = _spent_s(before, processor_times_s(self._beside))
        self.spent_s[(method, *values)].append((spent_s, beside_s))
        return value


def processor_times_s(root: int | None) -> dict[int, float]:
    """User and system time of a process and of all below it, by pid; {} where /proc is not."""
    children: dict[int, list[int]] = defaultdict(list)
    times_s: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*") if root is not None else ():
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(path.name))
            times_s[int(path.name)] = (int(fields[11]) + int(fields[12])) / ticks
    found: dict[int, float] = {}
    waiting = [pid for pid in (root,) if pid in times_s]
    while waiting:
        pid = waiting.pop()
        found[pid] = times_s[pid]
        waiting += children[pid]
    return found


def _spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Without processes that have ended meanwhile: Spark ends idle workers, which did nothing."""
    return sum(time_s - before.get(pid, 0.0) for pid, time_s in after.items())


@contextmanager
def own_process(
    make: Callable[..., AbstractContextManager[Any]], *arguments: Any, beside: int | None = None
) -> Iterator[Caller]:
    """Enter `make(*arguments)` in a new process; yields a function that calls its methods.

    `beside` is the pid of a server that works for it. An exception there is raised here, as
    RuntimeError with its traceback.
    """
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(there, make, arguments))
    process.start()
    there.close()
    try:
        _answer(here)
        yield Caller(here, beside)
        here.send(None)
        process.join()
    finally:
        # After Ctrl-C or a failure its result is not needed.
        process.terminate()
        process.join()


def _answer(connection: Connection) -> Any:
    failure, value = connection.recv()
    if failure:
        raise RuntimeError(f"in another process:\n{failure}")
    return value


def _serve(
    connection: Connection,
    make: Callable[..., AbstractContextManager[Any]],
    arguments: tuple[Any, ...],
) -> None:
    try:
        with make(*arguments) as runs:
            connection.send(("", None))
            while (call := connection.recv()) is not None:
                method, values = call
                before = processor_times_s(os.getpid())
                value = getattr(runs, method)(*values)
                spent_s = _spent_s(before, processor_times_s(os.getpid()))
                connection.send(("", (value, spent_s)))
    except Exception:
        connection.send((traceback.format_exc(), None))
