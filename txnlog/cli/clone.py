"""`txnlog clone`: copy a root within one file system or bucket, without moving data."""

from __future__ import annotations

import typer

from txnlog.cli.backup import Deep, Destination, Origin, show_copy
from txnlog.cli.progress import copying_bar
from txnlog.cli.session import session_of, typed_root

app = typer.Typer(add_completion=False)


@app.command()
def clone(
    context: typer.Context, origin: Origin, destination: Destination, deep: Deep = False
) -> None:
    """As backup, within one file system or bucket: no data is moved.

    On a local disk the data files are the same ones by another name, in an object store they are
    copied by the service. Either root may be written to, and deleted, without the other.
    """
    session = session_of(context)
    session.root = typed_root(origin)
    with copying_bar() as progress:
        copying = session.admin().clone(typed_root(destination), deep=deep, progress=progress)
    show_copy(session, copying.result())
