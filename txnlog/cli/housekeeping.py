"""`txnlog housekeeping`: many processes may run it; one of them works."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from txnlog.cli.housekeeping_status import show_status
from txnlog.cli.session import Session, session_of, stopped_by_signals
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.protocol.expiry import (
    PRODUCER_ID_EXPIRATION_MS_MIN,
    TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
)
from txnlog.protocol.vacuum import VACUUM_AGE_MS_MIN, Deletable
from txnlog.storage.delta.log_settings import LOG_RETENTION_MS_MIN

_DEFAULT = HousekeepingSettings()

app = typer.Typer(add_completion=False)


@app.command()
def housekeeping(
    context: typer.Context,
    abort_interval_ms: Annotated[
        int,
        typer.Option(
            "--transaction.abort.timed.out.transaction.cleanup.interval.ms",
            help="Interval of settling transactions, forgetting tickets, and expelling members.",
            min=1,
        ),
    ] = _DEFAULT.abort_interval_ms,
    remove_interval_ms: Annotated[
        int,
        typer.Option(
            "--transaction.remove.expired.transaction.cleanup.interval.ms",
            help="Interval of expiring ids and producers, and of log clean-up.",
            min=1,
        ),
    ] = _DEFAULT.remove_interval_ms,
    retention_interval_ms: Annotated[
        int,
        typer.Option(
            "--log.retention.check.interval.ms",
            help="Interval of checking for files past retention.ms and retention.bytes.",
            min=1,
        ),
    ] = _DEFAULT.retention_check_interval_ms,
    cleaner_backoff_ms: Annotated[
        int,
        typer.Option(
            "--log.cleaner.backoff.ms",
            help="Wait between two rounds of compaction.",
            min=1,
        ),
    ] = _DEFAULT.cleaner_backoff_ms,
    expiration_ms: Annotated[
        int,
        typer.Option(
            "--transactional.id.expiration.ms",
            help="Expire ids without a transaction for this long; not those of streaming queries.",
            min=TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
        ),
    ] = _DEFAULT.transactional_id_expiration_ms,
    producer_expiration_ms: Annotated[
        int,
        typer.Option(
            "--producer.id.expiration.ms",
            help="Expire idempotent producers that wrote nothing for this long.",
            min=PRODUCER_ID_EXPIRATION_MS_MIN,
        ),
    ] = _DEFAULT.producer_id_expiration_ms,
    log_retention_ms: Annotated[
        int | None,
        typer.Option(
            "--delta.logRetentionDuration.ms",
            help="How long commits stay in the logs of all tables; minimum an hour, default a day.",
            min=LOG_RETENTION_MS_MIN,
        ),
    ] = None,
    vacuum_age_ms: Annotated[
        int,
        typer.Option(
            "--delta.deletedFileRetentionDuration.ms",
            help="How long removed and unreferenced files stay: longer than any reader and any "
            "transaction.",
            min=VACUUM_AGE_MS_MIN,
        ),
    ] = _DEFAULT.vacuum_age_ms,
    vacuum_interval_ms: Annotated[
        int, typer.Option(help="Interval of vacuum.", min=1)
    ] = _DEFAULT.vacuum_interval_ms,
    lease_ms: Annotated[
        int, typer.Option(help="Another process takes over after about this time.", min=1_000)
    ] = _DEFAULT.lease_ms,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Do every duty once and exit; time-outs need a long-running process."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="List what retention, log clean-up, expiry of producers and vacuum would remove.",
        ),
    ] = False,
    status: Annotated[
        bool,
        typer.Option(
            "--status",
            help="Show who holds the lease, the last run of each duty, and what is overdue.",
        ),
    ] = False,
) -> None:
    """Finish transactions of dead processes, time transactions out, compact, remove old files.

    It runs until SIGTERM, on as many machines as you like: a lease lets one of them work.
    Correctness does not depend on it; every client sweeps as well. Names of options that are cut
    off here are whole in a wide terminal, and in docs/cli.md.
    """
    session = session_of(context)
    if status:
        show_status(session, session.admin().describe_housekeeping().result())
        return
    settings = HousekeepingSettings(
        abort_interval_ms=abort_interval_ms,
        remove_interval_ms=remove_interval_ms,
        retention_check_interval_ms=retention_interval_ms,
        cleaner_backoff_ms=cleaner_backoff_ms,
        transactional_id_expiration_ms=expiration_ms,
        producer_id_expiration_ms=producer_expiration_ms,
        log_retention_ms=log_retention_ms,
        vacuum_age_ms=vacuum_age_ms,
        vacuum_interval_ms=vacuum_interval_ms,
        lease_ms=lease_ms,
    )
    keeper = Housekeeper(session.admin().cluster, settings)
    if dry_run:
        _show_deletable(session, keeper.find())
        return
    if not once:
        _log_to_stderr()
        with stopped_by_signals() as stop:
            keeper.run(stop)
        return
    try:
        done = keeper.run_once()
    finally:
        keeper.close()
    if done is None:
        session.say("Another process does the housekeeping.")
        return
    session.show(("DUTY", "COUNT"), list(done.items()))


def _show_deletable(session: Session, entries: list[Deletable]) -> None:
    columns = ("PATH", "REASON", "AGE-MS", "BYTES")
    session.show(
        columns, [(item.path, item.reason, item.age_ms, item.size_bytes) for item in entries]
    )
    total_bytes = sum(item.size_bytes for item in entries)
    session.say(f"{len(entries)} entries, {total_bytes} bytes. Nothing was removed.")


def _log_to_stderr() -> None:
    logger = logging.getLogger("txnlog")
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
