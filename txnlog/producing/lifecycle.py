"""A producer's state, the error that it failed with, and the calls that both allow.

What each state allows is the table in txnlog.protocol.producer_states. The accumulator's lock
guards state and error: whether a record may be appended changes together with the state.
"""

from __future__ import annotations

from collections.abc import Callable

from txnlog.errors import ClientStateError, InvalidTxnStateError, TxnLogError
from txnlog.process.forking import refusal
from txnlog.producing.accumulator import Accumulator, interrupting
from txnlog.protocol.producer_states import (
    LifecycleState,
    ProducerCall,
    failed_state,
    failed_transaction,
    prepare_call,
    prepare_move,
)

_OPEN = frozenset({LifecycleState.IDLE, LifecycleState.IN_TRANSACTION})
"""States in which records are accepted."""

_ABORTED_BY_CLOSE = frozenset(
    {
        LifecycleState.IN_TRANSACTION,
        LifecycleState.PREPARING,
        LifecycleState.ABORTING,
        LifecycleState.ABORTABLE_ERROR,
    }
)
_DURING = {
    ProducerCall.BEGIN: (LifecycleState.READY,),
    ProducerCall.SEND_OFFSETS: (LifecycleState.IN_TRANSACTION,),
    ProducerCall.WRITE_TABLE: (LifecycleState.IN_TRANSACTION,),
    ProducerCall.PREPARE: (LifecycleState.PREPARING, LifecycleState.PREPARED),
    ProducerCall.COMMIT: (LifecycleState.COMMITTING,),
    ProducerCall.ABORT: (LifecycleState.ABORTING,),
}
"""The states in which a call may act that has waited for other threads' calls."""

_PURGEABLE = _OPEN | {LifecycleState.ABORTABLE_ERROR}


class Lifecycle:
    """The state of one producer. Any thread may call it."""

    def __init__(self, accumulator: Accumulator, *, is_transactional: bool) -> None:
        self._accumulator = accumulator
        self._error: TxnLogError | None = None
        self._is_forked = False
        self._number = 0
        self._ended: tuple[int, ProducerCall] | None = None
        self._set(LifecycleState.UNINITIALIZED if is_transactional else LifecycleState.IDLE)

    @property
    def state(self) -> LifecycleState:
        return self._state

    @property
    def transaction(self) -> int:
        """The number of the transaction that began last: 0 before the first."""
        return self._number

    @property
    def is_forked(self) -> bool:
        """Whether the producer belongs to the parent of this process."""
        return self._is_forked

    @property
    def is_over(self) -> bool:
        """Whether the producer is closed, or belongs to the parent of this process."""
        return self._is_forked or self._state is LifecycleState.CLOSED

    @property
    def must_abort_on_close(self) -> bool:
        """Whether a transaction is open that is neither prepared nor being committed."""
        return self._state in _ABORTED_BY_CLOSE

    @property
    def may_purge(self) -> bool:
        """Whether records may be discarded: none of them is being committed or prepared."""
        return self._state in _PURGEABLE

    def check_usable(self) -> None:
        """Raises ForkedProcessError, ClientStateError."""
        if self._is_forked:
            raise refusal("producer")
        if self._state is LifecycleState.CLOSED:
            raise ClientStateError("This producer is closed. Make a new one.")
        if self._accumulator.is_locked_here:
            raise interrupting()

    def check_call(self, call: ProducerCall) -> LifecycleState:
        """The state while `call` runs.

        Raises the producer's own error in an error state (R39, R42), else InvalidTxnStateError.
        """
        error = self._error
        if self._state is LifecycleState.FATAL_ERROR and error is not None:
            raise error.replace() from error
        if self._state is LifecycleState.ABORTABLE_ERROR and call is not ProducerCall.ABORT:
            raise failed_transaction(error) from error
        return prepare_call(self._state, call)

    def enter(self, call: ProducerCall, *, of: int | None = None) -> int:
        """Begin a call, in the state that the table has for it. Raises as both checks do.

        Returns the number of the transaction, which is `of`, if given: a call that has waited for
        other threads must not act on the next transaction.
        """
        self.check_usable()
        with self._accumulator.lock:
            entered = self.check_call(call)
            if of not in (None, self._number):
                raise _over(call, self._state)
            self._set(entered)
            return self._number

    def begin(self, reset: Callable[[], object]) -> None:
        """Enter a new transaction, after `reset`, unless another thread has. Raises as `enter`."""
        self.check_usable()
        with self._accumulator.lock:
            entered = self.check_call(ProducerCall.BEGIN)
            reset()
            self._set(entered, self._number + 1)

    def check_transaction(self, call: ProducerCall, number: int) -> None:
        """Raises InvalidTxnStateError if another transaction has begun since the call did."""
        if number != self._number:
            raise _over(call, self._state)

    def has_ended(self, call: ProducerCall, number: int) -> bool:
        """Whether another thread's call did the same while this one waited for `io`."""
        if call is ProducerCall.INIT:
            return self._state in (LifecycleState.READY, LifecycleState.PREPARED)
        if call is ProducerCall.ABORT and number < self._number:
            # Nothing else ends a transaction whose abort has begun.
            return True
        return not self._may_act(call, number) and self._ended == (number, call)

    def overtaken(self, call: ProducerCall, number: int) -> TxnLogError | None:
        """What refuses a call that has waited for `io`, while other threads' calls were made."""
        if self._may_act(call, number):
            return None
        try:
            self.check_call(call)
        except TxnLogError as error:
            return error
        return _over(call, self._state) if call in _DURING else None

    def _may_act(self, call: ProducerCall, number: int) -> bool:
        is_same = number == self._number or call is ProducerCall.BEGIN
        return is_same and self._state in _DURING.get(call, ())

    def move(self, to: LifecycleState) -> None:
        """Record the outcome of a call."""
        with self._accumulator.lock:
            self._set(prepare_move(self._state, to))

    def fail(self, error: TxnLogError, to: LifecycleState) -> None:
        """Record the error of a call, and the error state that it leads to."""
        self._error = error
        self.move(to)

    def fail_send(self, error: TxnLogError) -> None:
        """Record a permanently failed send: no record is accepted, a commit raises it (R40)."""
        with self._accumulator.lock:
            if self._error is None:
                self._error = error
            if self._state in _OPEN:
                self._set(failed_state(error, self._state))

    def end_transaction(self, error: TxnLogError | None) -> None:
        """Record the end of a transaction; `error` prevents another one."""
        is_commit = self._state is LifecycleState.COMMITTING
        self._error = error
        self._ended = self._number, ProducerCall.COMMIT if is_commit else ProducerCall.ABORT
        self.move(LifecycleState.READY)
        if error is not None:
            self.move(LifecycleState.FATAL_ERROR)

    def close(self) -> None:
        with self._accumulator.lock:
            self._set(LifecycleState.CLOSED)

    def forked(self) -> None:
        """In the child of a fork: refuse every call from now on."""
        self._is_forked = True

    def _set(self, to: LifecycleState, number: int | None = None) -> None:
        """The accumulator's lock is held."""
        is_open, number = to in _OPEN, self._number if number is None else number
        self._state, self._number, self._accumulator.is_open = to, number, is_open


def _over(call: ProducerCall, state: LifecycleState) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"{call.value} did nothing: while it waited, calls of other threads ended its transaction. "
        "Begin, send, and end a transaction in one thread, or wait for the calls of the others.",
        state=state.name,
        call=call.value,
    )
