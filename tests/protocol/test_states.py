"""The table of valid transitions, and that every transition is in it."""

from __future__ import annotations

import pytest

from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import Manifest, Owner, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import VALID_PREVIOUS, TransactionResult, TransactionState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_expire,
    prepare_fence,
    prepare_init,
    prepare_time_out,
)

S = TransactionState

ALLOWED = {
    S.EMPTY: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    S.ONGOING: {S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    S.PREPARE_COMMIT: {S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    S.PREPARE_ABORT: {S.ONGOING},
    S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
    S.COMPLETE_ABORT: {S.PREPARE_ABORT},
    S.DEAD: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
}
"""Repeated by hand, so that a new state needs a decision here, too."""


def test_every_state_has_a_decision_about_its_predecessors() -> None:
    """A state without a decision is reachable from anywhere, or from nowhere (R25)."""
    assert set(ALLOWED) == set(VALID_PREVIOUS) == set(TransactionState)


@pytest.mark.parametrize("state", list(TransactionState))
def test_predecessors_of_each_state_are_as_decided(state: TransactionState) -> None:
    """One pair too many lets a decided transaction be decided again (R25)."""
    assert VALID_PREVIOUS[state] == ALLOWED[state]


def test_numbers_of_the_states_are_kafkas() -> None:
    """Kafka's tools and ours name states by number (R25)."""
    assert [(state.name, state.value) for state in S] == [
        ("EMPTY", 0),
        ("ONGOING", 1),
        ("PREPARE_COMMIT", 2),
        ("PREPARE_ABORT", 3),
        ("COMPLETE_COMMIT", 4),
        ("COMPLETE_ABORT", 5),
        ("DEAD", 6),
    ]


def test_each_state_is_open_decided_idle_or_dead() -> None:
    """A state in no class is never finished, timed out nor taken over (R25)."""
    idle = {state for state in S if state.is_idle}
    prepared = {state for state in S if state.is_prepared}
    assert idle == {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}
    assert prepared == {S.PREPARE_COMMIT, S.PREPARE_ABORT}
    assert set(S) - idle - prepared == {S.ONGOING, S.DEAD}


@pytest.mark.parametrize("result", list(TransactionResult))
def test_result_of_a_decided_state_is_the_requested_one(result: TransactionResult) -> None:
    """A helper would carry out the opposite of the decision (R31, R36)."""
    assert TransactionResult.of(result.prepared) is result
    assert TransactionResult.of(result.complete) is result
    assert result.complete in S
    assert VALID_PREVIOUS[result.complete] == {result.prepared}


@pytest.mark.parametrize("state", [s for s in S if s is not S.DEAD])
def test_no_request_makes_a_transition_outside_the_table(state: TransactionState) -> None:
    """A transition that does not check the table (R25)."""
    row = TransactionMetadata(
        transactional_id="id",
        producer_id=1,
        producer_epoch=5,
        txn_epoch=5 if state is S.ONGOING or state.is_prepared else 4,
        state=state,
        timeout_ms=1000,
        owner=Owner(run_id="me"),
    )
    holder = row.holder
    manifest = Manifest()
    requests = [
        lambda: prepare_init(
            row,
            transactional_id="id",
            new_producer_id=9,
            owner=Owner(run_id="other"),
            timeout_ms=1,
            now_ms=0,
        ),
        lambda: prepare_add_partitions(row, holder=holder, now_ms=0),
        lambda: prepare_add_partitions(row, holder=holder, manifest=manifest, now_ms=0),
        lambda: prepare_end(
            row, holder=holder, result=TransactionResult.COMMIT, manifest=manifest, now_ms=0
        ),
        lambda: prepare_end(row, holder=holder, result=TransactionResult.COMMIT, now_ms=0),
        lambda: prepare_end(row, holder=holder, result=TransactionResult.ABORT, now_ms=0),
        lambda: prepare_complete(row, transaction=ProducerIdAndEpoch(1, row.txn_epoch), now_ms=0),
        lambda: prepare_time_out(
            row, transaction=ProducerIdAndEpoch(1, row.txn_epoch), by="s", now_ms=0
        ),
        lambda: prepare_fence(row, above_epoch=5, by="s", reason="r", now_ms=0),
        lambda: prepare_expire(row, now_ms=0),
    ]
    for request in requests:
        try:
            decision = request()
        except TxnLogError:
            continue
        if isinstance(decision, Done):
            assert decision.metadata is row
            continue
        assert isinstance(decision, Transition)
        if decision.next.state is state and state.is_prepared:
            # Another owner: the decision stays what it is.
            assert decision.operation == "FENCE"
            assert decision.next.transaction == row.transaction
        else:
            assert state in ALLOWED[decision.next.state], decision.operation
        assert decision.next.producer_epoch >= row.producer_epoch
        assert decision.next.producer_id == row.producer_id
