"""`txnlog backup`: copy a root to another place while its clients write."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.progress import copying_bar
from txnlog.cli.session import Session, session_of, typed_root
from txnlog.cli.times import format_time

if TYPE_CHECKING:
    from txnlog.coordinator.copies import CopyReport

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
    with copying_bar() as progress:
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
