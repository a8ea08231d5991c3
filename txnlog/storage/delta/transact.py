"""The loop of every write to a log: refresh, decide, commit, and again after a conflict."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from txnlog.errors import CommitStateUnknownError, ConcurrentTransactionsError, TxnLogError
from txnlog.protocol.contention import retry_ms
from txnlog.storage.delta.delta_log import Committed, DeltaLog, Outcome, Unknown

D = TypeVar("D")

CONFLICTS_MAX = 1_000
"""Maximum number of commits of one call that others win; waits are those of `retry_ms`."""
UNKNOWNS_MAX = 3
"""Maximum number of commits of one call that end Unknown (up to half a minute each)."""


def transact(
    log: DeltaLog,
    decide: Callable[[], D],
    commit: Callable[[D], Outcome | None],
    *,
    refresh: Callable[[], object] | None = None,
    guesses: bool = True,
) -> D:
    """Decide on the newest state of a log and commit the decision; again after a conflict.

    `decide` is pure, on the log's view, and must recognise its own effect, so that a lost reply is
    settled by deciding again; unless the log has since forgotten what shows the effect. `commit`
    writes a decision, and returns None if there is nothing to write. If the log is likely current,
    the first attempt skips the refresh: its result then counts only if a commit lands; not if it
    should not guess. `refresh` is called after a conflict in place of the log's, which it calls.
    Raises what both raise; CommitStateUnknownError if a commit may have landed, or may still land,
    even if a later attempt was refused: that refusal does not answer for the earlier one.
    """
    unknowns = 0
    forgotten_at = 0
    log.give_way()
    for attempt in range(CONFLICTS_MAX):
        guess = attempt == 0 and guesses and log.likely_current
        try:
            if refresh is not None and not (guesses and attempt == 0):
                refresh()
            elif not guess:
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
            latency_ms = log.store.latency.ms
            wait_ms = retry_ms(attempt, latency_ms=latency_ms, jitter=random.random())
            log.store.clock.sleep_ms(wait_ms)
    if unknowns:
        raise _unknown(log, None)
    raise ConcurrentTransactionsError(
        f"{log.path}: {CONFLICTS_MAX} commits in a row had a conflict; try again.", table=log.path
    )


def _unknown(log: DeltaLog, error: TxnLogError | None) -> CommitStateUnknownError:
    last = "" if error is None else f" The last error: {error.message}"
    context = {} if error is None else error.context
    return CommitStateUnknownError(
        f"{log.path}: whether the commit landed is still unknown; the same call again settles "
        f"it.{last}",
        table=log.path,
        **{name: context[name] for name in ("store_error", "store_code") if name in context},
    )
