"""`txnlog dump`: the contents of the logs, in the format of Kafka's DumpLogSegments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from txnlog.admin.dumps import Entry, dump_topic, dump_transaction
from txnlog.cli import completion
from txnlog.cli.session import Session, echo, session_of
from txnlog.cli.times import format_time
from txnlog.errors import TransactionalIdNotFoundError

app = typer.Typer(add_completion=False)


@app.command()
def dump(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Show the headers and markers of this topic.",
            autocompletion=completion.topics,
        ),
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            help="Show every state of this id.", autocompletion=completion.transactional_ids
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p")] = None,
    from_version: Annotated[int, typer.Option(help="First version of the log.", min=0)] = 0,
) -> None:
    """Show a topic's log, or the history of a transactional id, from the Delta log.

    Log clean-up deletes old commits, so the history begins at the oldest commit that is left.
    """
    session = session_of(context)
    if (topic is None) == (transactional_id is None):
        raise typer.BadParameter("Give either --topic or --transactional-id.")
    cluster = session.admin().cluster
    if topic is not None:
        _print(session, dump_topic(cluster, topic, partition=partition, from_version=from_version))
    elif transactional_id is not None and not _print(
        session, dump_transaction(cluster, transactional_id)
    ):
        raise TransactionalIdNotFoundError(
            f"The log has no commit of transactional.id {transactional_id!r}.",
            transactional_id=transactional_id,
        )


def _print(session: Session, entries: Iterator[Entry]) -> int:
    """Print one line per entry, also in JSON; returns the number of entries."""
    count = 0
    for entry in entries:
        count += 1
        if session.is_json:
            session.show_json(entry)
        else:
            echo(" ".join(f"{name}: {_text(name, value)}" for name, value in entry.items()))
    return count


def _text(name: str, value: object) -> object:
    if name == "timestampMs" and isinstance(value, int):
        return format_time(value)
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else value
