"""Objects in a child of os.fork(): their threads and connections do not exist there, and a lock may
be held for ever. Each is notified: a client then refuses every call, a cache starts empty.

The child may make new clients, unless its parent has used an object store (D128).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from txnlog.errors import ForkedProcessError


class Forkable(Protocol):
    """An object with threads, locks or an open store."""

    def forked(self) -> None:
        """Called in the child process: the object's threads, locks and stores must not be used."""


ADVICE = (
    'Start processes with multiprocessing.get_context("spawn"); or, under a server that forks its '
    "workers, make the clients in each worker, and use none before the fork."
)
"""What a process does that was refused."""

_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(watched: Forkable) -> None:
    """Call `watched.forked()` in each child that is forked from now on."""
    _WATCHED.add(watched)


def refusal(kind: str) -> ForkedProcessError:
    """The error of every call to a forked client."""
    return ForkedProcessError(
        f"This {kind} was made before os.fork(): its threads and its store are not in this "
        "process. Make a new one in this process; with a root in an object store that needs a "
        f"parent that has used none. {ADVICE}"
    )


def _after_fork_in_child() -> None:
    for watched in list(_WATCHED):
        watched.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
