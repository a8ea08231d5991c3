"""Hypothesis strategies: faults and other processes' actions during a process's work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from txnlog.testing.faults import Fault

__all__ = ["BURSTS", "CALLS_MAX", "COMMITS_MAX", "FAULTS", "Trouble", "TroublePlan", "troubles"]

FAULTS = tuple(fault for fault in Fault if fault not in (Fault.NONE, Fault.DENY))
CALLS_MAX = 24
COMMITS_MAX = 8
BURSTS = (1, 1, 3, 300, 1_000_000)
"""How many calls a fault lasts: a retry succeeds, or a later attempt, or none."""


class Trouble(NamedTuple):
    """A fault, or the name of another process's action, at a storage call.

    `number` counts all calls, or only commits to a log: most failures matter there. `salt` is for
    choices of the action.
    """

    what: Fault | str
    is_at_commit: bool
    number: int
    burst: int
    salt: int


def troubles(actions: Sequence[str]) -> st.SearchStrategy[Sequence[Trouble]]:
    """None in half of all cases, else one or two. `actions` are names for `TroublePlan`."""
    one = st.builds(
        Trouble,
        st.sampled_from([*FAULTS, *actions]),
        st.just(value=True),
        st.integers(0, COMMITS_MAX - 1),
        st.sampled_from(BURSTS),
        st.integers(0, 11),
    )
    anywhere = st.builds(
        Trouble,
        st.sampled_from([*FAULTS, *actions]),
        st.just(value=False),
        st.integers(0, CALLS_MAX - 1),
        st.sampled_from(BURSTS),
        st.integers(0, 11),
    )
    return st.just(()) | st.lists(one | one | anywhere, min_size=1, max_size=2)


class TroublePlan:
    """A plan for a FaultyStore. `do(action, salt, path)` is called before the call to `path`."""

    def __init__(self, troubles: Sequence[Trouble], do: Callable[[str, int, str], None]) -> None:
        self._at: Mapping[tuple[bool, int], Trouble] = {
            (trouble.is_at_commit, trouble.number): trouble for trouble in troubles
        }
        self._do = do
        self._calls = {False: 0, True: 0}
        self._fault, self._left = Fault.NONE, 0

    def __call__(self, verb: str, path: str) -> Fault:
        self._start(path, is_commit=False)
        if verb == "put" and path.endswith(".json"):
            self._start(path, is_commit=True)
        if self._left == 0:
            return Fault.NONE
        self._left -= 1
        return self._fault

    def _start(self, path: str, *, is_commit: bool) -> None:
        number = self._calls[is_commit]
        self._calls[is_commit] += 1
        trouble = self._at.get((is_commit, number))
        if trouble is None:
            return
        if isinstance(trouble.what, Fault):
            self._fault, self._left = trouble.what, trouble.burst
        else:
            self._do(trouble.what, trouble.salt, path)
