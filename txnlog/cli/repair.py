"""`txnlog repair`: bring a root that a power cut has damaged back to what is whole of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from txnlog.admin import AdminClient
from txnlog.cli.progress import tables_bar
from txnlog.cli.session import Session, ends_with, session_of
from txnlog.protocol.repair.losses import LostTransaction, RepairReport
from txnlog.protocol.shards import STATE_PREFIX
from txnlog.repairing.repair import WATCH_MS_DEFAULT

app = typer.Typer(add_completion=False)

TO_DO = 1


@app.command()
def repair(
    context: typer.Context,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without it nothing is written.")
    ] = False,
    watch_seconds: Annotated[
        int,
        typer.Option(help="Refuse if any client writes within this time.", min=0),
    ] = WATCH_MS_DEFAULT // 1000,
) -> None:
    """Bring all logs of a damaged root back together to what is whole of them.

    Stop all clients first: producers, consumers, queries, housekeeping. Without --yes it reads
    everything and says what it would do. What it takes away it keeps in a folder `__repaired-...`
    of the root. A repair that was interrupted is finished by the next. Exit code 0: nothing to do,
    or done; 1: there is something to do.
    """
    session = session_of(context)
    client = AdminClient(session.config())
    with tables_bar() as progress:
        found = client.repair(
            dry_run=not yes, watch_ms=watch_seconds * 1000, progress=progress
        ).result()
    with ends_with(TO_DO if found.is_needed and not found.is_done else 0):
        if session.is_json:
            session.show_json(_described(found))
        else:
            _show(session, found)


def _described(found: RepairReport) -> dict[str, Any]:
    report: dict[str, Any] = msgspec.to_builtins(found)
    for entry, one in zip(report["transactions"], found.transactions, strict=True):
        entry["outcome"] = one.outcome
    return report


def _show(session: Session, found: RepairReport) -> None:
    if not found.is_needed:
        session.say("All logs are whole and agree: nothing to repair.")
        return
    if found.interrupted and not found.is_done:
        session.say(f"A repair was interrupted ({found.interrupted}). --yes finishes it.")
        return
    would = "" if found.is_done else "would "
    for title, columns, rows in _tables(found):
        if rows:
            session.say(f"{title}:")
            session.show(columns, rows)
    if any(one.lost_commits and one.table.startswith(STATE_PREFIX) for one in found.damaged):
        session.say(
            "What lost commits of the transaction log decided is not known: other transactions of "
            "that time may be lost, or half, too."
        )
    if found.groups_behind:
        names = ", ".join(found.groups_behind)
        session.say(f"Groups whose newest offsets may be lost, so that they read again: {names}.")
    session.say(f"Tables that {would}change: {', '.join(found.changed) or 'none'}.")
    if found.is_done:
        session.say(f"What was taken away is in {found.folder}. Now run `txnlog verify --deep`.")
    else:
        session.say("Nothing was written. Stop all clients, then repeat this with --yes.")


def _tables(found: RepairReport) -> list[tuple[str, tuple[str, ...], list[tuple[object, ...]]]]:
    """Title, columns and rows of each list."""
    return [
        (
            "Damaged logs, of which what is whole begins a new one",
            ("TABLE", "KEPT-VERSION", "LOST-COMMITS", "NEW-VERSION"),
            [
                (one.table, _known(one.kept_version), one.lost_commits, _known(one.new_version))
                for one in found.damaged
            ],
        ),
        (
            "Offsets without records",
            ("TOPIC", "PARTITION", "FROM", "TO", "RECORDS", "GOES-ON-AT"),
            [
                (
                    one.topic,
                    one.partition,
                    one.first,
                    "?" if one.last is None else one.last,
                    "?" if one.records is None else one.records,
                    one.next_offset,
                )
                for one in found.offsets
            ],
        ),
        (
            "Transactions that are not as they were",
            (
                "TRANSACTIONAL-ID",
                "PRODUCER-ID",
                "EPOCH",
                "OUTCOME",
                "PUBLISHED-AGAIN",
                "LOST",
                "KEPT",
            ),
            [_row_of(one) for one in found.transactions],
        ),
        (
            "Offsets of groups that move",
            ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER"),
            [(one.group, one.topic, one.partition, one.before, one.after) for one in found.groups],
        ),
    ]


def _row_of(one: LostTransaction) -> tuple[object, ...]:
    return (
        one.transactional_id or None,
        one.producer_id,
        one.epoch if one.epoch == one.first_epoch else f"{one.first_epoch}..{one.epoch}",
        one.outcome,
        one.published or None,
        one.lost or None,
        one.kept or None,
    )


def _known(version: int) -> int | None:
    return None if version < 0 else version
