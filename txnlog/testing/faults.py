"""A store with injected faults: before a call, after it, or by a crash of the caller.

Every storage call goes through one method, so each can fail. Several FaultyStores over one
SharedMemory stand for processes over one object store.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

from obstore.store import MemoryStore

from txnlog.errors import StorageError, StorePermissionError
from txnlog.process.clock import Clock, VirtualClock
from txnlog.storage.store.objects import ObjectMeta, ObjectStore
from txnlog.testing.counts import count

__all__ = [
    "Fault",
    "FaultsAt",
    "FaultyStore",
    "PausedClock",
    "Plan",
    "SharedMemory",
    "SimulatedCrash",
    "SkewedClock",
    "no_faults",
]

T = TypeVar("T")


class Fault(Enum):
    """What happens to one storage call."""

    NONE = "none"
    FAIL_BEFORE = "fail before"
    """The call never reaches the store."""
    LOSE_REPLY = "lose reply"
    """The call takes effect, and its reply is lost."""
    CRASH_BEFORE = "crash before"
    """The process dies just before the call."""
    CRASH_AFTER = "crash after"
    """The process dies just after the call."""
    SAY_EXISTS = "say exists"
    """A put-if-absent is refused as 'already exists', though nothing landed (S3's 409)."""
    LAND_LATE = "land late"
    """A put fails now, and lands when `SharedMemory.land_late` is called."""
    DENY = "deny"
    """The store refuses the call: permission denied."""


class SimulatedCrash(BaseException):
    """The process is dead: only the test's scheduler may catch this."""


class _SaidExistsError(StorageError):
    """A conditional put was refused as 'already exists'."""


Plan = Callable[[str, str], Fault]
"""(verb, path) -> what happens to this call; verbs are get, put, head, list and delete."""


def no_faults(verb: str, path: str) -> Fault:
    """A plan in which nothing fails."""
    return Fault.NONE


class FaultsAt:
    """A plan by number: the n-th storage call from now on (0, 1, ...) meets `faults[n]`.

    `interlude`, if given, runs before call number `interlude_at`: it stands for what another
    process does while this one is paused.
    """

    def __init__(
        self,
        faults: Mapping[int, Fault],
        *,
        interlude: Callable[[], None] | None = None,
        interlude_at: int = 0,
    ) -> None:
        self._faults = faults
        self._interlude = interlude
        self._interlude_at = interlude_at
        self.calls = 0

    def __call__(self, verb: str, path: str) -> Fault:
        number = self.calls
        self.calls += 1
        if self._interlude is not None and number == self._interlude_at:
            self._interlude()
        return self._faults.get(number, Fault.NONE)


class SkewedClock:
    """Another machine's clock: time passes as on `base`, the wall clock is wrong by skew_ms."""

    def __init__(self, base: Clock, skew_ms: int) -> None:
        self._base = base
        self.skew_ms = skew_ms

    @property
    def boot_id(self) -> str:
        return self._base.boot_id

    def now_ms(self) -> int:
        return self._base.now_ms() + self.skew_ms

    def boot_ms(self) -> int:
        return self._base.boot_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._base.sleep_ms(duration_ms)


class PausedClock:
    """The clocks of a virtual machine that its hypervisor pauses: meanwhile none of them moves.

    Time passes as on `base`, without what `miss_ms` leaves out.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._missed_ms = 0

    def miss_ms(self, duration_ms: int) -> None:
        """Count `duration_ms` of the time that passed on `base` as a pause."""
        self._missed_ms += duration_ms

    @property
    def boot_id(self) -> str:
        return self._base.boot_id

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that passes inside the block is missed."""
        begun_ms = self._base.boot_ms()
        yield
        self.miss_ms(self._base.boot_ms() - begun_ms)

    def now_ms(self) -> int:
        return self._base.now_ms() - self._missed_ms

    def boot_ms(self) -> int:
        return self._base.boot_ms() - self._missed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self._base.sleep_ms(duration_ms)


class SharedMemory:
    """Shared by the processes of a test: objects, the store's own clock, and delayed puts."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.backing = MemoryStore()
        self.places: dict[str, MemoryStore] = {}
        """URL -> what is there: Delta tables outside of the root."""
        self.modified_ms: dict[str, int] = {}
        self._late: list[tuple[str, Callable[[], object]]] = []

    def open(
        self, *, plan: Plan = no_faults, clock: Clock | None = None, seed: int | None = None
    ) -> FaultyStore:
        """The store of one process; `seed` as in FaultyStore."""
        clock = clock or self.clock
        return FaultyStore(self.backing, plan=plan, clock=clock, shared=self, seed=seed)

    def delay(self, path: str, put: Callable[[], object]) -> None:
        """Keep a put for `land_late`."""
        self._late.append((path, put))

    def land_late(self) -> builtins.list[str]:
        """Apply every delayed put; returns the paths that took effect."""
        landed = []
        late, self._late = self._late, []
        for path, put in late:
            try:
                put()
            except Exception:
                # No process waits for this reply any more.
                continue
            self.modified_ms[path] = self.clock.now_ms()
            landed.append(path)
        return landed


class FaultyStore(ObjectStore):
    """An in-memory ObjectStore whose calls follow a plan.

    `backing` is shared by all the "processes" of a test; `calls` records (verb, path). Calls made
    together are made in turn, in their order or, with a `seed`, in a shuffled one.
    """

    def __init__(
        self,
        backing: MemoryStore,
        *,
        plan: Plan = no_faults,
        clock: Clock | None = None,
        url: str = "memory://",
        shared: SharedMemory | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(backing, url, clock=clock)
        self.plan = plan
        self._random = None if seed is None else random.Random(seed)
        self.calls: builtins.list[tuple[str, str]] = []
        self.dead = False
        self._shared = shared
        self._conditional = False

    def at(self, url: str) -> ObjectStore:
        """Another place of the shared memory, whose calls are counted and fail as this one's."""
        assert self._shared is not None
        return _Elsewhere(self, self._shared.places.setdefault(url, MemoryStore()), url)

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """As ObjectStore's, one call after the other, in an order that depends on the seed only."""
        order = builtins.list(range(len(calls)))
        if self._random is not None:
            self._random.shuffle(order)
        made = super().together([calls[number] for number in order])
        results = dict(zip(order, made, strict=True))
        return [results[number] for number in range(len(calls))]

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As ObjectStore's, with injected false refusals."""
        with self.conditional():
            try:
                return super().put_if_absent(path, data)
            except _SaidExistsError:
                return False

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Calls inside the block are conditional puts, which may be refused falsely."""
        self._conditional = True
        try:
            yield
        finally:
            self._conditional = False

    def head(self, path: str) -> ObjectMeta:
        """As ObjectStore's, with times by the shared clock."""
        return self._by_shared_clock(super().head(path))

    def list(self, prefix: str, *, start_after: str | None = None) -> builtins.list[ObjectMeta]:
        """As ObjectStore's, with times by the shared clock."""
        found = super().list(prefix, start_after=start_after)
        return [self._by_shared_clock(meta) for meta in found]

    def list_files(self, prefix: str) -> builtins.list[ObjectMeta]:
        """As ObjectStore's, with times by the shared clock."""
        return [self._by_shared_clock(meta) for meta in super().list_files(prefix)]

    def _by_shared_clock(self, meta: ObjectMeta) -> ObjectMeta:
        known = None if self._shared is None else self._shared.modified_ms.get(meta.path)
        return meta if known is None else meta._replace(last_modified_ms=known)

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise SimulatedCrash(f"{verb} {path} by a dead process")
        self.calls.append((verb, path))
        fault = self.plan(verb, path)
        if fault is not Fault.NONE:
            count("faults", fault.value)
        self._fail_before(fault, verb, path, call)
        reply: T | None = None
        error: Exception | None = None
        try:
            reply = super()._call(verb, path, call)
            if verb == "put" and self._shared is not None:
                self._shared.modified_ms[path] = self._shared.clock.now_ms()
        except Exception as refused:
            # "Not found" and "already exists" are replies, too, and can be lost like any other.
            error = refused
        if fault is Fault.CRASH_AFTER:
            self.dead = True
            raise SimulatedCrash(f"after {verb} {path}")
        if fault is Fault.LOSE_REPLY:
            raise StorageError(f"{path}: injected loss of the reply to {verb}", path=path)
        if error is not None:
            raise error
        return reply  # type: ignore[return-value]

    def _fail_before(self, fault: Fault, verb: str, path: str, call: Callable[[], object]) -> None:
        if fault is Fault.CRASH_BEFORE:
            self.dead = True
            raise SimulatedCrash(f"before {verb} {path}")
        if fault is Fault.LAND_LATE and verb == "put" and self._shared is not None:
            self._shared.delay(path, call)
            raise StorageError(f"{path}: injected delay of put", path=path)
        if fault is Fault.DENY:
            raise StorePermissionError(f"{path}: injected refusal to {verb}", path=path)
        if fault is Fault.SAY_EXISTS and self._conditional:
            raise _SaidExistsError(f"{path}: injected 'already exists'", path=path)
        if fault in (Fault.FAIL_BEFORE, Fault.LAND_LATE, Fault.SAY_EXISTS):
            raise StorageError(f"{path}: injected failure before {verb}", path=path)


class _Elsewhere(ObjectStore):
    """A place outside of the root, for the process of a FaultyStore. Paths of its plan, and of its
    calls, begin with the URL.
    """

    def __init__(self, process: FaultyStore, backing: MemoryStore, url: str) -> None:
        super().__init__(backing, url, clock=process.clock)
        self._process = process

    @property
    def is_remote(self) -> bool:
        return self._process.is_remote

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        return self._process.together(calls)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._process.conditional():
            try:
                return super().put_if_absent(path, data)
            except _SaidExistsError:
                return False

    def head(self, path: str) -> ObjectMeta:
        return self._by_shared_clock(super().head(path))

    def list(self, prefix: str, *, start_after: str | None = None) -> builtins.list[ObjectMeta]:
        found = super().list(prefix, start_after=start_after)
        return [self._by_shared_clock(meta) for meta in found]

    def _by_shared_clock(self, meta: ObjectMeta) -> ObjectMeta:
        there = meta._replace(path=f"{self.url}/{meta.path}")
        return self._process._by_shared_clock(there)._replace(path=meta.path)

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        return self._process._call(verb, f"{self.url}/{path}", call)
