"""Whose turn it is at a consumer that several threads call.

One lock guards the consumer's positions, its assignment, and its cluster, whose logs are for one
thread at a time. A call holds it for as long as it works, and never while it waits: so close() and
all other calls of other threads come between, whatever the time-out of a poll.

The application's callbacks run without it, as they may wait for a thread that commits. Meanwhile,
and while a consume() waits for more than it has taken, the consumer is `owned`: calls that return
records, or change what the consumer reads, wait until that is over.

Signal handlers may make calls in the middle of others of their own thread, hence an RLock, but no
call that returns records or changes what is read; and may raise: see txnlog.producing.sender.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from txnlog.errors import ClientStateError

T = TypeVar("T")

LOOK_S = 0.005
"""How often a call looks whether the owner is done."""


class Turn:
    """The lock of one consumer, and its owner: the thread that is in the midst of a call."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """In the child of a fork: no thread of the parent is here."""
        self.lock = threading.RLock()
        self.owner: int | None = None

    @property
    def is_working(self) -> bool:
        """Whether this thread holds the lock: only a signal handler makes a call then."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    @property
    def is_free(self) -> bool:
        """Whether no other thread is in the midst of a call."""
        return self.owner is None or self.owner == threading.get_ident()

    def refuse_handlers(self) -> None:
        """Raises ClientStateError in a signal handler that interrupts a step of a call."""
        if self.is_working:
            raise ClientStateError(
                "A signal handler has called this consumer while its thread was in the midst of "
                "another call. Set a flag in the handler, and read, seek, pause, subscribe and "
                "assign in the main program; close(), commit() and position() may be called in a "
                "handler."
            )

    def take(self, act: Callable[[], T]) -> T:
        """Do something while no other thread is in the midst of a call, and not in a handler."""
        self.refuse_handlers()
        while True:
            with self.lock:
                if self.is_free:
                    return act()
            time.sleep(LOOK_S)

    def outside(self, callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """The same callback, called without the lock; its thread owns the consumer meanwhile."""
        return None if callback is None else partial(self._call_outside, callback)

    def _call_outside(self, callback: Callable[..., Any], *args: Any) -> Any:
        if not self.is_working:
            return callback(*args)
        owner = self.owner
        interrupt: BaseException | None = None
        try:
            self.owner = threading.get_ident()
            self.lock.release()
            return callback(*args)
        finally:
            while True:
                try:
                    if self.lock._is_owned():  # type: ignore[attr-defined]
                        break
                    self.lock.acquire()
                except BaseException as error:
                    interrupt = error
            self.owner = owner
            if interrupt is not None:
                raise interrupt
