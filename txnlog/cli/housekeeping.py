"""`txnlog housekeeping`: one of many that may run; one works."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from txnlog.cli.session import session_of, stopped_by_signals
from txnlog.housekeeping import REMOVE_INTERVAL_MS_DEFAULT, Housekeeper, HousekeepingSettings
from txnlog.lease import LEASE_MS_DEFAULT
from txnlog.protocol.expiry import TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT
from txnlog.sweeper import INTERVAL_MS


def housekeeping(
    context: typer.Context,
    abort_interval_ms: Annotated[
        int,
        typer.Option(
            "--transaction.abort.timed.out.transaction.cleanup.interval.ms",
            help="How often transactions, offsets and members are looked at.",
            min=1,
        ),
    ] = INTERVAL_MS,
    remove_interval_ms: Annotated[
        int,
        typer.Option(
            "--transaction.remove.expired.transaction.cleanup.interval.ms",
            help="How often ids are looked at that nobody may use any more.",
            min=1,
        ),
    ] = REMOVE_INTERVAL_MS_DEFAULT,
    expiration_ms: Annotated[
        int,
        typer.Option(
            "--transactional.id.expiration.ms",
            help="An id without a transaction for so long is forgotten; not a streaming query's.",
            min=1,
        ),
    ] = TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT,
    lease_ms: Annotated[
        int, typer.Option(help="Another takes the work over after about so long.", min=1_000)
    ] = LEASE_MS_DEFAULT,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Do what needs no waiting, and end; time-outs need one that stays."
        ),
    ] = False,
) -> None:
    """Finish what dead processes left, time transactions out, forget old ids; until SIGTERM.

    Start it on as many machines as you like: a lease lets one work. Nothing depends on it; every
    client sweeps as well.
    """
    session = session_of(context)
    settings = HousekeepingSettings(
        abort_interval_ms=0 if once else abort_interval_ms,
        remove_interval_ms=remove_interval_ms,
        transactional_id_expiration_ms=expiration_ms,
        lease_ms=lease_ms,
    )
    keeper = Housekeeper(session.admin().cluster, settings)
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


def _log_to_stderr() -> None:
    logger = logging.getLogger("txnlog")
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
