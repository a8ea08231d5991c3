"""Lanes of transactions as marks on a line of time, in percent of its width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Bar, Lane, Moment, Phase, Tick
from txnlog.ui.formats import clock, duration, number

SEEN: Final = 0.4
"""Percent of the width below which a bar cannot be seen."""
CELL: Final = 0.8
"""Marks nearer than this lie on each other: they become one."""
TICKS_MAX: Final = 60
_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800,
)  # fmt: skip
_COMPLETE: Final = (Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)
_ABORT: Final = (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)


class Piece(NamedTuple):
    """A bar in one phase; `shape` names its colour and pattern."""

    shape: str
    x: float
    width: float


class Mark(NamedTuple):
    """One transaction, or several that lie on each other: those have no `transaction`.

    `end` is the shape of its end, "" while it lasts.
    """

    title: str
    transaction: ProducerIdAndEpoch | None
    pieces: Sequence[Piece]
    end: str
    x: float


class TickMark(NamedTuple):
    """Something that happened to an owner."""

    x: float
    shape: str
    title: str


class Track(NamedTuple):
    """One lane, drawn."""

    lane: Lane
    has_problem: bool
    is_open: bool
    marks: Sequence[Mark]
    ticks: Sequence[TickMark]


class Label(NamedTuple):
    """A time below the line."""

    x: float
    text: str


class Axis(NamedTuple):
    """The window that is drawn."""

    since_ms: int
    until_ms: int

    def x(self, time_ms: int) -> float:
        """Percent of the width."""
        width = max(1, self.until_ms - self.since_ms)
        return round(min(100.0, max(0.0, (time_ms - self.since_ms) * 100 / width)), 3)

    @property
    def labels(self) -> list[Label]:
        """Eight at most, at round times."""
        width_s = max(1, (self.until_ms - self.since_ms) // 1_000)
        step_ms = 1_000 * next((one for one in _STEPS_S if width_s / one <= 8), width_s // 8 + 1)
        first = -(-self.since_ms // step_ms) * step_ms
        times = range(first, self.until_ms + 1, step_ms)
        cut = None if step_ms < 60_000 else 5
        labels = [Label(self.x(one), clock(one)[:cut]) for one in times]
        return [one for one in labels if 3 < one.x < 97]


def axis_of(moment: Moment) -> Axis:
    """From the first moment that the logs still show, if the window began before."""
    return Axis(min(max(moment.since_ms, moment.earliest_ms), moment.at_ms), moment.at_ms)


def ordered(moment: Moment) -> list[Lane]:
    """Those with problems first, then open ones, then by their newest bar or tick."""
    troubled = ids_with_problems(moment)

    def rank(lane: Lane) -> tuple[bool, bool, int, str]:
        newest = max(
            (
                *(bar.until_ms or moment.at_ms for bar in lane.bars),
                *(tick.at_ms for tick in lane.ticks),
                0,
            )
        )
        is_troubled = lane.transactional_id in troubled
        return not is_troubled, not is_open(lane), -newest, lane.transactional_id

    return sorted(moment.lanes, key=rank)


def ids_with_problems(moment: Moment) -> set[str]:
    """The transactional ids that a problem is about."""
    return {one.row.transactional_id for one in moment.problems if one.row is not None}


def is_open(lane: Lane) -> bool:
    """Whether it has a transaction that is not complete."""
    return any(bar.until_ms is None and bar.phase not in _COMPLETE for bar in lane.bars)


def drawn(lanes: Iterable[Lane], moment: Moment) -> list[Track]:
    """The lanes on the axis of the moment."""
    axis, troubled = axis_of(moment), ids_with_problems(moment)
    return [
        Track(
            lane,
            lane.transactional_id in troubled,
            is_open(lane),
            list(_marks(lane, axis)),
            [_tick(tick, axis) for tick in lane.ticks[-TICKS_MAX:] if tick.at_ms >= axis.since_ms],
        )
        for lane in lanes
    ]


class Life(NamedTuple):
    """A transaction with its bars, in order. A complete one `until_ms`, else None."""

    transaction: ProducerIdAndEpoch
    bars: Sequence[Bar]

    @property
    def since_ms(self) -> int:
        return self.bars[0].since_ms

    @property
    def is_complete(self) -> bool:
        return self.bars[-1].phase in _COMPLETE

    @property
    def until_ms(self) -> int | None:
        last = self.bars[-1]
        return last.since_ms if self.is_complete else last.until_ms

    @property
    def phase(self) -> Phase:
        return self.bars[-1].phase

    def until(self, now_ms: int) -> int:
        """Its end, or now."""
        return now_ms if self.until_ms is None else self.until_ms


def lives(lane: Lane) -> list[Life]:
    """The transactions of a lane, oldest first."""
    bars = sorted(lane.bars, key=lambda bar: (bar.transaction, bar.since_ms))
    found = [Life(key, list(some)) for key, some in groupby(bars, attrgetter("transaction"))]
    return sorted(found, key=lambda life: life.since_ms)


def _marks(lane: Lane, axis: Axis) -> Iterator[Mark]:
    cells: dict[tuple[int, bool], list[Life]] = {}
    for life in lives(lane):
        width = axis.x(life.until(axis.until_ms)) - axis.x(life.since_ms)
        if life.until(axis.until_ms) < axis.since_ms:
            continue
        if life.is_complete and width < CELL:
            cell = int(axis.x(life.until(axis.until_ms)) / CELL)
            cells.setdefault((cell, life.phase in _ABORT), []).append(life)
        else:
            yield _mark(life, axis)
    for (cell, is_abort), some in cells.items():
        yield _mark(some[0], axis) if len(some) == 1 else _many(some, cell, is_abort)


def _mark(life: Life, axis: Axis) -> Mark:
    now_ms = axis.until_ms
    pieces = []
    for bar in life.bars:
        x, end = axis.x(bar.since_ms), axis.x(now_ms if bar.until_ms is None else bar.until_ms)
        if bar.phase not in _COMPLETE and end - x >= (0 if bar.until_ms is None else SEEN):
            pieces.append(Piece(_shape(bar.phase), min(x, 100 - SEEN), max(SEEN, end - x)))
    until = "now" if life.until_ms is None else clock(life.until_ms)
    lasted = duration(max(0, life.until(now_ms) - life.since_ms))
    title = (
        f"{life.phase.value}: producer {life.transaction.producer_id}, epoch "
        f"{life.transaction.epoch}, {clock(life.since_ms)} to {until} ({lasted})"
    )
    end_shape = _shape(life.phase) if life.is_complete else ""
    return Mark(title, life.transaction, pieces, end_shape, axis.x(life.until(now_ms)))


def _many(some: Sequence[Life], cell: int, is_abort: bool) -> Mark:
    what = "aborted" if is_abort else "committed"
    first, last = some[0].since_ms, max(life.until(0) for life in some)
    title = f"{number(len(some))} transactions {what}, {clock(first)} to {clock(last)}"
    piece = Piece("many-abort" if is_abort else "many-commit", round(cell * CELL, 3), CELL * 0.9)
    return Mark(title, None, [piece], "", piece.x)


def _tick(tick: Tick, axis: Axis) -> TickMark:
    return TickMark(axis.x(tick.at_ms), tick.kind.name.lower(), f"{clock(tick.at_ms)} {tick.text}")


def _shape(phase: Phase) -> str:
    return phase.name.lower().replace("_", "-")
