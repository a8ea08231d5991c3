"""The producer's state machine: one table, every pair decided, errors that name the next call."""

from __future__ import annotations

import itertools

import pytest

from txnlog.errors import (
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TopicAuthorizationError,
    UnknownTopicIdError,
)
from txnlog.protocol.producer_states import (
    ADVICE,
    CALLS,
    VALID_PREVIOUS,
    LifecycleState,
    ProducerCall,
    failed_state,
    prepare_call,
    prepare_move,
)

S = LifecycleState


def test_table_has_an_answer_for_every_state() -> None:
    """A state added without a decision about it must not go unnoticed (R39)."""
    assert set(ADVICE) == set(VALID_PREVIOUS) == set(S)


@pytest.mark.parametrize(("state", "call"), list(itertools.product(S, ProducerCall)))
def test_call_is_allowed_by_the_table_or_refused_with_advice(
    state: LifecycleState, call: ProducerCall
) -> None:
    """The error of a call out of order names the call to make instead (R39)."""
    if (state, call) in CALLS:
        entered = prepare_call(state, call)
        assert prepare_move(state, entered) is entered
        return
    with pytest.raises(InvalidTxnStateError) as refused:
        prepare_call(state, call)
    assert ADVICE[state] in refused.value.message
    assert call.value in refused.value.message


def test_advice_names_a_call_that_is_allowed() -> None:
    """Advice to make a call that is refused, too, would be useless (R39)."""
    for state in set(S) - {S.IDLE, S.FATAL_ERROR, S.CLOSED}:
        first = next(call for call in ProducerCall if f"{call.value}" in ADVICE[state])
        assert (state, first) in CALLS, state


def test_after_a_commit_only_commit_and_after_an_abort_only_abort() -> None:
    """A commit that timed out cannot become an abort, nor the reverse (R41)."""
    ends = {ProducerCall.COMMIT, ProducerCall.ABORT, ProducerCall.BEGIN, ProducerCall.SEND}
    allowed = {state: {call for call in ends if (state, call) in CALLS} for state in S}
    assert allowed[S.COMMITTING] == {ProducerCall.COMMIT}
    assert allowed[S.ABORTING] == {ProducerCall.ABORT}
    assert allowed[S.ABORTABLE_ERROR] == {ProducerCall.ABORT}
    assert not allowed[S.FATAL_ERROR]


def test_moves_outside_the_table_are_refused() -> None:
    """A commit becomes an abort only after an error that asks for it (R41)."""
    for state, to in [(S.COMMITTING, S.ABORTING), (S.ABORTING, S.COMMITTING), (S.CLOSED, S.READY)]:
        with pytest.raises(InvalidTxnStateError):
            prepare_move(state, to)


@pytest.mark.parametrize(
    ("error", "state", "expected"),
    [
        (ProducerFencedError("x"), S.IN_TRANSACTION, S.FATAL_ERROR),
        (UnknownTopicIdError("x"), S.IN_TRANSACTION, S.ABORTABLE_ERROR),
        (TopicAuthorizationError("x"), S.IN_TRANSACTION, S.ABORTABLE_ERROR),
        (UnknownTopicIdError("x"), S.IDLE, S.IDLE),
        (OutOfOrderSequenceError("x"), S.IDLE, S.FATAL_ERROR),
    ],
)
def test_errors_make_a_producer_abortable_or_end_it(
    error: Exception, state: LifecycleState, expected: LifecycleState
) -> None:
    """Fenced is fatal; one topic that cannot be written is not (R42)."""
    assert failed_state(error, state) is expected  # type: ignore[arg-type]
