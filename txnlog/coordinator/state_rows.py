"""Reading the state rows of transactional.ids."""

from __future__ import annotations

from dataclasses import replace

from txnlog.coordinator.root import Root
from txnlog.protocol.fencing import check_holder
from txnlog.protocol.metadata import TransactionMetadata


def describe(
    root: Root, transactional_id: str, *, sure: bool = False
) -> TransactionMetadata | None:
    """The newest state row of an id, None if it has none; `sure` as in DeltaLog.refresh."""
    shard = root.find_shard_for(transactional_id)
    return None if shard is None else shard.row(transactional_id, sure=sure)


def check_run(root: Root, row: TransactionMetadata) -> None:
    """Raises the error that fences the run of this row, at whatever epoch it is."""
    now = describe(root, row.transactional_id, sure=True)
    epoch = row.producer_epoch if now is None else now.producer_epoch
    check_holder(now, replace(row.holder, producer_epoch=epoch))


def check_owner(root: Root, row: TransactionMetadata) -> None:
    """Raises the error that fences the holder of this row: it says who did it, and when."""
    check_holder(describe(root, row.transactional_id, sure=True), row.holder)
