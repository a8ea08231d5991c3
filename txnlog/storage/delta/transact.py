"""The one loop that every write to a log goes through: refresh, decide, commit, and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txnlog.errors import CommitStateUnknownError, ConcurrentTransactionsError, TxnLogError
from txnlog.process.clock import backoff_ms
from txnlog.storage.delta.delta_log import Committed, DeltaLog, Outcome, Unknown

D = TypeVar("D")

ATTEMPTS_MAX = 1_000
UNKNOWNS_MAX = 3
"""How often in one call a commit may end Unknown (up to half a minute each) before it gives up."""


def transact(log: DeltaLog, decide: Callable[[], D], commit: Callable[[D], Outcome | None]) -> D:
    """Decide on the newest state of a log and commit it; from the start after a conflict.

    `decide` is pure, on the log's view, and must say that its effect is there when it is, so that
    a lost reply is settled by deciding again; not where the log has forgotten since what would say
    so. `commit` writes a decision, and gives None for one
    that has nothing to write. Where the log is likely current the first try leaves out the
    refresh: then only a commit that lands is believed.
    Raises what both raise; CommitStateUnknownError when a commit may have landed, or may yet, even
    if a later try was refused: that refusal is no "no" to the earlier one.
    """
    unknowns = 0
    forgotten_at = 0
    for attempt in range(ATTEMPTS_MAX):
        guess = attempt == 0 and log.likely_current
        try:
            if not guess:
                log.refresh()
            if unknowns and log.forgotten_at != forgotten_at:
                raise _unknown(log, None)
            decision = decide()
            outcome = commit(decision)
        except TxnLogError as error:
            if guess:
                continue
            if unknowns:
                raise _unknown(log, error) from error
            raise
        if isinstance(outcome, Committed) or (outcome is None and not guess):
            return decision
        if isinstance(outcome, Unknown):
            if not unknowns:
                forgotten_at = log.forgotten_at
            unknowns += 1
            if unknowns == UNKNOWNS_MAX:
                break
        if outcome is not None:
            log.store.clock.sleep_ms(backoff_ms(attempt))
    if unknowns:
        raise _unknown(log, None)
    raise ConcurrentTransactionsError(
        f"{log.path}: lost {ATTEMPTS_MAX} races in a row for its log; try again.", table=log.path
    )


def _unknown(log: DeltaLog, error: TxnLogError | None) -> CommitStateUnknownError:
    last = "" if error is None else f" The last error: {error.message}"
    known = {} if error is None else error.context
    return CommitStateUnknownError(
        f"{log.path}: gave up before learning whether the commit landed; calling again settles "
        f"it.{last}",
        table=log.path,
        **{name: known[name] for name in ("store_error", "store_code") if name in known},
    )
