"""State rows of transactional.ids, read."""

from __future__ import annotations

from txnlog.coordinator.root import Root
from txnlog.protocol.fencing import check_holder
from txnlog.protocol.metadata import TransactionMetadata


def describe(
    root: Root, transactional_id: str, *, sure: bool = False
) -> TransactionMetadata | None:
    """The newest state row of an id, None when there is none; `sure` as in DeltaLog.refresh."""
    return root.shard_for(transactional_id).row(transactional_id, sure=sure)


def check_owner(root: Root, row: TransactionMetadata) -> None:
    """Raises what fences the holder of this row: the error that says who did it, and when."""
    check_holder(describe(root, row.transactional_id, sure=True), row.holder)
