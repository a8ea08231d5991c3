"""How long each phase of one commit took. Passed along with the commit; no global state.

housekeeping   sweeping transactions of dead processes, if due; after the commit, so not in it
stage          the user's function of a foreachBatch
sources        reading the batch's source offsets in Spark's checkpoint
tail           bringing the state row and the topics' logs up to date, beside files not yet written
own            finishing the former transaction of the transactional.id; take-over, once per run
tickets        registering in the groups, once per run, and looking its tickets up
prepare        step 1: PREPARE_COMMIT
publish        step 2: the marker commits of all topics
offsets        step 3: the groups' rows get the offsets
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Phases:
    """A stopwatch per phase, on a monotonic clock. `facts` go into the commit with the times.

    `before` measured the id's commit before, whose COMPLETE this one's decision is.
    """

    def __init__(
        self,
        facts: Mapping[str, str] | None = None,
        *,
        before: Phases | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.facts: dict[str, str] = dict(facts or {})
        self.before = before
        self.times_ns: dict[str, int] = {}
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._stopped_ns: int | None = None

    def measure(self, name: str) -> _Measured:
        """Add the time that a `with` block takes to a phase, also when it raises."""
        return _Measured(self, name, self._now_ns)

    def add(self, name: str, duration_ns: int) -> None:
        """Add a time that was measured elsewhere."""
        self.times_ns[name] = self.times_ns.get(name, 0) + duration_ns

    def stop(self) -> None:
        """Stop timing; the remaining steps run with the next commit."""
        self._stopped_ns = self._now_ns()

    @property
    def elapsed_ns(self) -> int:
        """From when this object was made, as the commit began, until `stop`, or until now."""
        end_ns = self._now_ns() if self._stopped_ns is None else self._stopped_ns
        return end_ns - self._began_ns

    def parameters(self) -> dict[str, str]:
        """For a commit's operationParameters: the facts, `totalMs` so far, `<phase>Ms` each."""
        times = {"total": self.elapsed_ns, **self.times_ns}
        return {**self.facts, **{f"{name}Ms": _ms(ns) for name, ns in times.items()}}

    def describe(self) -> str:
        """One line for people: "8.312 ms: tail 0.512, prepare 1.204, ..."."""
        parts = ", ".join(f"{name} {_ms(ns)}" for name, ns in self.times_ns.items())
        return f"{_ms(self.elapsed_ns)} ms: {parts}"


class _Measured:
    """A block of Phases.measure."""

    __slots__ = ("_began_ns", "_name", "_now_ns", "_phases")

    def __init__(self, phases: Phases, name: str, now_ns: Callable[[], int]) -> None:
        self._phases = phases
        self._name = name
        self._now_ns = now_ns

    def __enter__(self) -> None:
        self._began_ns = self._now_ns()

    def __exit__(self, *_: object) -> None:
        self._phases.add(self._name, self._now_ns() - self._began_ns)


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.3f}"
