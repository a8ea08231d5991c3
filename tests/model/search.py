"""Explicit-state search: every interleaving of a small model, breadth first, up to a bound.

A model's states are small hashable tuples. A process that stops anywhere is a crash, so a model
needs no crash action as long as `unsafe` checks what a recovery makes of every state. The first
violation found has the shortest trace.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from txnlog.testing.counts import count

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

STATES_MAX = 2_000_000


class Model(Protocol[S]):
    """What a search needs to know of a model."""

    def initial(self) -> S:
        """The state everything starts from."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """(label, next state) of everything that may happen next, in a fixed order."""

    def unsafe(self, before: S, after: S) -> str | None:
        """What is wrong with a step's outcome, None if nothing is."""

    def stuck(self, state: S) -> str | None:
        """What is wrong with a state in which nothing can happen any more."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant and the shortest way to it."""

    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:>3}. {label}" for number, label in enumerate(self.trace, 1))
        return f"{self.what}\n{steps}"


@dataclass(frozen=True, slots=True)
class Result:
    """`complete`: the whole space was seen, else the search stopped at its bound.

    `labels` holds every label that was met: a model that never does what it is about is caught by
    looking there.
    """

    states: int
    transitions: int
    ends: int
    depth: int
    complete: bool
    violation: Violation | None = None
    labels: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if self.violation is not None:
            return f"VIOLATION after {self.states} states: {self.violation}"
        space = "the whole space" if self.complete else "cut off"
        return f"holds in {self.states} states ({space}, depth {self.depth}, {self.ends} ends)"


def search(model: Model[S], *, states_max: int = STATES_MAX) -> Result:
    """Visit every state of the model, nearest first, until a violation or the bound."""
    with _no_collection():
        return _search(model, states_max)


@contextmanager
def _no_collection() -> Iterator[None]:
    """All states are kept until the end, so that looking for cycles is a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _search(model: Model[S], states_max: int) -> Result:
    start = model.initial()
    parents: dict[S, tuple[S, str] | None] = {start: None}
    depths = {start: 0}
    waiting = deque([start])
    labels: set[str] = set()
    transitions = ends = depth = 0

    def result(complete: bool, violation: Violation | None = None) -> Result:
        seen = frozenset(labels)
        count("states", type(model).__name__, len(parents))
        return Result(len(parents), transitions, ends, depth, complete, violation, seen)

    while waiting:
        state = waiting.popleft()
        depth = depths.pop(state)
        moved = False
        for label, after in model.steps(state):
            moved = True
            transitions += 1
            labels.add(label)
            if after in parents:
                continue
            parents[after] = (state, label)
            what = model.unsafe(state, after)
            if what is not None:
                return result(False, Violation(what, _trace(parents, after)))
            depths[after] = depth + 1
            waiting.append(after)
        if not moved:
            ends += 1
            what = model.stuck(state)
            if what is not None:
                return result(False, Violation(what, _trace(parents, state)))
        if len(parents) >= states_max:
            return result(False)
    return result(True)


def _trace(parents: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    labels = []
    step = parents[state]
    while step is not None:
        labels.append(step[1])
        step = parents[step[0]]
    return tuple(reversed(labels))


def assert_holds(
    model: Model[S], *, states_min: int, states_max: int = STATES_MAX, whole: bool = True
) -> Result:
    """The invariants hold in the whole space, which has at least so many states.

    The lower bound notices a model that has stopped doing what it is there for. `whole=False`: the
    space may be larger than the bound, and what is within it holds.
    """
    result = search(model, states_max=states_max)
    assert result.violation is None, str(result)
    assert result.complete or not whole, str(result)
    assert result.states >= states_min, str(result)
    return result


def assert_breaks(model: Model[S], what: str, *, states_max: int = STATES_MAX) -> Violation:
    """The search finds a violation that says `what`; the trace to it is returned."""
    result = search(model, states_max=states_max)
    assert result.violation is not None, str(result)
    assert what in result.violation.what, str(result)
    return result.violation


@dataclass(slots=True)
class Pool(Generic[T]):
    """Values as small numbers: equal keys share one, so that states stay small and hash fast."""

    key: Callable[[T], Hashable]
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _values: list[T] = field(default_factory=list)

    def put(self, value: T) -> int:
        """The number of this value, or of the first one with its key."""
        key = self.key(value)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._values)
            self._numbers[key] = number
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)
