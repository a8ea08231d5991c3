"""How other processes end a transaction: by fencing its producer, or by its timeout."""

from __future__ import annotations

from txnlog.coordinator.finishing import finish
from txnlog.coordinator.root import Root
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.groups import Partitions
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.tickets import prepare_floor
from txnlog.protocol.transitions import prepare_time_out


def fence_holder(
    root: Root,
    group_id: str,
    holder: TicketHolder,
    *,
    partitions: Partitions | None = None,
    by: str,
) -> None:
    """Refuse the holder's ticket from now on, and finish what it has decided before.

    An open transaction with offsets of these partitions (None: of any) is aborted. Call it after
    the read of the group's row that named the holder. Raises UnstableOffsetCommitError if its
    client has prepared a transaction with offsets of the group.
    """
    raised = root.shard_for(holder.transactional_id).transition(
        holder.transactional_id,
        lambda now: prepare_floor(
            now,
            group_id=group_id,
            holder=holder,
            partitions=partitions,
            by=by,
            now_ms=root.store.clock.now_ms(),
        ),
    )
    if raised is None or not raised.state.is_prepared:
        return
    # One without offsets of the group is none of its readers' business.
    if any(one.group_id == group_id for one in raised.pending.tickets):
        finish(root, raised)


def time_out(root: Root, row: TransactionMetadata, *, by: str) -> TransactionMetadata | None:
    """Abort an Ongoing transaction after transaction.timeout.ms (R32)."""
    timed_out = root.shard_for(row.transactional_id).transition(
        row.transactional_id,
        lambda now: prepare_time_out(
            now, transaction=row.transaction, by=by, now_ms=root.store.clock.now_ms()
        ),
    )
    if timed_out is not None and timed_out.state.is_prepared:
        return finish(root, timed_out)
    return timed_out
