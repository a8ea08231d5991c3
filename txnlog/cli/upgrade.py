"""`txnlog upgrade`: rewrite a root of an earlier format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from txnlog.admin import AdminClient
from txnlog.admin.upgrade import WATCH_MS_DEFAULT
from txnlog.cli.session import session_of, warn

app = typer.Typer(add_completion=False)

_SHARDS = "offsets.topic.num.partitions"


@app.command()
def upgrade(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; write nothing.")
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(f"--{_SHARDS}", help="Number of shards of the consumer offsets.", min=1),
    ] = None,
    watch_seconds: Annotated[
        int,
        typer.Option(help="Refuse if any client writes within this time.", min=0),
    ] = WATCH_MS_DEFAULT // 1000,
) -> None:
    """Rewrite a root of an earlier format. Stop all its clients first.

    A client that still has the root open can no longer commit anything afterwards, and says so. An
    upgrade that was interrupted is continued by the next; repeating it does no harm.
    """
    session = session_of(context)
    config = session.config()
    if shards is not None:
        config[_SHARDS] = shards

    def on_step(text: str, done: int, count: int) -> None:
        if not session.is_json:
            warn(f"{text} ({done}/{count})")

    client = AdminClient(config)
    watch_ms = watch_seconds * 1000
    found = client.upgrade(dry_run=dry_run, watch_ms=watch_ms, on_step=on_step).result()
    if session.is_json:
        session.show_json(asdict(found))
        return
    for step in found.steps:
        session.say(f"would {step}" if dry_run else step)
    kept = f"{found.transactions} transactions keep their offsets"
    counts = f"{found.groups} groups, {found.pending} pending entries, {kept}"
    if not found.steps:
        session.say(f"The root has format {found.format} already: nothing to do.")
    elif dry_run:
        session.say(f"Format {found.format}: {counts}. Nothing was written.")
    else:
        session.say(f"The root has format {found.format} now: {counts}.")
