"""Hypothesis strategies: what may meet a process while it is at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from txnlog.testing.faults import Fault

FAULTS = tuple(fault for fault in Fault if fault not in (Fault.NONE, Fault.DENY))
CALLS_MAX = 24
COMMITS_MAX = 8
BURSTS = (1, 1, 3, 300, 1_000_000)
"""For how many calls a fault stays: a retry gets through, or only another try, or nothing."""


class Trouble(NamedTuple):
    """A fault, or the name of another's deed, that meets a storage call.

    `number` counts all calls, or only those that commit to a log: most of what can go wrong goes
    wrong there. `salt` is for whatever choices have to be made.
    """

    what: Fault | str
    is_at_commit: bool
    number: int
    burst: int
    salt: int


def troubles(deeds: Sequence[str]) -> st.SearchStrategy[Sequence[Trouble]]:
    """None in half of all cases, else one or two."""
    one = st.builds(
        Trouble,
        st.sampled_from([*FAULTS, *deeds]),
        st.just(value=True),
        st.integers(0, COMMITS_MAX - 1),
        st.sampled_from(BURSTS),
        st.integers(0, 11),
    )
    anywhere = st.builds(
        Trouble,
        st.sampled_from([*FAULTS, *deeds]),
        st.just(value=False),
        st.integers(0, CALLS_MAX - 1),
        st.sampled_from(BURSTS),
        st.integers(0, 11),
    )
    return st.just(()) | st.lists(one | one | anywhere, min_size=1, max_size=2)


class TroublePlan:
    """A plan for a FaultyStore. `do(deed, salt, path)` is called before the call to `path`."""

    def __init__(self, troubles: Sequence[Trouble], do: Callable[[str, int, str], None]) -> None:
        self._at: Mapping[tuple[bool, int], Trouble] = {
            (trouble.is_at_commit, trouble.number): trouble for trouble in troubles
        }
        self._do = do
        self._calls = {False: 0, True: 0}
        self._fault, self._left = Fault.NONE, 0

    def __call__(self, verb: str, path: str) -> Fault:
        self._meet(path, is_commit=False)
        if verb == "put" and path.endswith(".json"):
            self._meet(path, is_commit=True)
        if self._left == 0:
            return Fault.NONE
        self._left -= 1
        return self._fault

    def _meet(self, path: str, *, is_commit: bool) -> None:
        number = self._calls[is_commit]
        self._calls[is_commit] += 1
        trouble = self._at.get((is_commit, number))
        if trouble is None:
            return
        if isinstance(trouble.what, Fault):
            self._fault, self._left = trouble.what, trouble.burst
        else:
            self._do(trouble.what, trouble.salt, path)
