"""Defaults shared by several tables of settings, and suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NUM_PARTITIONS_DEFAULT = 4
SHARDS_DEFAULT = 32
OFFSETS_SHARDS_DEFAULT = 16
SHARDS_MAX = 1_000
"""Limits of the shards of the transaction log and of the consumer offsets: each is a table, made
when it is first written. Kafka's default is 50 of each."""


def suggestion(mistyped: str, names: Iterable[str], others: str | None = None) -> str:
    """A sentence with the nearest name; without a similar one `others`, by default all names."""
    by_lowered = {name.lower(): name for name in names}
    near = nearest(mistyped, by_lowered)
    if near is not None:
        return f"Did you mean {by_lowered[near]}?"
    return others or f"There are: {', '.join(sorted(by_lowered.values()))}."


def nearest(name: str, names: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The name most similar to a mistyped one; None below a similarity of `likeness` (0 to 1)."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=likeness)
    return matches[0] if matches else None
