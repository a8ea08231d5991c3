"""Whether a micro-batch is decided already, by the row of its query (R54, R55, R58)."""

from __future__ import annotations

import pytest

from txnlog.errors import CheckpointError
from txnlog.protocol.metadata import LastBatch, Owner, TransactionMetadata
from txnlog.protocol.micro_batches import is_committed, is_owned


def row(*, last: LastBatch | None = None, fenced: bool = False) -> TransactionMetadata:
    owner = Owner(run_id="r1", query_id="q", last_batch=last, former_runs=("r1",) if fenced else ())
    return TransactionMetadata(
        transactional_id="q", producer_id=1, producer_epoch=3, timeout_ms=1, owner=owner
    )


@pytest.mark.parametrize(
    ("found", "run_id", "owned"),
    [
        (None, "r1", False),
        (row(), "r1", True),
        (row(), "r2", False),
        (row(fenced=True), "r1", False),
    ],
)
def test_row_is_owned_by_its_run_until_that_is_fenced(
    found: TransactionMetadata | None, run_id: str, owned: bool
) -> None:
    """A fenced run would register with its group, and fence who reads for it now (R43, R58)."""
    assert is_owned(found, run_id) is owned


@pytest.mark.parametrize(
    ("batch_id", "digest", "committed"),
    [
        (6, "e", False),
        (9, "e", False),
        (5, "d", True),
        (5, "", True),  # the checkpoint cannot be read
    ],
)
def test_batch_is_committed_only_if_it_is_the_newest(
    batch_id: int, digest: str, committed: bool
) -> None:
    """A repeat is skipped, a new batch is not; Spark's numbers may have gaps (R54, R55)."""
    found = row(last=LastBatch(batch_id=5, digest="d"))
    assert is_committed(found, batch_id=batch_id, digest=digest) is committed
    for new in (None, row()):
        assert not is_committed(new, batch_id=batch_id, digest=digest)


@pytest.mark.parametrize(
    ("batch_id", "digest", "message"),
    [(4, "d", "comes after batch 5.*old copy"), (5, "e", "other offsets than offsets/5.*driver")],
)
def test_batch_of_another_checkpoint_is_refused(batch_id: int, digest: str, message: str) -> None:
    """To commit it would repeat input, to skip it may lose some (R55)."""
    found = row(last=LastBatch(batch_id=5, digest="d"))
    with pytest.raises(CheckpointError, match=rf"query q .*{message}.*new checkpointLocation"):
        is_committed(found, batch_id=batch_id, digest=digest)
    unread = row(last=LastBatch(batch_id=5))
    assert is_committed(unread, batch_id=5, digest="e"), "what was unreadable says nothing"
