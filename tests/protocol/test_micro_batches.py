"""Decisions on the state rows of a query that has written under several transactional.ids."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from txnlog.errors import CheckpointError, ConcurrentTransactionsError
from txnlog.protocol.metadata import LastBatch, Owner, TransactionMetadata
from txnlog.protocol.micro_batches import (
    has_committed,
    is_of_query,
    newest_row,
    prepare_forget_query,
    prepare_stop_query,
)
from txnlog.protocol.query_batches import QUERIES_MAX, remember_batch
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Done, Transition

QUERY = "q"


def row(
    *, run: str = "r1", batch_id: int | None = 5, of_run: str = "r1", fenced: bool = False
) -> TransactionMetadata:
    last = {} if batch_id is None else {QUERY: LastBatch(batch_id=batch_id, run_id=of_run)}
    former = (run,) if fenced else ()
    owner = Owner(run_id=run, query_id=QUERY, batches=last, former_runs=former)
    return TransactionMetadata(
        transactional_id="a", producer_id=1, producer_epoch=3, timeout_ms=1, owner=owner
    )


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (row(), True),
        (row(of_run="r0"), False),  # died between owning the row and stopping its other ids
        (row(batch_id=None), False),
        (row(run="r2"), False),
        (row(fenced=True), False),
        (None, False),
    ],
)
def test_run_has_committed_only_after_its_first_commit(
    found: TransactionMetadata | None, known: bool
) -> None:
    """A run that owns its row may not have read the rows of the other ids yet (R58)."""
    assert has_committed(found, query_id=QUERY, run_id="r1") is known


def test_stop_fences_only_the_newest_run_of_the_query() -> None:
    """Another run of the query may have started between reading and writing (R58)."""

    def stop(found: TransactionMetadata | None) -> Transition | Done:
        return prepare_stop_query(found, query_id=QUERY, by="b", reason="why", now_ms=9)

    stopped = stop(row(run="r7"))
    assert isinstance(stopped, Transition)
    assert "r7" in stopped.next.owner.former_runs
    assert stopped.next.producer_epoch == 4
    others = replace(row(), owner=Owner(run_id="p", batches=row().owner.batches))
    for nothing in (None, row(fenced=True), others):
        assert stop(nothing) == Done(nothing)
    decided = stop(replace(row(), state=TransactionState.PREPARE_COMMIT, txn_epoch=3))
    assert isinstance(decided, Transition)
    assert decided.next.state is TransactionState.PREPARE_COMMIT
    assert "r1" in decided.next.owner.former_runs


def test_forget_drops_only_batches_with_a_newer_one_elsewhere() -> None:
    """Dropping the newest batch, or one committed since reading, would repeat it (R54)."""

    def forget(found: TransactionMetadata | None, below: int = 6) -> Transition | Done:
        return prepare_forget_query(found, query_id=QUERY, below=below, now_ms=9)

    forgotten = forget(row(fenced=True))
    assert isinstance(forgotten, Transition)
    assert (forgotten.next.owner.batches, forgotten.next.owner.query_id) == ({}, "")
    assert "r1" in forgotten.next.owner.former_runs, "its old run stays refused"
    for kept in (None, row(), row(fenced=True, batch_id=6), row(fenced=True, batch_id=7)):
        assert forget(kept) == Done(kept)
    with pytest.raises(ConcurrentTransactionsError):
        forget(replace(row(), state=TransactionState.PREPARE_COMMIT, txn_epoch=3))


def test_newest_row_is_that_of_the_highest_batch() -> None:
    """Rows of former ids remain until the next start."""
    rows = [row(batch_id=4), row(batch_id=7), row(batch_id=None), row(batch_id=6)]
    assert newest_row(rows, QUERY) is rows[1]
    assert newest_row(rows, "other") is None


def test_query_dropped_from_a_row_of_another_id_is_not_new() -> None:
    """Its replay under this id would be written twice (R55)."""
    owner = Owner(run_id="p")
    for number in range(QUERIES_MAX + 1):
        owner = remember_batch(owner, f"query {number}", LastBatch(batch_id=3))
    dropping = replace(row(), owner=owner)
    dropped = next(
        name
        for number in range(QUERIES_MAX + 1)
        if (name := f"query {number}") not in owner.batches
    )
    assert is_of_query(dropping, dropped)
    with pytest.raises(CheckpointError, match="no longer known"):
        newest_row([row(), dropping], dropped)
    found = prepare_forget_query(dropping, query_id=dropped, below=9, now_ms=9)
    assert found == Done(dropping)
