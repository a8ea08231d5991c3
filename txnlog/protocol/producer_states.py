"""The states of a producer and the one table of what may be called in each of them.

Mirrors org.apache.kafka.clients.producer.internals.TransactionManager.State. A producer without
transactional.id uses only IDLE, FATAL_ERROR and CLOSED. While a commit or an abort is under way,
or has timed out, the state says which of the two may be called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from txnlog.errors import (
    InvalidTxnStateError,
    TransactionAbortableError,
    TxnLogError,
)


class LifecycleState(Enum):
    """What a producer is doing."""

    IDLE = "without transactional.id"
    UNINITIALIZED = "not initialised"
    INITIALIZING = "initialising"
    READY = "between transactions"
    IN_TRANSACTION = "in a transaction"
    PREPARING = "preparing its transaction"
    PREPARED = "holding a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that failed"
    FATAL_ERROR = "in an error that it cannot leave"
    CLOSED = "closed"


class ProducerCall(Enum):
    """What a user can call."""

    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "produce()"
    SEND_OFFSETS = "send_offsets_to_transaction()"
    WRITE_TABLE = "append() or overwrite()"
    PREPARE = "prepare_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    COMPLETE = "complete_transaction()"


S = LifecycleState
C = ProducerCall

# (state, call) -> the state while the call runs; every other pair is refused.
CALLS: Mapping[tuple[LifecycleState, ProducerCall], LifecycleState] = {
    (S.IDLE, C.SEND): S.IDLE,
    (S.UNINITIALIZED, C.INIT): S.INITIALIZING,
    (S.INITIALIZING, C.INIT): S.INITIALIZING,
    (S.READY, C.BEGIN): S.IN_TRANSACTION,
    (S.IN_TRANSACTION, C.SEND): S.IN_TRANSACTION,
    (S.IN_TRANSACTION, C.SEND_OFFSETS): S.IN_TRANSACTION,
    (S.IN_TRANSACTION, C.WRITE_TABLE): S.IN_TRANSACTION,
    (S.IN_TRANSACTION, C.PREPARE): S.PREPARING,
    (S.IN_TRANSACTION, C.COMMIT): S.COMMITTING,
    (S.IN_TRANSACTION, C.ABORT): S.ABORTING,
    (S.PREPARING, C.PREPARE): S.PREPARING,
    (S.PREPARING, C.ABORT): S.ABORTING,
    (S.PREPARED, C.COMMIT): S.COMMITTING,
    (S.PREPARED, C.ABORT): S.ABORTING,
    (S.PREPARED, C.COMPLETE): S.PREPARED,
    (S.COMMITTING, C.COMMIT): S.COMMITTING,
    (S.COMMITTING, C.COMPLETE): S.COMMITTING,
    (S.ABORTING, C.ABORT): S.ABORTING,
    (S.ABORTING, C.COMPLETE): S.ABORTING,
    (S.ABORTABLE_ERROR, C.ABORT): S.ABORTING,
}

# state -> the states it may be entered from; FATAL_ERROR and CLOSED from every one.
VALID_PREVIOUS: Mapping[LifecycleState, frozenset[LifecycleState]] = {
    S.IDLE: frozenset({S.IDLE}),
    S.UNINITIALIZED: frozenset(),
    S.INITIALIZING: frozenset({S.UNINITIALIZED, S.INITIALIZING}),
    S.READY: frozenset({S.INITIALIZING, S.COMMITTING, S.ABORTING}),
    S.IN_TRANSACTION: frozenset({S.READY, S.IN_TRANSACTION}),
    S.PREPARING: frozenset({S.IN_TRANSACTION, S.PREPARING}),
    S.PREPARED: frozenset({S.INITIALIZING, S.PREPARING, S.PREPARED}),
    S.COMMITTING: frozenset({S.IN_TRANSACTION, S.PREPARED, S.COMMITTING}),
    S.ABORTING: frozenset(
        {S.IN_TRANSACTION, S.PREPARING, S.PREPARED, S.ABORTABLE_ERROR, S.ABORTING}
    ),
    S.ABORTABLE_ERROR: frozenset({S.IN_TRANSACTION, S.PREPARING, S.COMMITTING, S.ABORTABLE_ERROR}),
    S.FATAL_ERROR: frozenset(S) - {S.CLOSED},
    S.CLOSED: frozenset(S),
}

# What to do instead, as the end of the sentence "This producer is <state>: ...".
ADVICE: Mapping[LifecycleState, str] = {
    S.IDLE: "set transactional.id to use transactions, or just call produce() and flush()",
    S.UNINITIALIZED: "call init_transactions() first",
    S.INITIALIZING: "call init_transactions() again, it has not succeeded yet",
    S.READY: "call begin_transaction()",
    S.IN_TRANSACTION: "call produce(), commit_transaction() or abort_transaction()",
    S.PREPARING: "call prepare_transaction() again, or abort_transaction()",
    S.PREPARED: "call complete_transaction(), commit_transaction() or abort_transaction()",
    S.COMMITTING: "call commit_transaction() again; only that can settle whether it committed",
    S.ABORTING: "call abort_transaction() again, it has not succeeded yet",
    S.ABORTABLE_ERROR: "call abort_transaction(), then begin another transaction",
    S.FATAL_ERROR: "close it and make a new one",
    S.CLOSED: "make a new one",
}
del S, C


def prepare_call(state: LifecycleState, call: ProducerCall) -> LifecycleState:
    """The state while `call` runs. Raises InvalidTxnStateError that names what to call (R39)."""
    entered = CALLS.get((state, call))
    if entered is None:
        raise InvalidTxnStateError(
            f"{call.value} cannot be called now. This producer is {state.value}: {ADVICE[state]}.",
            state=state.name,
            call=call.value,
        )
    return entered


def prepare_move(state: LifecycleState, to: LifecycleState) -> LifecycleState:
    """The state after an outcome. A pair that is not in the table is a bug, and refused."""
    if state not in VALID_PREVIOUS[to]:
        raise InvalidTxnStateError(
            f"A producer that is {state.value} cannot become {to.value}.", state=state.name
        )
    return to


def failed_state(error: TxnLogError, state: LifecycleState) -> LifecycleState:
    """The state after an error that is not retriable; an idempotent producer stays IDLE."""
    if error.fatal:
        return LifecycleState.FATAL_ERROR
    return state if state is LifecycleState.IDLE else LifecycleState.ABORTABLE_ERROR


def failed_call(error: TxnLogError, state: LifecycleState) -> TxnLogError:
    """The error that a call raises in `state`: its flags say what that state allows.

    While a commit is decided, or may be, only commit_transaction() may follow, so its error says
    "repeat" (R39). Elsewhere no error says "abort" where that is not allowed.
    """
    if state is LifecycleState.ABORTABLE_ERROR:
        return error if error.abortable else failed_transaction(error)
    if state is LifecycleState.COMMITTING and not error.fatal:
        return error.replace(abortable=False, retriable=True)
    return error.replace(abortable=False) if error.abortable else error


def failed_transaction(error: TxnLogError | None) -> TransactionAbortableError:
    """The error of every call but abort in a transaction that failed with `error`."""
    why = "" if error is None else f" It failed with {type(error).__name__}: {error.message}"
    return TransactionAbortableError(
        f"The transaction has failed. Call abort_transaction(), then begin another one.{why}"
    )
