"""`txnlog backup`: copy a root to another place while its clients write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txnlog.cli.session import Session, session_of, typed_root
from txnlog.cli.times import format_time
from txnlog.text import printable

if TYPE_CHECKING:
    from txnlog.coordinator.copies import CopyReport, OnCopied

app = typer.Typer(add_completion=False)

Origin = Annotated[str, typer.Argument(metavar="ROOT", help="The root that is copied.")]
Destination = Annotated[
    str, typer.Argument(help="An empty place, or one with an earlier copy of this root.")
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Verify every data file of the copy: read it whole.")
]


@app.command()
def backup(
    context: typer.Context, origin: Origin, destination: Destination, deep: Deep = False
) -> None:
    """Copy a root, as of one boundary between transactions, to another place. No writer is stopped.

    The copy is a root of its own. Where there is an earlier one, only new files are copied; one
    that was interrupted is continued. To restore, copy the copy. Delta tables of others are not
    copied.
    """
    session = session_of(context)
    session.root = typed_root(origin)
    with progress_bar() as progress:
        copying = session.admin().backup(typed_root(destination), deep=deep, progress=progress)
    show_copy(session, copying.result())


def show_copy(session: Session, found: CopyReport) -> None:
    """What was copied."""
    if session.is_json:
        session.show_json(dataclasses.asdict(found))
        return
    session.say(
        f"Copied {found.topics} topics, {found.groups} groups and {found.transactional_ids} "
        f"transactional ids as of {format_time(found.at_ms)}: {found.files} files with "
        f"{found.size_bytes} bytes, of which {found.files_copied} are new; {found.bytes_copied} "
        "bytes were moved."
    )
    if found.tables:
        names = ", ".join(found.tables)
        session.say(f"Delta tables of others are not copied, nor enlisted there: {names}.")


@contextmanager
def progress_bar() -> Iterator[OnCopied]:
    """A progress bar over the bytes on stderr, if stderr is a terminal."""
    console = Console(stderr=True)
    with Progress(
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)

        def on_copied(topic: str, done_bytes: int, total_bytes: int) -> None:
            what = printable(topic) if topic else "verifying"
            bar.update(task, completed=done_bytes, total=total_bytes, description=what)

        yield on_copied
