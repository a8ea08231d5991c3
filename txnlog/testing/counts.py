"""Counters of what the tests of this process did: faults, kills, histories, states, damage.

`count("faults", "lose reply")` adds one. A store that fails on purpose and the state search count
by themselves. The project's tests write the sums into docs/reliability.md, see tests/counts.py.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["GROUPS", "count", "counted"]

GROUPS = {
    "faults": "storage calls that failed, lost their reply, or killed the caller",
    "kills": "processes killed with SIGKILL, or stopped with SIGSTOP while a successor took over",
    "histories": "random histories, each replayable from its seed",
    "states": "states of the protocol visited by the searches",
    "damage planted": "damaged files, rows and logs made by tests",
    "damage found": "damage that was reported as an error or by `txnlog verify`",
    "mutants": "one-line changes of the code, each run against the tests that belong to it",
}

_counts: dict[str, Counter[str]] = {group: Counter() for group in GROUPS}


def count(group: str, kind: str, n: int = 1) -> None:
    """Add `n` to a kind of a group in GROUPS, for example ("damage planted", "bit flip in a seal").

    Call it after the event. Raises KeyError for another group.
    """
    _counts[group][kind] += n


def counted() -> dict[str, dict[str, int]]:
    """Group -> kind -> sum; groups in the order of GROUPS, kinds by name, without zeros."""
    return {
        group: dict(sorted((kind, n) for kind, n in kinds.items() if n))
        for group, kinds in _counts.items()
        if any(kinds.values())
    }
