"""`txnlog tables`: enlist Delta tables of others, list, describe, republish and delist them."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.admin import TableDescription, WaitingPart
from txnlog.cli.session import Session, Watch, session_of
from txnlog.cli.times import format_time

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Delta tables of others that transactions may write to.",
)

LIST = ("Name", "Url", "TableId", "Since", "Version", "Waiting")
WAITING = ("TransactionalId", "ProducerId", "ProducerEpoch", "Decided", "Records", "Why")
NOTHING = "nothing prevents it: any client or housekeeping publishes it"

Name = Annotated[str, typer.Argument(help="Name of the table in this root.")]


@app.command()
def enlist(
    context: typer.Context,
    name: Name,
    url: Annotated[str, typer.Argument(help="Where the Delta table is: a path or a URL.")],
    staging: Annotated[
        str, typer.Option(help="hidden: below _txnlog; visible: where any VACUUM deletes files.")
    ] = "hidden",
) -> None:
    """Let transactions write to a Delta table.

    All its writers must create log files only if they are absent: see docs/limits.md.
    """
    session = session_of(context)
    session.admin().enlist_tables({name: url}, staging=staging)[name].result()
    session.say(f"Enlisted {name}.")


@app.command("list")
def list_all(context: typer.Context, watch: Watch = None) -> None:
    """The enlisted tables; Waiting: decided transactions that are not in it yet."""
    session = session_of(context)

    def show() -> None:
        found = session.admin().list_tables().result()
        session.show(LIST, [_row(session, table) for table in found])
        session.finish({table.name: table.error for table in found})

    session.watch(watch, show)


@app.command()
def describe(context: typer.Context, name: Name, watch: Watch = None) -> None:
    """The decided transactions that are not in a table yet, and what prevents it."""
    session = session_of(context)

    def show() -> None:
        found = session.admin().describe_tables([name])[name].result()
        if not session.is_json:
            session.show(LIST, [_row(session, found)])
        rows = [
            (
                part.transactional_id,
                part.producer_id,
                part.producer_epoch,
                part.decided_ms if session.is_json else format_time(part.decided_ms),
                part.num_records,
                part.why or NOTHING,
            )
            for part in found.waiting
        ]
        if rows or session.is_json:
            session.show(WAITING, rows)
        for part in found.waiting:
            if part.why:
                _advise(session, found, part)
        session.finish({found.name: found.error})

    session.watch(watch, show)


@app.command()
def republish(context: typer.Context, name: Name) -> None:
    """Publish again what other writers have overwritten, as `txnlog verify` finds it."""
    session = session_of(context)
    count = session.admin().republish_tables([name])[name].result()
    session.say(f"Published {count} transactions again in {name}.")


@app.command()
def restage(
    context: typer.Context,
    name: Name,
    drop_columns: Annotated[
        str, typer.Option(help="Columns that the table lost, whose values may be lost: a,b.")
    ] = "",
) -> None:
    """Write rows again that a table does not take any more, in the schema that it has now.

    They are of transactions that were decided before the table changed: describe shows them.
    """
    session = session_of(context)
    drop = [column for column in drop_columns.split(",") if column]
    count = session.admin().restage_tables([name], drop_columns=drop)[name].result()
    session.say(f"Restaged {count} transactions in {name}.")


@app.command()
def delist(context: typer.Context, name: Name) -> None:
    """Let no new transaction write to a table. Its data stays, also that below _txnlog."""
    session = session_of(context)
    session.admin().delist_tables([name])[name].result()
    session.say(f"Delisted {name}. The files below its folder _txnlog are part of the table.")


def _advise(session: Session, table: TableDescription, part: WaitingPart) -> None:
    """The ways out of a change that came between decision and publication."""
    for line in (
        "",
        f"The transaction of {part.transactional_id} waits. One of these ends it:",
        f"    Undo the change of {table.name}: any client, or housekeeping, publishes the rows.",
        "    Write the rows in the schema that it has now: "
        + session.pasted(f"txnlog tables restage {table.name}"),
        f"    Give the rows up: commit a txn of the appId {part.app_id} and the version "
        f"{part.producer_epoch} to it, by any Delta writer; see docs/howto/tables.md.",
    ):
        session.say(line)


def _row(session: Session, table: TableDescription) -> tuple[object, ...]:
    since = table.since_ms if session.is_json else format_time(table.since_ms)
    return table.name, table.url, table.table_id, since, table.version, len(table.waiting)
