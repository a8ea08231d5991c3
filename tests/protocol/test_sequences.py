"""Sequences of one producer in one partition."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from txnlog.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)
from txnlog.protocol.batches import ABORTED, COMMITTED, NONE, BatchHeader
from txnlog.protocol.sequences import (
    ProducerStateEntry,
    check_sequence,
    observe,
)


def header(base_sequence: int, count: int = 1, *, epoch: int = 0, at: int = 0) -> BatchHeader:
    last = at + count - 1
    path = f"{epoch}-{base_sequence}"
    return BatchHeader(path, 0, at, last, 7, epoch, base_sequence, NONE, 1, "")


def after(*headers: BatchHeader) -> ProducerStateEntry | None:
    state = None
    for each in headers:
        state = observe(state, each)
    return state


def check(state: ProducerStateEntry | None, base: int, last: int, *, epoch: int = 0) -> int | None:
    return check_sequence(
        state,
        header(base, last - base + 1, epoch=epoch),
        where="t-0",
    )


def test_first_batch_starts_at_zero() -> None:
    """A producer whose first batch was lost would start with a gap (R1)."""
    assert check(None, 0, 4) is None
    with pytest.raises(OutOfOrderSequenceError, match="sequence 3, but 0 is next") as error:
        check(None, 3, 4)
    assert error.value.fatal


def test_next_sequence_is_accepted_and_a_gap_is_not() -> None:
    """Records in a gap would be silently lost (R1)."""
    state = after(header(0, 5))
    assert check(state, 5, 9) is None
    with pytest.raises(OutOfOrderSequenceError, match="6, but 5 is next"):
        check(state, 6, 9)


def test_repeat_of_one_of_the_last_five_is_acknowledged_with_its_offset() -> None:
    """A retry after a lost reply would write its records twice (R2)."""
    batches = [header(number * 2, 2, at=100 + number * 2) for number in range(7)]
    state = after(*batches)
    for batch in batches[-5:]:
        assert check(state, batch.base_sequence, batch.last_sequence) == batch.base_offset
    with pytest.raises(DuplicateSequenceError):
        check(state, 2, 3)


@pytest.mark.parametrize(("base", "last"), [(2, 4), (3, 5), (0, 5), (4, 7)])
def test_partial_repeat_is_refused(base: int, last: int) -> None:
    """Some records of a differently cut batch are in the log already (R2)."""
    state = after(header(0, 2), header(2, 4))
    with pytest.raises(DuplicateSequenceError):
        check(state, base, last)


def test_new_epoch_starts_again_at_zero() -> None:
    """The successor does not know the zombie's last sequence (R3)."""
    state = after(header(0, 5))
    assert check(state, 0, 2, epoch=1) is None
    with pytest.raises(OutOfOrderSequenceError, match="5, but 0 is next"):
        check(state, 5, 6, epoch=1)


def test_older_epoch_is_refused() -> None:
    """The zombie continues its sequences (R3)."""
    state = after(header(0, 5), header(0, 1, epoch=1, at=5))
    with pytest.raises(InvalidProducerEpochError, match="older than epoch 1"):
        check(state, 5, 6, epoch=0)


def test_headers_read_twice_or_out_of_order_give_the_same_memory() -> None:
    """A marker adds every header again, and a checkpoint has its own order (R5, R11)."""
    batches = [header(number, at=number) for number in range(4)]
    state = after(*batches)
    assert after(*batches, *batches) == state
    assert after(batches[0], batches[2], batches[1], batches[3]) == state


@pytest.mark.parametrize("status", [COMMITTED, ABORTED])
def test_batch_of_a_transaction_that_ended_is_forgotten(status: str) -> None:
    """A checkpoint does not have its former status; warm memory must not know more (R11)."""
    first, second = header(0), header(1, at=1)
    state = after(first, second)
    assert observe(after(first), replace(first, status=status)) is None
    assert observe(state, replace(first, status=status)) == after(second)


def test_headers_of_an_older_epoch_and_without_producer_change_nothing() -> None:
    """A segment of compaction, or a zombie's aborted batch, is read after newer ones (R11, R22)."""
    state = after(header(0, epoch=1))
    assert observe(state, header(9, epoch=0)) == state
    assert observe(state, header(-1, epoch=3)) == state
    assert observe(None, header(-1)) is None
