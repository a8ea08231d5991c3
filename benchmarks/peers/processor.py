"""Processor time beside the figures of wall clocks: it does not depend on the number of cores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.figures import Figure, median_of

PROCESSOR = "processor time of "
PER_MILLION = "s per million records"
BROKER = "Kafka's broker"


def processor_figures(
    name: str, turns: Mapping[str, partial[Any]], *, warm_ups: int, work: float, unit: str
) -> list[Figure]:
    """Of each peer's calls, which are partials of its Caller, and of Kafka's broker beside them.

    `warm_ups` of the calls do not count; a call is `work` units. None where /proc is not.
    """
    found: dict[str, list[float]] = {}
    for peer, turn in turns.items():
        spent_s = turn.func.spent_s[turn.args][warm_ups:]  # type: ignore[attr-defined]
        found[peer] = [own_s / work for own_s, _ in spent_s]
        if any(beside_s for _, beside_s in spent_s):
            found[BROKER] = [beside_s / work for _, beside_s in spent_s]
    return [
        median_of(f"{PROCESSOR}{name}: {peer}", values, unit)
        for peer, values in found.items()
        if values and any(values)
    ]
