"""Numbers over time, and phases beside each other, as shapes of SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from txnlog.protocol.moments import BatchMoment, Point
from txnlog.ui.timeline import Axis

HEIGHT: Final = 100
"""Of a chart, in units that are stretched to what the page gives it."""
COLUMNS_MAX: Final = 60
PHASES: Final = ("tail", "sources", "own", "tickets", "prepare", "publish", "offsets")
"""In the order of a commit; others follow."""


class Chart(NamedTuple):
    """A line of steps, and the area below it, as paths in a box of 1000 x HEIGHT."""

    line: str
    area: str
    highest: float
    newest: float


def chart(points: Sequence[Point], axis: Axis) -> Chart | None:
    """None without points. Each value holds until the next."""
    if not points:
        return None
    highest = max(point.value for point in points)

    def at(value: float) -> float:
        return round(HEIGHT - value * (HEIGHT - 8) / (highest or 1), 1)

    xs = [round(axis.x(point.at_ms) * 10, 1) for point in points]
    steps = [f"M{xs[0]} {at(points[0].value)}"]
    for x, point in zip(xs[1:], points[1:], strict=True):
        steps.append(f"H{x}V{at(point.value)}")
    line = "".join([*steps, "H1000"])
    area = f"{line}V{HEIGHT}H{xs[0]}Z"
    return Chart(line, area, highest, points[-1].value)


class Part(NamedTuple):
    """A phase of a batch: the number of its colour, and its place in percent."""

    name: str
    colour: int
    at: float
    length: float
    duration_ms: float


class Column(NamedTuple):
    """A batch; `total_ms` is the sum of its phases."""

    batch: BatchMoment
    total_ms: float
    parts: Sequence[Part]


def phase_names(batches: Sequence[BatchMoment]) -> list[str]:
    """The phases that any batch has."""
    named = {name for batch in batches for name in batch.phases if name != "total"}
    return [name for name in PHASES if name in named] + sorted(named - {*PHASES})


def colour_of(name: str) -> int:
    """The same on every page."""
    return PHASES.index(name) if name in PHASES else len(PHASES) - 1


def stacked(batches: Sequence[BatchMoment]) -> list[Column]:
    """The newest batches, oldest first, each in percent of the longest."""
    newest = list(batches)[-COLUMNS_MAX:]
    names = phase_names(batches)
    totals = [sum(batch.phases.get(name, 0) for name in names) for batch in newest]
    longest = max(totals, default=0) or 1
    columns = []
    for batch, total in zip(newest, totals, strict=True):
        columns.append(Column(batch, total, parts(batch.phases, names, longest)))
    return columns


def parts(phases: Mapping[str, float], names: Sequence[str], longest: float) -> list[Part]:
    """Phases one after the other."""
    found, at = [], 0.0
    for name in names:
        duration_ms = phases.get(name, 0)
        length = round(duration_ms * 100 / longest, 3)
        if length > 0:
            found.append(Part(name, colour_of(name), round(at, 3), length, duration_ms))
        at += length
    return found
