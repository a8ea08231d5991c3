"""The one runner of faults: an operation is begun anew for each storage call and each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.cases import Some
from tests.world import CRASHES, ERRORS, faults, outcome_of, planned, process
from txnlog.cluster import Cluster
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, no_faults
from txnlog.testing.invariants import check_cluster

EVERY = (*CRASHES, *ERRORS)
KILLS = (Fault.CRASH_AFTER, Fault.LOSE_REPLY)
"""A crash before a call is one after the call before."""
RETRIABLE = ("StorageError", "CommitStateUnknownError")


@dataclass
class Trial:
    """A process about to act; `more` is what the test wants to know of it afterwards."""

    shared: SharedMemory
    cluster: Cluster
    act: Callable[[], object]
    more: Any = None
    fault: Fault = Fault.NONE
    outcome: str = ""

    def again(self) -> str:
        """What the act comes to if it is repeated after a retriable error, as a client does."""
        return outcome_of(self.act) if self.outcome in RETRIABLE else self.outcome


Begin = Callable[[], Trial]


def calls_of(begin: Begin, verb: str = "") -> list[int]:
    """Numbers of the storage calls that the act makes, or of those of one verb."""
    trial = begin()
    made = faults(trial.cluster).calls
    made.clear()
    trial.act()
    return [number for number, (its, _) in enumerate(made) if verb in ("", its)]


def cuts(
    begin: Begin,
    some: Some[int],
    kinds: tuple[Fault, ...] = EVERY,
    *,
    verb: str = "",
    lands: bool = True,
) -> Iterator[Trial]:
    """The act with each fault at each of its calls, or those of a verb.

    What is to land late has landed, if it `lands`. Every log can be read afterwards. The line
    printed last says which case failed.
    """
    for number in some(calls_of(begin, verb)):
        for fault in kinds:
            trial = begin()
            trial.fault = fault
            with planned(trial.cluster, {number: fault}):
                trial.outcome = outcome_of(trial.act)
            if lands:
                trial.shared.land_late()
            print(f"{fault} at call {number}: {trial.outcome}")
            check_cluster(process(trial.shared))
            yield trial


def meetings(
    begin: Begin,
    meanwhile: Callable[[Trial], object],
    some: Some[int] = list,
    *,
    late: bool = False,
) -> Iterator[Trial]:
    """The act, paused before each of its calls while others act.

    `late`: the call is a put that lands only after they have acted.
    """
    for number in some(calls_of(begin)):
        trial = begin()
        faults(trial.cluster).plan = FaultsAt(
            {number: Fault.LAND_LATE} if late else {},
            interlude=partial(meanwhile, trial),
            interlude_at=number + late,
        )
        trial.outcome = outcome_of(trial.act)
        if not late:
            faults(trial.cluster).plan = no_faults
        trial.shared.land_late()
        print(f"met at call {number}: {trial.outcome}")
        check_cluster(process(trial.shared))
        yield trial
