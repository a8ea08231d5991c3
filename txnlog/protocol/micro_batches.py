"""Which micro-batches of a streaming query are decided already (R54, R55)."""

from __future__ import annotations

from txnlog.errors import CheckpointError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.query_batches import check_remembered


def is_committed(row: TransactionMetadata, *, query_id: str, batch_id: int, digest: str) -> bool:
    """True: this batch is committed, skip it. False: commit it (gaps in the ids are normal).

    `digest` is that of the batch's offsets file, "" where the checkpoint cannot be read. Raises
    CheckpointError when the query's checkpoint is behind the log, or is another one's.
    """
    last = row.owner.batches.get(query_id)
    if last is None:
        check_remembered(row, query_id)
        return False
    if batch_id > last.batch_id:
        return False
    where = f"query {query_id} (transactional.id {row.transactional_id!r})"
    if batch_id < last.batch_id:
        raise CheckpointError(
            f"Batch {batch_id} of {where} comes after batch {last.batch_id} was committed: its "
            "checkpoint is an old copy. Restore the newest checkpoint, or start a new query with a "
            "new checkpointLocation, the same group.id and startingOffsets=committed.",
            query_id=query_id,
            batch_id=batch_id,
        )
    if digest and last.digest and digest != last.digest:
        raise CheckpointError(
            f"Batch {batch_id} of {where} was committed with other offsets than offsets/{batch_id} "
            "of this checkpoint holds: two drivers write one checkpoint, or its files were "
            "changed. Stop the other driver; then start a new query with a new "
            "checkpointLocation, the same group.id and startingOffsets=committed.",
            query_id=query_id,
            batch_id=batch_id,
        )
    return True
