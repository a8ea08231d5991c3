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


_ADVICE = (
    'Start processes with multiprocessing.get_context("spawn"); or, under a server that forks its '
    "workers, make the clients in each worker, and use none before the fork."
)
_uses_store = False
_parent_used_store = False
_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(watched: Forkable) -> None:
    """Call `watched.forked()` in each child that is forked from now on."""
    _WATCHED.add(watched)


def refusal(kind: str) -> ForkedProcessError:
    """The error of every call to a forked client."""
    return ForkedProcessError(
        f"This {kind} was made before os.fork(): its threads and its store are not in this "
        "process. Make a new one in this process; with a root in an object store that needs a "
        f"parent that has used none. {_ADVICE}"
    )


def use_object_store() -> None:
    """Remember that this process uses one, whose library starts threads. Raises `check_parent`."""
    global _uses_store
    check_parent()
    _uses_store = True


def check_parent() -> None:
    """Raises ForkedProcessError in a child whose parent had used an object store."""
    if _parent_used_store:
        raise ForkedProcessError(
            "This process is a child of os.fork(), and its parent had used an object store, whose "
            f"library's threads are not here: calls would hang. {_ADVICE}"
        )


def _after_fork_in_child() -> None:
    global _parent_used_store
    _parent_used_store = _parent_used_store or _uses_store
    for watched in list(_WATCHED):
        watched.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
