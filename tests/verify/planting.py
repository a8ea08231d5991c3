"""What a planted damage is: how it is made, and what verify must say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnlog.protocol.verification.findings import FindingKind

K = FindingKind
Plant = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Damage:
    """`name` for the test's id; `kinds`: one of these must be found, at the place that was named.

    `deep`: only `--deep` can see it. `later_ms`: found when the clock is so far ahead.
    """

    name: str
    plant: Plant
    kinds: tuple[FindingKind, ...]
    deep: bool = False
    later_ms: int = 0
