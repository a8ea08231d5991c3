"""Rows of a transaction that a table decides: who may do what with them, in each state."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.model.deciding import _BATCH, _FIRST, _MANIFEST, _TABLE
from txnlog.errors import (
    ConcurrentTransactionsError,
    CorruptLogError,
    InvalidTxnStateError,
)
from txnlog.protocol.metadata import Manifest, Owner, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.revocation import prepare_abort_open, prepare_revoke
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.stories import RowChange, tell
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_decided,
    prepare_end,
    prepare_fence,
    prepare_init,
    prepare_time_out,
)

NAME = ProducerIdAndEpoch(1, 0)
BY: dict[str, Any] = {"by": "test", "reason": "test", "now_ms": 5}


def end(row: TransactionMetadata, manifest: Manifest = _MANIFEST) -> Transition | Done:
    return prepare_end(
        row,
        holder=_FIRST.holder,
        result=TransactionResult.COMMIT,
        manifest=manifest,
        last_batch=_BATCH,
        now_ms=3,
    )


def asked() -> TransactionMetadata:
    made = end(_FIRST)
    assert isinstance(made, Transition)
    return made.next


def test_commit_with_a_deciding_table_asks_first() -> None:
    """The batch is recorded with the decision, not before (R77)."""
    row = asked()
    assert (row.state, row.transaction) == (TransactionState.ONGOING, NAME)
    assert (row.decider, row.is_ending, row.tables) == (_TABLE, True, ())
    assert row.owner.last_batch is None
    assert end(row) == Done(row)
    with pytest.raises(InvalidTxnStateError, match="other parts"):
        end(row, replace(_MANIFEST, tables=(replace(_TABLE, part="q"),)))


@pytest.mark.parametrize("result", list(TransactionResult))
def test_what_the_table_decides_is_prepared_once(result: TransactionResult) -> None:
    """Also under a new owner, whose query has that batch (R77)."""
    taken = prepare_init(
        asked(),
        transactional_id="t",
        new_producer_id=2,
        owner=Owner(run_id="next"),
        timeout_ms=1,
        now_ms=4,
    )
    assert isinstance(taken, Transition)
    row = taken.next
    assert (row.decider, row.transaction, row.producer_epoch) == (_TABLE, NAME, 1)
    made = prepare_decided(row, transaction=NAME, result=result, now_ms=6)
    assert isinstance(made, Transition)
    is_commit = result is TransactionResult.COMMIT
    assert made.next.state is result.prepared
    assert made.next.pending == (_MANIFEST if is_commit else Manifest())
    assert made.next.owner.last_batch == (_BATCH if is_commit else None)
    again = prepare_decided(made.next, transaction=NAME, result=result, now_ms=7)
    assert again == Done(made.next)
    other = prepare_decided(row, transaction=ProducerIdAndEpoch(1, 1), result=result, now_ms=7)
    assert other == Done(row)


def test_nobody_aborts_what_a_table_is_to_decide() -> None:
    """Not a time-out, a fence, an operator or the owner (R77)."""
    row = asked()
    assert prepare_time_out(row, transaction=NAME, by="test", now_ms=5) == Done(row)
    for made in (
        prepare_fence(row, above_epoch=7, **BY),
        prepare_revoke(row, run_id="first", **BY),
    ):
        assert isinstance(made, Transition)
        assert (made.next.decider, made.next.transaction) == (_TABLE, NAME)
    with pytest.raises(ConcurrentTransactionsError):
        prepare_abort_open(row, producer_id=1, txn_epoch=0, **BY)
    with pytest.raises(ConcurrentTransactionsError):
        prepare_end(row, holder=_FIRST.holder, result=TransactionResult.ABORT, now_ms=5)
    with pytest.raises(ConcurrentTransactionsError):
        prepare_add_partitions(row, holder=_FIRST.holder, now_ms=5)


@pytest.mark.parametrize(
    "pending",
    [
        '{"tables":[TABLE,TABLE]}',
        '{"prepared_by_client":true,"tables":[TABLE]}',
    ],
)
def test_row_with_two_deciders_or_one_in_two_phases_is_refused(pending: str) -> None:
    """Such a row could not be ended: it is damaged, or of another version (R38, R77)."""
    values = asked().to_values()
    [table] = values["pending"].split('"tables":[')[1].split("]")[:1]
    values["pending"] = pending.replace("TABLE", table)
    with pytest.raises(CorruptLogError, match="one table only"):
        TransactionMetadata.from_values(values, path="p", source="s")


@pytest.mark.parametrize("result", list(TransactionResult))
def test_story_says_that_a_table_decides(result: TransactionResult) -> None:
    """Who reads it must not look for the decision in the owner's log (R77)."""
    taken = prepare_fence(asked(), above_epoch=0, **BY)
    assert isinstance(taken, Transition)
    ended = prepare_decided(taken.next, transaction=NAME, result=result, now_ms=6)
    assert isinstance(ended, Transition)
    changes = [
        RowChange(at_ms, at_ms, "t", row, "")
        for at_ms, row in enumerate([_FIRST, asked(), taken.next, ended.next])
    ]
    _, left, fenced, decided = [sentence.text for sentence in tell(changes)]
    assert left.startswith("It left the transaction of epoch 0 to table f to decide, in table f")
    assert "a table, 'f', decides that of epoch 0" in fenced
    what = "commit" if result is TransactionResult.COMMIT else "abort"
    assert decided.startswith(f"Table f decided to {what} the transaction of epoch 0")
