"""Processes that run methods on request and stay warm in between."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def own_process(
    make: Callable[..., AbstractContextManager[Any]], *arguments: Any
) -> Iterator[Callable[..., Any]]:
    """Enter `make(*arguments)` in a new process; yields a function that calls its methods.

    An exception there is raised here, as RuntimeError with its traceback.
    """
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(there, make, arguments))
    process.start()
    there.close()

    def call(method: str, *values: Any) -> Any:
        here.send((method, values))
        return _answer(here)

    try:
        _answer(here)
        yield call
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
                connection.send(("", getattr(runs, method)(*values)))
    except Exception:
        connection.send((traceback.format_exc(), None))
