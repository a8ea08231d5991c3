"""Names of options and settings: defaults that several tables share, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NUM_PARTITIONS_DEFAULT = 4
SHARDS_DEFAULT = 8
SHARDS_MAX = 1_000
"""Shards of the transaction log: each is a table, made with the cluster. Kafka's default is 50."""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that is most like a mistyped one, None if none is; `likeness` is 0 to 1."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return found[0] if found else None
