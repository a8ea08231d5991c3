"""A named snapshot against what deletes files: vacuum, and the clean-up of logs by writers.

Time is counted in steps of a quarter of the shortest retention. S reads version 0 of a table, in
which file F is live, and saves its snapshot later. Retention removes F at some time; a checkpoint
forgets the tombstone when it is old. V is vacuum, which may run again and again. W is a writer that
cleans up the log, and knows of saved snapshots what it last read of `__cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from txnlog.protocol.snapshots import Pin, kept_from_ms
from txnlog.protocol.vacuum import VACUUM_AGE_MS_MIN, StoredFile, find_deletable

SAVES_LATE = "a snapshot is saved however long ago it was read"
BY_TOMBSTONES = "vacuum keeps what was removed since, and asks no version for its files"
KNOWS_OLD = "a writer cleans up by what it knew of snapshots long ago"
SNAPSHOTS_FIRST = "vacuum reads which snapshots are kept before it reads the table"
UNREAD = "vacuum does not read which snapshots are kept"
STEP_MS = VACUUM_AGE_MS_MIN // 4
FIRST_MS = 100 * STEP_MS
STEPS = 9


class Vacuum(NamedTuple):
    """A run: what it has read, and found."""

    begun: int
    reads: int = 0
    finds_f: bool = False
    has_tombstone: bool = False
    is_pinned: bool = False


class State(NamedTuple):
    """Times count steps; -1: not yet. `known` is when W read `__cluster`, and whether it saw it."""

    now: int = 0
    read: int = -1
    saved: int = -1
    removed: int = -1
    has_tombstone: bool = True
    vacuum: Vacuum | None = None
    known: tuple[int, bool] = (0, False)
    is_deleted: bool = False
    is_cleaned: bool = False


class Pins:
    """The model; every other age is the shortest that is allowed."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self._broken = broken

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < STEPS:
            yield "a quarter of an hour passes", state._replace(now=state.now + 1)
        if state.read < 0 and state.removed < 0:
            yield "S reads version 0", state._replace(read=state.now)
        is_fresh = state.now - state.read <= 1 or SAVES_LATE in self._broken
        if state.read >= 0 and state.saved < 0 and is_fresh:
            yield "S saves its snapshot", state._replace(saved=state.now)
        if state.removed < 0:
            yield "retention removes F", state._replace(removed=state.now)
        elif state.now - state.removed > 4 and state.has_tombstone:
            yield "a checkpoint forgets the tombstone", state._replace(has_tombstone=False)
        is_saved = state.saved >= 0
        yield from self._vacuum(state)
        yield "W reads __cluster", state._replace(known=(state.now, is_saved))
        if not state.is_cleaned and self._may_clean(state):
            yield "W cleans up version 0", state._replace(is_cleaned=True)

    def _vacuum(self, state: State) -> Iterator[tuple[str, State]]:
        order = ["tombstones", "snapshots"]
        if SNAPSHOTS_FIRST in self._broken:
            order.reverse()
        if state.vacuum is None:
            yield "V begins", state._replace(vacuum=Vacuum(state.now))
        elif state.vacuum.reads == len(order):
            keeps = state.vacuum.is_pinned
            if BY_TOMBSTONES in self._broken:
                keeps = keeps and state.vacuum.has_tombstone
            is_deleted = state.is_deleted or (state.vacuum.finds_f and not keeps)
            yield "V ends", state._replace(vacuum=None, is_deleted=is_deleted)
        else:
            what = order[state.vacuum.reads]
            read = state.vacuum._replace(reads=state.vacuum.reads + 1)
            if what == "snapshots":
                read = read._replace(is_pinned=state.saved >= 0 and UNREAD not in self._broken)
            else:
                finds, has = self._finds_f(state, read.begun), state.has_tombstone
                read = read._replace(finds_f=finds, has_tombstone=has)
            yield f"V reads the {what}", state._replace(vacuum=read)

    def _finds_f(self, state: State, begun: int) -> bool:
        found = find_deletable(
            [StoredFile("F", 1, 0)],
            table="t",
            live={"F"} if state.removed < 0 else set(),
            named=(),
            removed_ms={"F": _ms(state.removed)} if state.has_tombstone else {},
            now_ms=_ms(begun),
            age_ms=VACUUM_AGE_MS_MIN,
        )
        return bool(found)

    def _may_clean(self, state: State) -> bool:
        """Whether version 0 is not the newest one of the time from which on all are kept."""
        read, is_seen = state.known
        if state.now - read > 2 and KNOWS_OLD not in self._broken:
            return False
        pins = [Pin(at_ms=_ms(state.read), expires_ms=2**62, file="f")] if is_seen else []
        before_ms = min(
            _ms(state.now) - VACUUM_AGE_MS_MIN, kept_from_ms(pins, now_ms=_ms(state.now))
        )
        return 0 <= _ms(state.removed) <= before_ms and state.removed >= 0

    def unsafe(self, before: State, after: State) -> str | None:
        if after.saved >= 0 and after.is_deleted:
            return "the snapshot shows a file that vacuum has deleted"
        if after.saved >= 0 and after.is_cleaned:
            return "the snapshot has a version that the log no longer shows"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _ms(steps: int) -> int:
    return FIRST_MS + steps * STEP_MS
