"""The progress bar of long commands: on stderr, if stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from txnlog.text import printable

if TYPE_CHECKING:
    from txnlog.coordinator.copies import OnCopied
    from txnlog.verifying.report import Progress as OnProgress


@contextmanager
def copying_bar() -> Iterator[OnCopied]:
    """Over the bytes of a copy."""
    with _bar(DownloadColumn()) as show:
        yield lambda topic, done, total: show(topic or "verifying", done, total)


@contextmanager
def tables_bar() -> Iterator[OnProgress]:
    """Over the tables that are read."""
    with _bar(MofNCompleteColumn()) as show:
        yield lambda table, done, count, files: show(
            f"{table}: {files:,} files" if files else table, done, count or None
        )


@contextmanager
def _bar(counts: ProgressColumn) -> Iterator[Callable[[str, int, int | None], None]]:
    console = Console(stderr=True)
    with Progress(
        BarColumn(),
        counts,
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, description=printable(what))

        yield show
