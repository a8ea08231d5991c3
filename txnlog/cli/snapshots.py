"""`txnlog snapshots`: take named snapshots of a root, list and drop them."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.session import session_of
from txnlog.cli.times import format_time, parse_duration_ms
from txnlog.errors import UnknownTableError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep all topics, tables and offsets as of one boundary between transactions.",
)

Name = Annotated[str, typer.Argument(help="Name of the snapshot.")]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    ttl: Annotated[
        str, typer.Option(help="How long it is kept, as in P30D, 12h or 90m.", show_default=True)
    ] = "7d",
) -> None:
    """Take a snapshot and keep it. No writer is stopped.

    Tables that cannot be in it are named on stderr, with exit code 1; the snapshot is kept.
    """
    session = session_of(context)
    ttl_ms = parse_duration_ms("--ttl", ttl)
    cluster = session.admin().cluster
    taken = cluster.snapshot(name, ttl_ms=ttl_ms)
    until = format_time(taken.at_ms + ttl_ms)
    session.say(
        f"Snapshot {name} has {len(taken.topics)} topics, {len(taken.tables)} tables and "
        f"{len(taken.offsets)} groups, and is kept until {until}."
    )
    if taken.missing:
        # The log has said why.
        raise typer.Exit(1)


@app.command("list")
def list_(context: typer.Context) -> None:
    """The snapshots that are kept."""
    session = session_of(context)
    session.show(
        ("NAME", "TAKEN", "EXPIRES"),
        [
            (name, format_time(pin.at_ms), format_time(pin.expires_ms))
            for name, pin in sorted(session.admin().cluster.snapshots().items())
        ],
    )


@app.command()
def describe(context: typer.Context, name: Name) -> None:
    """What a snapshot shows: versions of topics and tables, and the transactions left out."""
    session = session_of(context)
    found = session.admin().cluster.find_snapshot(name)
    topics = [
        ("topic", topic, one.version, len(one.excluded), "")
        for topic, one in sorted(found.topics.items())
    ]
    tables = [
        ("table", table, one.version, 0, one.url) for table, one in sorted(found.tables.items())
    ]
    session.show(("KIND", "NAME", "VERSION", "LEFT-OUT", "URL"), [*topics, *tables])
    session.finish({table: UnknownTableError(why) for table, why in found.missing.items()})


@app.command()
def drop(context: typer.Context, name: Name) -> None:
    """Keep a snapshot no longer; vacuum then deletes what only it has shown."""
    session = session_of(context)
    session.admin().cluster.drop_snapshot(name)
    session.say(f"Dropped snapshot {name}.")
