"""`txnlog top`: problems, groups, topics and transactions of a root, live in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from txnlog.cli.session import Session, session_of, stopped_by_signals
from txnlog.cli.strips import curve, strip
from txnlog.cli.times import format_age, format_time, pause_s
from txnlog.errors import TxnLogError
from txnlog.protocol.explanations import count_of
from txnlog.protocol.moments import GroupMoment, Lane, Moment, Phase, TopicMoment
from txnlog.protocol.problems import Problem, problem_values
from txnlog.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(add_completion=False)

PIPE_WIDTH, PIPE_HEIGHT = 160, 60
CELLS = 24
"""Characters of a curve or a strip, which span the window of the moment."""
NAME_CELLS, GAP = 32, 2
"""What a column takes at most, and what is between two."""
PROBLEMS_SHARE = 0.3
"""Of the lines of the screen, at most."""
LINES_OF_SECTION = 3
"""A section without its rows: an empty line, its title, the names of its columns."""


class Age(int):
    """Milliseconds that are shown as an age."""


class Section(NamedTuple):
    """One table of the screen. In `rows` a cell of `curves` is drawn; JSON leaves it out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    curves: Sequence[str] = ()


@app.command()
def top(
    context: typer.Context,
    delay: Annotated[
        float,
        typer.Option(
            "--delay", "-d", help="Time between two looks.", parser=pause_s(0.5), metavar="SECONDS"
        ),
    ] = 2.0,
) -> None:
    """What goes on in a root, live: problems, groups, topics, transactions; Ctrl-C ends it.

    What is behind, blocked or busy comes first. Where the output is no terminal, it is printed
    once. It changes nothing, and costs the root what one consumer of all topics costs.
    """
    from rich.console import Console

    from txnlog.admin.moments import Moments

    session = session_of(context)
    moments = Moments(session.admin().cluster)
    moment = moments.now()
    if session.is_json:
        session.show_json(values(moment))
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=PIPE_WIDTH)
        console.print(screen(session, moment, PIPE_WIDTH, PIPE_HEIGHT))
        return
    _follow(session, console, moments, moment, delay)


def _follow(session: Session, console: Any, moments: Any, moment: Moment, delay_s: float) -> None:
    """Show a moment after the other; an error of the store is shown, and the last moment stays."""
    from rich.live import Live

    wrong = ""
    with stopped_by_signals() as stop, Live(console=console, screen=True, auto_refresh=False) as at:
        while not stop.is_set():
            size = console.size
            at.update(screen(session, moment, size.width, size.height, wrong), refresh=True)
            stop.wait(delay_s)
            try:
                moment, wrong = moments.now(), ""
            except TxnLogError as error:
                wrong = error.lines[0]


# --- What is shown --------------------------------------------------------------------------------


def sections(moment: Moment) -> list[Section]:
    """The tables, each with its most pressing rows first."""
    return [_groups(moment), _topics(moment), _transactions(moment)]


def _groups(moment: Moment) -> Section:
    def row(one: GroupMoment) -> Sequence[object]:
        blocked_by = sorted({problem.subject for problem in one.blocked_by})
        return (
            one.group_id, one.lag_records, Age(one.lag_ms), ", ".join(blocked_by) or "-",
            curve(one.lags, moment.since_ms, moment.at_ms, CELLS), one.state, len(one.members),
        )  # fmt: skip

    groups = sorted(
        moment.groups.values(),
        key=lambda one: (not one.blocked_by, -one.lag_ms, -one.lag_records, one.group_id),
    )
    columns = ("GROUP", "LAG", "BEHIND", "BLOCKED-BY", "LAG-CURVE", "STATE", "MEMBERS")
    return Section("groups", columns, [row(one) for one in groups], ("LAG-CURVE",))


def _topics(moment: Moment) -> Section:
    def row(one: TopicMoment) -> Sequence[object]:
        numbers = one.partitions
        open_records = sum(at.high_watermark - at.last_stable_offset for at in numbers)
        return (
            one.name, round(one.rate, 1),
            curve(one.rates, moment.since_ms, moment.at_ms, CELLS),
            sum(at.num_records for at in numbers), open_records,
            round(sum(at.size_bytes for at in numbers) / 2**20, 1),
            sum(at.num_files for at in numbers), one.small_files, len(numbers),
        )  # fmt: skip

    topics = sorted(moment.topics.values(), key=lambda one: (-one.rate, one.name))
    columns = (
        "TOPIC", "RECORDS/S", "RATE-CURVE", "RECORDS", "OPEN", "MIB", "FILES", "SMALL-FILES",
        "PARTITIONS",
    )  # fmt: skip
    return Section("topics", columns, [row(one) for one in topics], ("RATE-CURVE",))


def _transactions(moment: Moment) -> Section:
    def key(lane: Lane) -> tuple[bool, int, str]:
        last = lane.bars[-1] if lane.bars else None
        is_open = last is not None and last.until_ms is None and last.phase in _OPEN
        return not is_open, -last.since_ms if last else 0, lane.transactional_id

    def row(lane: Lane) -> Sequence[object]:
        last = lane.bars[-1] if lane.bars else None
        state, since_ms = (last.phase.value, last.since_ms) if last else ("-", -1)
        epoch = last.transaction.epoch if last else -1
        age = Age(moment.at_ms - since_ms) if since_ms >= 0 else None
        return (
            lane.title or lane.transactional_id, state, age, epoch,
            strip(lane, moment.since_ms, moment.at_ms, CELLS), lane.owner,
        )  # fmt: skip

    columns = ("TRANSACTIONAL-ID", "STATE", "FOR", "EPOCH", "TIMELINE", "OWNER")
    lanes = sorted(moment.lanes, key=key)
    return Section("transactions", columns, [row(lane) for lane in lanes], ("TIMELINE",))


_OPEN = (Phase.ONGOING, Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)


def values(moment: Moment) -> Mapping[str, object]:
    """A moment for JSON."""
    found: dict[str, object] = {
        "root": moment.root,
        "atMs": moment.at_ms,
        "verdict": count_of(moment.problems),
        "problems": [problem_values(problem) for problem in moment.problems],
    }
    for section in sections(moment):
        drawn = set(section.curves)
        found[section.title] = [
            {
                name: cell
                for name, cell in zip(section.columns, row, strict=True)
                if name not in drawn
            }
            for row in section.rows
        ]
    return found


# --- The screen -----------------------------------------------------------------------------------


def screen(
    session: Session, moment: Moment, width: int, height: int, wrong: str = ""
) -> RenderableType:
    """The moment on a terminal of this size; `wrong` is why there is no newer one."""
    from rich.console import Group
    from rich.text import Text

    verdict = count_of(moment.problems)
    style = "bold red" if moment.problems else "bold green"
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{verdict[:1].upper()}{verdict[1:]}", style),
            f"  {printable(moment.root)}  {format_time(moment.at_ms)}",
            no_wrap=True,
            overflow="ellipsis",
        )
    ]
    if wrong:
        parts.append(_line(f"No newer state: {wrong}", "bold red"))
    shown = max(1, int(height * PROBLEMS_SHARE) // 2)
    for problem in moment.problems[:shown]:
        parts += _problem(session, problem)
    parts += _more(len(moment.problems) - shown, "problems: `txnlog why`")
    tables = sections(moment)
    left = height - len(parts) - LINES_OF_SECTION * len(tables) - 1
    for section, rows in zip(tables, shares([len(one.rows) for one in tables], left), strict=True):
        parts += _table(section, rows, width)
    return Group(*parts)


def shares(wanted: Sequence[int], lines: int) -> list[int]:
    """How many lines each gets: all it wants, where the others leave them, else an equal share."""
    found = [0] * len(wanted)
    left, open_ones = max(lines, len(wanted)), set(range(len(wanted)))
    while open_ones and left > 0:
        each = max(1, left // len(open_ones))
        for at in sorted(open_ones):
            more = min(each, wanted[at] - found[at], left)
            found[at] += more
            left -= more
        open_ones = {at for at in open_ones if found[at] < wanted[at]}
    return found


def _problem(session: Session, problem: Problem) -> list[RenderableType]:
    do = session.pasted(problem.command) if problem.command else problem.ends
    return [
        _line(f"! {problem.kind.value}: {problem.subject}: {problem.why}", "red"),
        _line(f"    {do}", "dim"),
    ]


def _more(left_out: int, of: str) -> list[RenderableType]:
    return [_line(f"... and {left_out} more {of}", "dim")] if left_out > 0 else []


def _table(section: Section, rows: int, width: int) -> list[RenderableType]:
    """The columns from the left that have room, each at least as wide as its figures."""
    from rich.table import Table
    from rich.text import Text

    total = len(section.rows)
    title = f"{section.title}: {total}" + (f", the first {rows}" if rows < total else "")
    shown = [
        [cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row]
        for row in section.rows[:rows]
    ]
    table = Table(box=None, pad_edge=False, header_style="dim")
    kept, left = 0, width
    for at, name in enumerate(section.columns):
        longest = max([len(name), *(len(row[at]) for row in shown)])
        left -= min(longest, NAME_CELLS) + GAP
        if kept and left + GAP < 0:
            break
        is_number = bool(shown) and isinstance(section.rows[0][at], (int, float))
        table.add_column(
            name,
            no_wrap=True,
            max_width=NAME_CELLS,
            overflow="ellipsis",
            justify="right" if is_number else "left",
        )
        kept += 1
    for row in shown:
        table.add_row(*row[:kept])
    return [_line("", ""), _line(title, "bold"), table]


def _cell(value: object) -> str:
    if isinstance(value, Age):
        return format_age(value)
    if isinstance(value, (int, float)):
        return f"{value:,}"
    return "-" if value is None else printable(str(value))


def _line(text: str, style: str) -> RenderableType:
    from rich.text import Text

    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")
