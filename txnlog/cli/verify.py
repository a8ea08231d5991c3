"""`txnlog verify`: check everything below the root against the logs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txnlog.cli import completion
from txnlog.cli.progress import tables_bar
from txnlog.cli.session import Session, ends_with, fail, session_of
from txnlog.cli.times import parse_since_ms
from txnlog.errors import TxnLogError
from txnlog.protocol.verification.findings import Finding, FindingKind, Severity
from txnlog.verifying.report import Verification, VerifySettings, by_severity

app = typer.Typer(add_completion=False)

DAMAGED = 1
INCOMPLETE = 2
COLUMNS = ("SEVERITY", "KIND", "TABLE", "WHERE", "FOUND")


@app.command()
def verify(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Only this topic; may be repeated.",
            autocompletion=completion.topics,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Skip log and data files written before this time, as in 2026-01-31T12:00:00, or "
            "2h before now."
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read every data file: checksums, offsets, timestamps."),
    ] = False,
) -> None:
    """Check logs, files, offsets, transactions and groups; writes and repairs nothing.

    Exit code 0: no damage; 1: damage was found; 2: none was found, but not everything could be
    read. Safe while clients and housekeeping run.
    """
    session = session_of(context)
    settings = VerifySettings(
        topics=topic or None,
        since_ms=None if since is None else parse_since_ms("--since", since),
        deep=deep,
    )
    try:
        with tables_bar() as on_progress:
            found = session.admin().verify(settings, progress=on_progress).result()
    except TxnLogError as error:
        fail(error, is_json=session.is_json)
        raise typer.Exit(INCOMPLETE) from None
    with ends_with(DAMAGED if found.is_damaged else 0 if found.is_complete else INCOMPLETE):
        _show(session, found)


def _show(session: Session, found: Verification) -> None:
    findings = by_severity(found.findings)
    if session.is_json:
        session.show_json(
            {
                "damaged": found.is_damaged,
                "complete": found.is_complete,
                "tables": found.tables,
                "logFiles": found.log_files,
                "batches": found.batches,
                "dataFilesRead": found.data_files_read,
                "findings": [_entry(finding) for finding in findings],
                "counts": _counts(found),
                "errors": [{"table": table, "message": why} for table, why in found.errors],
            }
        )
        return
    if findings:
        rows = [(f.severity.value, f.kind.value, f.table, _where(f), f.what) for f in findings]
        session.show(COLUMNS, rows)
        _advise(session, findings)
    for table, why in found.errors:
        session.say(f"Could not read {table}: {why}")
    errors = sum(count for (kind, _), count in found.findings.counts.items() if _is_error(kind))
    warnings = sum(found.findings.counts.values()) - errors
    session.say(
        f"{found.tables} tables, {found.log_files} log files, {found.batches} batches, "
        f"{found.data_files_read} data files read: {errors} errors, {warnings} warnings."
    )


def _advise(session: Session, findings: list[Finding]) -> None:
    session.say("")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        alike = [finding for finding in findings if finding.kind is kind]
        session.say(f"{kind.value}: {alike[0].advice}")
        for command in dict.fromkeys(finding.command for finding in alike if finding.command):
            session.say(f"    {session.pasted(command)}")
    session.say("")


def _where(finding: Finding) -> str:
    """The most specific location of a finding."""
    place = finding.file or finding.subject
    parts = [place] if place else []
    if finding.partition >= 0:
        parts.append(f"partition {finding.partition}")
    if finding.last_offset >= 0:
        parts.append(f"offsets {finding.offset}..{finding.last_offset}")
    if finding.records >= 0:
        parts.append(f"{finding.records} records")
    if finding.version >= 0 and not finding.file:
        parts.append(f"version {finding.version}")
    return ", ".join(parts) or "-"


def _entry(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.name,
        "severity": finding.severity.value,
        "table": finding.table,
        "file": finding.file or None,
        "version": _none_if_negative(finding.version),
        "partition": _none_if_negative(finding.partition),
        "offset": _none_if_negative(finding.offset),
        "lastOffset": _none_if_negative(finding.last_offset),
        "records": _none_if_negative(finding.records),
        "subject": finding.subject or None,
        "found": finding.what,
        "advice": finding.advice,
        "command": finding.command or None,
    }


def _none_if_negative(number: int) -> int | None:
    return None if number < 0 else number


def _counts(found: Verification) -> dict[str, int]:
    counts: dict[str, int] = {}
    for (kind, _), count in sorted(found.findings.counts.items(), key=lambda item: item[0][1]):
        counts[kind.name] = counts.get(kind.name, 0) + count
    return counts


def _is_error(kind: FindingKind) -> bool:
    return Finding(kind=kind, table="", what="").severity is Severity.ERROR
