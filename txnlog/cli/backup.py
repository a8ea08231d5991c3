"""`txnlog backup`: copy a root to another place while its clients write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txnlog.cli.session import session_of, typed_root
from txnlog.cli.times import format_time
from txnlog.text import printable

if TYPE_CHECKING:
    from txnlog.coordinator.copies import OnCopied

app = typer.Typer(add_completion=False)


@app.command()
def backup(
    context: typer.Context,
    root: Annotated[str, typer.Argument(help="The root that is copied.")],
    destination: Annotated[
        str, typer.Argument(help="An empty place, or one with an earlier copy of this root.")
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Verify every data file of the copy: read it whole.")
    ] = False,
) -> None:
    """Copy a root, as of one boundary between transactions, to another place. No writer is stopped.

    The copy is a root of its own. Where there is an earlier one, only new files are copied; one
    that was interrupted is continued. To restore, copy the copy. Delta tables of others are not
    copied.
    """
    session = session_of(context)
    session.root = typed_root(root)
    with _progress_bar() as progress:
        found = (
            session.admin().backup(typed_root(destination), deep=deep, progress=progress).result()
        )
    if session.is_json:
        import msgspec

        session.show_json(msgspec.to_builtins(found))
        return
    session.say(
        f"Copied {found.topics} topics, {found.groups} groups and {found.transactional_ids} "
        f"transactional ids as of {format_time(found.at_ms)}: {found.files} files, of which "
        f"{found.files_copied} are new ({found.bytes_copied} of {found.size_bytes} bytes)."
    )
    if found.tables:
        names = ", ".join(found.tables)
        session.say(f"Delta tables of others are not copied, nor enlisted there: {names}.")


@contextmanager
def _progress_bar() -> Iterator[OnCopied]:
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
