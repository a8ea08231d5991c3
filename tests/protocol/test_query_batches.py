"""The queries a row remembers: bounded, and a repeat is never accepted as new (R54, R55)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnlog.errors import CheckpointError
from txnlog.protocol.metadata import (
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from txnlog.protocol.micro_batches import is_committed
from txnlog.protocol.query_batches import QUERIES_MAX, may_be_forgotten, remember_batch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_complete,
    prepare_end,
    prepare_expire,
    prepare_init,
)

RUNS = itertools.count()


def taken(row: TransactionMetadata | None, query_id: str) -> TransactionMetadata:
    """A new run of the query owns the id."""
    decision = prepare_init(
        row,
        transactional_id="tx",
        new_producer_id=1,
        owner=Owner(run_id=f"run-{next(RUNS)}", query_id=query_id),
        timeout_ms=60_000,
        now_ms=0,
    )
    assert isinstance(decision, Transition)
    return decision.next


def committed(row: TransactionMetadata | None, query_id: str, batch_id: int) -> TransactionMetadata:
    """A query takes the id over and commits a batch."""
    row = taken(row, query_id)
    decision = prepare_end(
        row,
        holder=row.holder,
        result=TransactionResult.COMMIT,
        manifest=Manifest(),
        batch=(query_id, LastBatch(batch_id=batch_id)),
        now_ms=0,
    )
    assert isinstance(decision, Transition)
    done = prepare_complete(
        decision.next,
        transaction=ProducerIdAndEpoch(row.producer_id, decision.next.txn_epoch),
        now_ms=0,
    )
    assert isinstance(done, Transition)
    return done.next


def test_row_of_many_queries_stays_small_and_refuses_the_replay_of_one_it_has_dropped() -> None:
    """Each lost checkpoint is a new query under the old id; its batch 0 may be replayed any time
    later, and then only the row shows that it was committed (R55).
    """
    row = None
    sizes = []
    for number in range(4 * QUERIES_MAX):
        row = committed(row, f"query-{number:04}", 0)
        sizes.append(len(row.to_values()["owner"]))
    assert row is not None
    assert len(row.owner.batches) == QUERIES_MAX
    assert max(sizes[2 * QUERIES_MAX :]) < 10_000
    assert sizes[-1] < 1.1 * sizes[2 * QUERIES_MAX]
    for number in range(4 * QUERIES_MAX):
        query_id = f"query-{number:04}"
        if number >= 3 * QUERIES_MAX:
            assert is_committed(row, query_id=query_id, batch_id=0, digest="")
            continue
        with pytest.raises(CheckpointError, match="no longer known.*new checkpointLocation"):
            is_committed(row, query_id=query_id, batch_id=0, digest="")
    assert not is_committed(row, query_id="query-new", batch_id=0, digest="")


def test_row_keeps_the_queries_that_committed_last_not_those_that_started_last() -> None:
    """An active query is the last to be dropped."""
    row = committed(None, "old", 0)
    for number in range(3 * QUERIES_MAX):
        row = committed(row, f"query-{number}", 0)
        row = committed(row, "old", number + 1)
    assert is_committed(row, query_id="old", batch_id=3 * QUERIES_MAX, digest="")


def test_row_that_has_dropped_queries_never_expires() -> None:
    """Its filter refuses replays (R35)."""
    owner = Owner(run_id="r", forgotten=remember_many(QUERIES_MAX + 1).forgotten)
    row = TransactionMetadata(
        transactional_id="tx", producer_id=1, producer_epoch=0, timeout_ms=1, owner=owner
    )
    assert isinstance(prepare_expire(row, now_ms=0), Done)


def remember_many(count: int) -> Owner:
    owner = Owner()
    for number in range(count):
        owner = remember_batch(owner, f"q{number}", LastBatch(batch_id=0))
    return owner


def test_new_queries_are_rarely_taken_for_dropped_ones() -> None:
    """The filter is large enough for years of queries; these ids are fixed."""
    owner = remember_many(QUERIES_MAX + 500)
    refused = sum(may_be_forgotten(owner, f"new-{number}") for number in range(2_000))
    assert refused <= 20


@settings(max_examples=30)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=200))
def test_committed_query_is_always_remembered_or_maybe_forgotten(names: list[str]) -> None:
    """In any order of commits."""
    owner = Owner()
    for name in names:
        owner = remember_batch(owner, name, LastBatch(batch_id=1))
    for name in names:
        assert name in owner.batches or may_be_forgotten(owner, name)
