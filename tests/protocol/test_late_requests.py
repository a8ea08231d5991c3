"""Late requests to a state row, repeated ones, and repeats with other contents."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.test_transitions import COMMIT, add, complete, end, init, moved, staged
from txnlog.errors import (
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from txnlog.protocol.metadata import Manifest, Owner, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import VALID_PREVIOUS, TransactionState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    _transition,
    prepare_complete,
    prepare_init,
)


def test_transaction_start_is_that_of_its_first_partition() -> None:
    """Otherwise one that keeps growing never times out (R32)."""
    row = moved(add(moved(init(None)), "a"))
    later = replace(row, started_ms=1)
    assert moved(add(later, "b")).started_ms == 1


def test_init_without_take_over_does_not_change_the_row_of_another_run() -> None:
    """A late driver, whose batch may be committed, must not fence the current one (D24)."""
    row = moved(init(None, "a"))

    def init_if_free(now: TransactionMetadata | None, run: str) -> Transition | Done:
        return prepare_init(
            now,
            transactional_id="id",
            new_producer_id=7,
            owner=Owner(run_id=run),
            timeout_ms=1_000,
            now_ms=1,
            take_over=False,
        )

    with pytest.raises(ProducerFencedError):
        init_if_free(row, "b")
    assert init_if_free(row, "a") == Done(row)
    assert moved(init_if_free(None, "b")).owner.run_id == "b"


def test_commit_repeated_with_other_batches_is_refused() -> None:
    """The caller would rely on batches that no commit names (R31)."""
    row = moved(init(None))
    decided = moved(end(row, COMMIT, manifest=Manifest(batches=(staged("a"),))))
    assert end(decided, COMMIT, manifest=Manifest(batches=(staged("a"),))) == Done(decided)
    with pytest.raises(InvalidTxnStateError, match="other batches"):
        end(decided, COMMIT, manifest=Manifest(batches=(staged("b"),)))


def test_complete_of_an_older_transaction_changes_nothing() -> None:
    """A late helper would complete a later transaction, whose markers are not written (D4, R36)."""
    row = moved(end(moved(init(None)), COMMIT, manifest=Manifest(batches=(staged("a"),))))
    later = moved(end(complete(row), COMMIT, epoch=1, manifest=Manifest(batches=(staged("b"),))))
    assert later.txn_epoch == row.txn_epoch + 1
    late = prepare_complete(later, transaction=ProducerIdAndEpoch(7, row.txn_epoch), now_ms=4)
    assert late == Done(later)


def test_every_former_run_stays_fenced() -> None:
    """Not only the last: a zombie may resume after two successors (R42, R44)."""
    row = moved(init(None, "a"))
    for run in ("b", "c"):
        row = moved(init(row, run))
    for zombie in ("a", "b"):
        with pytest.raises(ProducerFencedError):
            init(row, zombie)


def test_producer_of_an_id_that_expired_is_not_its_next_one() -> None:
    """Both have epoch 0; only the producer id differs (R8, R10)."""
    row = replace(moved(init(None)), producer_id=8)
    with pytest.raises(InvalidProducerIdMappingError):
        add(row, "a")
    with pytest.raises(InvalidProducerIdMappingError):
        end(row, COMMIT, manifest=Manifest(batches=(staged("a"),)))


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize("after", TransactionState)
def test_transition_that_is_not_in_the_table_is_refused(
    before: TransactionState, after: TransactionState
) -> None:
    """Every transition must check the table (R25)."""
    row = replace(moved(init(None)), state=before)
    if before in VALID_PREVIOUS[after]:
        assert _transition(row, "MOVE", after, 1).next.state is after
    else:
        with pytest.raises(InvalidTxnStateError, match=f"{before.name} to {after.name}"):
            _transition(row, "MOVE", after, 1)
