"""Decisions for two-phase and eager producers: kept transactions, manifests, added partitions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import a_ticket
from tests.staged_files import named_file
from txnlog.errors import InvalidTxnStateError, LogGapError, ProducerFencedError
from txnlog.protocol.appends import check_added
from txnlog.protocol.metadata import (
    Holder,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_init,
)

BATCH = named_file("part-0-a.parquet", "orders", topic_id="o")
OTHER = replace(BATCH, path="part-0-b.parquet")
IDLE = TransactionMetadata(
    transactional_id="tx",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    owner=Owner(run_id="first"),
)


def add(row: TransactionMetadata, **request: object) -> Transition | Done:
    return prepare_add_partitions(
        row,
        holder=row.holder,
        now_ms=1,
        **request,  # type: ignore[arg-type]
    )


def end(
    row: TransactionMetadata,
    result: TransactionResult,
    *,
    holder: Holder | None = None,
    **request: object,
) -> TransactionMetadata:
    decision = prepare_end(
        row,
        holder=row.holder if holder is None else holder,
        result=result,
        now_ms=2,
        **request,  # type: ignore[arg-type]
    )
    return decision.next if isinstance(decision, Transition) else decision.metadata  # type: ignore[return-value]


def init(row: TransactionMetadata, run: str, **request: Any) -> Transition | Done:
    return prepare_init(
        row,
        transactional_id="tx",
        new_producer_id=-1,
        owner=Owner(run_id=run),
        timeout_ms=60_000,
        now_ms=3,
        **request,
    )


def prepared() -> TransactionMetadata:
    decision = add(IDLE, manifest=Manifest(batches=(BATCH,), tickets=(a_ticket(),)))
    assert isinstance(decision, Transition)
    return decision.next


def test_commit_publishes_the_prepared_batches() -> None:
    """A client that commits after a crash has no list of files (R36, R45)."""
    manifest = Manifest(tickets=(a_ticket(),))
    decided = end(prepared(), TransactionResult.COMMIT, manifest=manifest)
    assert decided.pending.batches == (BATCH,)
    assert decided.moves == (a_ticket(),)


def test_kept_transaction_changes_owner_and_epoch_but_not_its_name() -> None:
    """No two owners share an epoch, and the external database's name stays valid (R10, KIP-939)."""
    row = prepared()
    kept = init(row, "second", keep_prepared=True)
    assert isinstance(kept, Transition)
    assert kept.next.state is TransactionState.ONGOING
    assert (kept.next.producer_epoch, kept.next.txn_epoch) == (4, 3)
    assert kept.next.pending == row.pending
    assert kept.next.owner.former_runs == ("first",)
    assert isinstance(init(kept.next, "second", keep_prepared=True), Done)
    with pytest.raises(ProducerFencedError):
        end(kept.next, TransactionResult.COMMIT, txn_epoch=3, holder=row.holder)
    aborting = init(kept.next, "third")
    assert isinstance(aborting, Transition)
    assert aborting.next.state is TransactionState.PREPARE_ABORT
    assert aborting.next.txn_epoch == 3


@pytest.mark.parametrize("keep_prepared", [True, False])
def test_marker_of_an_open_transaction_shows_that_its_decision_is_lost(keep_prepared: bool) -> None:
    """Its state log was restored alone: a successor would abort what is committed (R36)."""
    row = prepared()
    with pytest.raises(LogGapError, match="marker of epoch 3"):
        init(row, "second", keep_prepared=keep_prepared, markers={"orders": 3})
    assert isinstance(init(row, "second", markers={"orders": 2}), Transition)
    decided = end(row, TransactionResult.COMMIT)
    assert isinstance(init(decided, "second", markers={"orders": 3}), Transition)


@pytest.mark.parametrize("result", TransactionResult)
def test_kept_transaction_ends_under_its_own_epoch_and_repeats_are_recognised(
    result: TransactionResult,
) -> None:
    """Entries in the groups have that epoch; after a lost reply the call is repeated (R31)."""
    kept = init(prepared(), "second", keep_prepared=True)
    assert isinstance(kept, Transition)
    ended = end(kept.next, result, manifest=Manifest(), txn_epoch=3)
    assert (ended.state, ended.txn_epoch) == (result.prepared, 3)
    assert ended.pending.batches == ((BATCH,) if result is TransactionResult.COMMIT else ())
    again = end(ended, result, manifest=Manifest(), txn_epoch=3, holder=kept.next.holder)
    assert again == ended
    completed = prepare_complete(ended, transaction=ProducerIdAndEpoch(7, 3), now_ms=4)
    assert isinstance(completed, Transition)
    assert completed.next.producer_epoch == 5
    late = end(completed.next, result, manifest=Manifest(), txn_epoch=3, holder=kept.next.holder)
    assert late == completed.next


def test_commit_repeated_with_other_batches_is_refused() -> None:
    """A request for B after A was decided must not report B as committed (R31)."""
    decided = end(IDLE, TransactionResult.COMMIT, manifest=Manifest(batches=(BATCH,)))
    assert decided.state is TransactionState.PREPARE_COMMIT
    same = Manifest(batches=(BATCH,))
    assert end(decided, TransactionResult.COMMIT, manifest=same) == decided
    with pytest.raises(InvalidTxnStateError, match="other batches"):
        end(decided, TransactionResult.COMMIT, manifest=Manifest(batches=(OTHER,)))
    with pytest.raises(InvalidTxnStateError, match="other batches"):
        end(prepared(), TransactionResult.COMMIT, manifest=Manifest(batches=(OTHER,)))


def test_nothing_is_added_to_a_prepared_transaction() -> None:
    """The commit must be exactly what was prepared (R30)."""
    row = prepared()
    touched = TopicPartitions(topic="stock", topic_id="s", partitions=(0,))
    for request in (
        {"partitions": (touched,)},
        {"tickets": (a_ticket("another"),)},
        {"manifest": Manifest(batches=(OTHER,))},
    ):
        with pytest.raises(InvalidTxnStateError, match="prepared"):
            add(row, **request)
    assert isinstance(add(row, manifest=Manifest(batches=(BATCH,), tickets=(a_ticket(),))), Done)
    assert isinstance(add(row), Done)


def test_init_without_take_over_does_not_fence_another_owner() -> None:
    """A producer that renews its expired id must not fence its current owner (R35, R44)."""
    with pytest.raises(ProducerFencedError):
        init(IDLE, "second", take_over=False)
    assert isinstance(init(IDLE, "first", take_over=False), Done)


def test_append_to_a_partition_that_was_not_added_is_refused() -> None:
    """It would get no marker, and stay undecided forever (R30)."""
    added = [TopicPartitions(topic="orders", topic_id="o", partitions=(0, 2))]
    check_added(added, [BATCH, replace(BATCH, partition=2)])
    for wrong in (replace(BATCH, partition=1), replace(BATCH, topic_id="newer")):
        with pytest.raises(InvalidTxnStateError, match="add_partitions"):
            check_added(added, [wrong])
