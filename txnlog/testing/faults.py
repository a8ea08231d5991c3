"""A store that fails on purpose: before a call, after it, or by the death of the caller.

Every storage call goes through one method, so every one of them can fail. Use it with
`ObjectStore.from_url("memory://")` semantics: several FaultyStores may share one memory store, as
processes share an object store.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from obstore.store import MemoryStore

from txnlog.clock import Clock
from txnlog.errors import StorageError
from txnlog.storage.objects import ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """What happens to one storage call."""

    NONE = "none"
    FAIL_BEFORE = "fail before"
    """The call never reaches the store."""
    LOSE_REPLY = "lose reply"
    """The call takes effect, its reply is lost."""
    CRASH_BEFORE = "crash before"
    """The process dies just before the call."""
    CRASH_AFTER = "crash after"
    """The process dies just after it."""


class SimulatedCrash(BaseException):
    """The process is dead: nothing may catch this but the test's scheduler."""


Plan = Callable[[str, str], Fault]
"""(verb, path) -> what happens to this call; verbs are get, put, head, list and delete."""


def no_faults(verb: str, path: str) -> Fault:
    """A plan in which nothing fails."""
    return Fault.NONE


class FaultyStore(ObjectStore):
    """An in-memory ObjectStore whose calls follow a plan.

    `backing` is shared by all the "processes" of a test; `calls` records (verb, path).
    """

    def __init__(
        self,
        backing: MemoryStore,
        *,
        plan: Plan = no_faults,
        clock: Clock | None = None,
        url: str = "memory://",
    ) -> None:
        super().__init__(backing, url, clock=clock)
        self.plan = plan
        self.calls: list[tuple[str, str]] = []
        self.dead = False

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise SimulatedCrash(f"{verb} {path} by a dead process")
        self.calls.append((verb, path))
        fault = self.plan(verb, path)
        if fault is Fault.CRASH_BEFORE:
            self.dead = True
            raise SimulatedCrash(f"before {verb} {path}")
        if fault is Fault.FAIL_BEFORE:
            raise StorageError(f"{path}: injected failure before {verb}", path=path)
        result: Any = super()._call(verb, path, call)
        if fault is Fault.CRASH_AFTER:
            self.dead = True
            raise SimulatedCrash(f"after {verb} {path}")
        if fault is Fault.LOSE_REPLY:
            raise StorageError(f"{path}: injected loss of the reply to {verb}", path=path)
        return result  # type: ignore[no-any-return]
