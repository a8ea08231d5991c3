"""Clients in a child of os.fork(): their threads and stores are not there, and their locks may be
held for ever. They are told, and refuse every call."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from txnlog.errors import ForkedProcessError


class Client(Protocol):
    """What has threads, locks or an open store."""

    def forked(self) -> None:
        """This is a child process now: no thread, no lock and no store of yours is of any use."""


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


def watch(client: Client) -> None:
    """Tell the client, in the child, of every fork from now on."""
    _CLIENTS.add(client)


def refusal(kind: str) -> ForkedProcessError:
    """What a forked client answers."""
    return ForkedProcessError(
        f"This {kind} was made before os.fork(): its threads and its store are not in this "
        'process. Start processes with multiprocessing.get_context("spawn"), and make a '
        f"{kind} in each."
    )


def _after_fork_in_child() -> None:
    for client in list(_CLIENTS):
        client.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
