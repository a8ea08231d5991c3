"""Which micro-batches of a streaming query are decided already (R54, R55), by the query's row."""

from __future__ import annotations

from txnlog.errors import CheckpointError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState


def is_owned(row: TransactionMetadata | None, run_id: str) -> bool:
    """Whether the run owns the row, and was not fenced."""
    return row is not None and row.owner.run_id == run_id and run_id not in row.owner.former_runs


def goes_on(row: TransactionMetadata | None, run_id: str, batch_id: int) -> bool:
    """Whether the run has committed an earlier batch, of which at most COMPLETE is left (D103).

    Spark begins a batch when the commit of the one before has returned, and that is published.
    """
    if row is None or not is_owned(row, run_id):
        return False
    last = row.owner.last_batch
    is_over = row.state.is_idle or row.state is TransactionState.PREPARE_COMMIT
    return is_over and last is not None and last.batch_id < batch_id


def is_committed(row: TransactionMetadata | None, *, batch_id: int, digest: str) -> bool:
    """True: this batch is committed, skip it. False: commit it (gaps in the ids are normal).

    `digest` is that of the batch's offsets file, "" if the checkpoint cannot be read. Raises
    CheckpointError if the query's checkpoint is behind the log, or other drivers write it.
    """
    if row is None or row.owner.last_batch is None:
        return False
    query_id, last = row.transactional_id, row.owner.last_batch
    if batch_id > last.batch_id:
        return False
    if batch_id < last.batch_id:
        raise CheckpointError(
            f"Batch {batch_id} of query {query_id} comes after batch {last.batch_id} was "
            "committed: its checkpoint is an old copy. Restore the newest checkpoint, or start a "
            "new query with a new checkpointLocation, the same group.id and "
            "startingOffsets=committed.",
            query_id=query_id,
            batch_id=batch_id,
        )
    if digest and last.digest and digest != last.digest:
        raise CheckpointError(
            f"Batch {batch_id} of query {query_id} was committed with other offsets than "
            f"offsets/{batch_id} of this checkpoint holds: two drivers write one checkpoint, or "
            "its files were changed. Stop the other driver; then start a new query with a new "
            "checkpointLocation, the same group.id and startingOffsets=committed.",
            query_id=query_id,
            batch_id=batch_id,
        )
    return True
