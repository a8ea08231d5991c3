"""Hypothesis strategies: what may go wrong while a process is at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st

from txnlog.testing.faults import Fault, FaultsAt, Plan

CALLS_MAX = 18
MEANWHILE = ("", "sweep", "take over", "commit", "read", "recreate", "day", "land")
_FAULTS = [fault for fault in Fault if fault not in (Fault.NONE, Fault.DENY)]


@dataclass(frozen=True)
class Schedule:
    """What meets one operation: faults by number of its storage calls, and another's deed.

    `meanwhile` names what another process does before call number `meanwhile_at`; `salt` is for
    the choices it has to make.
    """

    NO_FAULT: ClassVar[Fault] = Fault.NONE

    faults: Mapping[int, Fault]
    meanwhile: str = ""
    meanwhile_at: int = 0
    salt: int = 0

    def plan(self, interlude: Callable[[], None]) -> Plan:
        """A fresh plan for a FaultyStore."""
        return FaultsAt(
            self.faults,
            interlude=interlude if self.meanwhile else None,
            interlude_at=self.meanwhile_at,
        )


def faults() -> st.SearchStrategy[Fault]:
    """Any fault that is not a refusal."""
    return st.sampled_from(_FAULTS)


def schedules(*, calls_max: int = CALLS_MAX) -> st.SearchStrategy[Schedule]:
    """Every third schedule is quiet; else up to two faults, and another process may act."""
    numbers = st.integers(0, calls_max)
    eventful = st.builds(
        Schedule,
        faults=st.dictionaries(numbers, faults(), max_size=2),
        meanwhile=st.sampled_from(MEANWHILE),
        meanwhile_at=numbers,
        salt=st.integers(0, 99),
    )
    return st.one_of(st.just(Schedule(faults={})), eventful, eventful)
