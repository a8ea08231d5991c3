"""Curves and timelines of one line of characters; colour only repeats what the character says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.protocol.moments import Lane, Phase, Point, TickKind

if TYPE_CHECKING:
    from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
PHASES = {
    Phase.ONGOING: ("░", "yellow"),
    Phase.PREPARE_COMMIT: ("▒", "blue"),
    Phase.PREPARE_ABORT: ("▒", "magenta"),
    Phase.COMPLETE_COMMIT: ("█", "green"),
    Phase.COMPLETE_ABORT: ("x", "magenta"),
}
"""The last one of those in a cell is shown: what ended in it hides what was short."""
TICKS = {TickKind.FENCED, TickKind.TIMED_OUT, TickKind.FINISHED_BY_OTHER, TickKind.EXPIRED}


def curve(points: Sequence[Point], since_ms: int, until_ms: int, cells: int) -> str:
    """The values as steps, each as high as its share of the highest one."""
    found = _by_cell(points, since_ms, until_ms, cells)
    highest = max(found, default=0.0)
    if highest <= 0:
        return " " * cells
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[max(value > 0, round(value / highest * steps))] for value in found)


def _by_cell(points: Sequence[Point], since_ms: int, until_ms: int, cells: int) -> list[float]:
    """The highest value within each cell; a value holds until the next point."""
    width_ms = max(1, until_ms - since_ms) / cells
    found, at, current = [], 0, 0.0
    for cell in range(cells):
        end_ms, highest = since_ms + (cell + 1) * width_ms, 0.0
        while at < len(points) and points[at].at_ms <= since_ms + cell * width_ms:
            current, at = points[at].value, at + 1
        highest = current
        while at < len(points) and points[at].at_ms < end_ms:
            current, at = points[at].value, at + 1
            highest = max(highest, current)
        found.append(highest)
    return found


def strip(lane: Lane, since_ms: int, until_ms: int, cells: int) -> Text:
    """The phases of a lane's transactions; `!` is a fence, a time-out or another's help."""
    from rich.text import Text

    width_ms = max(1, until_ms - since_ms) / cells
    order = list(PHASES)
    found = [-1] * cells

    def cell(at_ms: int) -> int:
        return min(cells - 1, max(0, int((at_ms - since_ms) / width_ms)))

    for bar in lane.bars:
        end_ms = until_ms if bar.until_ms is None else bar.until_ms
        is_end = bar.phase in (Phase.COMPLETE_COMMIT, Phase.COMPLETE_ABORT)
        last = cell(bar.since_ms if is_end else end_ms)
        for at in range(cell(bar.since_ms), last + 1):
            found[at] = max(found[at], order.index(bar.phase))
    marked = {cell(tick.at_ms) for tick in lane.ticks if tick.kind in TICKS}
    text = Text()
    for at, number in enumerate(found):
        if at in marked:
            text.append("!", "bold red")
        elif number < 0:
            text.append("·", "dim")
        else:
            text.append(*PHASES[order[number]])
    return text
