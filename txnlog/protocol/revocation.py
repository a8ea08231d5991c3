"""An operator fences a run or aborts a transaction from outside (R43). Each is one row write.

A deferred transaction is in no table before it is decided, so only its owner can be stopped: its
run is added to `former_runs`, and neither it nor a new worker of it can decide a transaction.
"""

from __future__ import annotations

from txnlog.errors import InvalidTxnStateError
from txnlog.protocol.fencing import refuse_prepared
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Done, Transition, prepare_fence


def prepare_revoke(
    row: TransactionMetadata | None, *, run_id: str, by: str, reason: str, now_ms: int
) -> Transition | Done:
    """Fence the run that owns the row, at any epoch; an open transaction aborts.

    A decided one stays, to be finished. Done when the run is fenced already, or another run owns
    the row.
    """
    if row is None or row.owner.run_id != run_id or run_id in row.owner.former_runs:
        return Done(row)
    return prepare_fence(row, above_epoch=row.producer_epoch, by=by, reason=reason, now_ms=now_ms)


def prepare_abort_open(
    row: TransactionMetadata | None,
    *,
    producer_id: int,
    txn_epoch: int,
    by: str,
    reason: str,
    now_ms: int,
) -> Transition | Done:
    """Abort the Ongoing transaction of this epoch and fence its owner; Done if aborted already.

    Raises InvalidTxnStateError when it is decided as a commit, or has ended, and
    ConcurrentTransactionsError for one that a table decides.
    """
    if row is None or row.producer_id != producer_id or row.txn_epoch != txn_epoch:
        raise _not_abortable("has ended", row)
    if row.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT):
        raise _not_abortable("has been decided as a commit", row)
    if row.state is not TransactionState.ONGOING:
        return Done(row)
    refuse_prepared(row)
    return prepare_fence(row, above_epoch=row.producer_epoch, by=by, reason=reason, now_ms=now_ms)


def _not_abortable(reason: str, row: TransactionMetadata | None) -> InvalidTxnStateError:
    name = "" if row is None else row.transactional_id
    return InvalidTxnStateError(
        f"The transaction of {name!r} {reason} and can no longer be aborted. To stop further "
        "writes, fence its producer.",
        transactional_id=name,
        state="" if row is None else row.state.name,
    )
