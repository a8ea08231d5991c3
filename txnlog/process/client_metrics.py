"""What a client has done since it was made: counted as it goes, without a thread, a lock or I/O.

Each number is changed by one thread at a time: that which holds what the work needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets of times."""


class Metric(NamedTuple):
    """One number, with the names and tags of Kafka's clients where they have it.

    Names that end in -total only grow. A time is three: -bucket, tagged by its upper bound `le`,
    -sum and -count, in seconds.
    """

    name: str
    group: str
    tags: Mapping[str, str]
    value: float


Value = tuple[str, Mapping[str, str], float]
"""Name, tags and number of a metric."""


class Times:
    """How often something succeeded, and how long it took."""

    def __init__(self) -> None:
        self._sum_s = 0.0
        self._counts = [0] * (len(SECONDS) + 1)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Wraps the work; one that fails is not counted."""
        begun_s = perf_counter()
        yield
        duration_s = perf_counter() - begun_s
        self._sum_s += duration_s
        self._counts[bisect_left(SECONDS, duration_s)] += 1

    def values(self, name: str) -> Iterator[Value]:
        """Its metrics: name, tags, value."""
        bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
        counts = list(accumulate(self._counts))
        for bound, count in zip(bounds, counts, strict=True):
            yield f"{name}-bucket", {"le": bound}, count
        yield f"{name}-sum", {}, self._sum_s
        yield f"{name}-count", {}, counts[-1]


def made_metrics(kind: str, client_id: str, values: Iterable[Value]) -> list[Metric]:
    """The metrics of one producer or consumer."""
    return [
        Metric(name, f"{kind}-metrics", {"client-id": client_id, **tags}, value)
        for name, tags, value in values
    ]
