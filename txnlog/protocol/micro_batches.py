"""Which micro-batches of a streaming query are decided already (R54, R55), under any id."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from txnlog.errors import CheckpointError
from txnlog.protocol.fencing import refuse_prepared
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.query_batches import check_remembered, may_be_forgotten
from txnlog.protocol.transitions import Done, Transition, prepare_fence


def is_of_query(row: TransactionMetadata, query_id: str) -> bool:
    """Whether a query owns the row, or has a batch in it, or may have had a dropped one."""
    owner = row.owner
    is_known = owner.query_id == query_id or query_id in owner.batches
    return is_known or may_be_forgotten(owner, query_id)


def newest_row(rows: Iterable[TransactionMetadata], query_id: str) -> TransactionMetadata | None:
    """The row that has the newest batch of a query; None if no row has one.

    Raises CheckpointError if a row may have had one that was dropped.
    """
    known = list(rows)
    having = [row for row in known if query_id in row.owner.batches]
    if not having:
        for row in known:
            check_remembered(row, query_id)
    return max(having, key=lambda row: row.owner.batches[query_id].batch_id, default=None)


def has_committed(row: TransactionMetadata | None, *, query_id: str, run_id: str) -> bool:
    """Whether the run owns the row and has committed under it; its other ids are stopped then."""
    if row is None or row.owner.run_id != run_id or run_id in row.owner.former_runs:
        return False
    last = row.owner.batches.get(query_id)
    return last is not None and last.run_id == run_id


def prepare_stop_query(
    row: TransactionMetadata | None, *, query_id: str, by: str, reason: str, now_ms: int
) -> Transition | Done:
    """Fence the run of a query that owns the row; Done if no run of it may write there.

    A decided transaction stays, to be finished.
    """
    if row is None or row.owner.query_id != query_id:
        return Done(row)
    if row.owner.run_id in row.owner.former_runs:
        return Done(row)
    return prepare_fence(row, above_epoch=row.producer_epoch, by=by, reason=reason, now_ms=now_ms)


def prepare_forget_query(
    row: TransactionMetadata | None, *, query_id: str, below: int, now_ms: int
) -> Transition | Done:
    """Drop a query from an idle row whose batch of it is older than `below`, so that it can expire.

    Another row has batch `below` of the query. Done if the row has a newer one, or an owner that
    was not fenced. Raises ConcurrentTransactionsError if a decided transaction must be finished
    first.
    """
    if row is None or not is_of_query(row, query_id):
        return Done(row)
    refuse_prepared(row)
    owner = row.owner
    last = owner.batches.get(query_id)
    is_owner = owner.query_id == query_id
    if last is None and not is_owner:
        return Done(row)
    if (last is not None and last.batch_id >= below) or not row.state.is_idle:
        return Done(row)
    if is_owner and owner.run_id not in owner.former_runs:
        return Done(row)
    batches = {known: batch for known, batch in owner.batches.items() if known != query_id}
    left = replace(owner, batches=batches, query_id="" if is_owner else owner.query_id)
    return Transition(
        operation="FORGET QUERY",
        previous=row,
        next=replace(row, owner=left, updated_ms=now_ms),
    )


def is_committed(row: TransactionMetadata, *, query_id: str, batch_id: int, digest: str) -> bool:
    """True: this batch is committed, skip it. False: commit it (gaps in the ids are normal).

    `digest` is that of the batch's offsets file, "" if the checkpoint cannot be read. Raises
    CheckpointError if the query's checkpoint is behind the log, or is another query's.
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
