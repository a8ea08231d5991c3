"""The demo's output: a progress bar on a terminal, plain lines in a CI log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_EVERY_S = 10.0


class Display:
    """A context manager; `status` updates the progress, `event` prints a permanent line."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total = total
        self._started_s = self._line_s = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def status(self, text: str, rows: int | None = None) -> None:
        """Show the current step, and the number of committed rows."""
        self._bar.update(self._task, description=text, completed=rows)
        now_s = time.monotonic()
        if not self.console.is_terminal and now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            done = self._bar.tasks[0].completed
            self.event(f"{text}: {done:,.0f} of {self._total:,} flights")

    def event(self, text: str) -> None:
        """Print a permanent line, with the seconds since the start."""
        line = f"[{time.monotonic() - self._started_s:6.1f} s] {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print a two-column table: names left, figures right."""
    table = Table(show_header=False, title="Flights of New York 2013", title_justify="left")
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for name, figure in rows:
        table.add_row(name, figure)
    console.print(table)
