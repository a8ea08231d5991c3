"""Which cases of a long loop a run tries: each storage call times each fault takes minutes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Some = Callable[[Iterable[T]], list[T]]

VARIABLE = "TXNLOG_CASES"
ALL = "all"
STRIDE = 6
FEW = 6


def choose(cases: Iterable[T], seed: int) -> list[T]:
    """The first, the last and every sixth of many cases; the seed says which sixth.

    All of them where TXNLOG_CASES=all, as in `make soak-histories` and `make mutants`.
    """
    found = list(cases)
    if os.environ.get(VARIABLE) == ALL or len(found) <= FEW:
        return found
    begin = random.Random(seed).randrange(STRIDE)
    last = len(found) - 1
    return [case for at, case in enumerate(found) if at in (0, last) or at % STRIDE == begin]
