"""How other processes end a transaction: by fencing its producer, or by its timeout.

Who was fenced, by whom and why is logged here, by the process that did it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

from txnlog.coordinator.finishing import complete, finish, publish
from txnlog.coordinator.root import Root
from txnlog.protocol.fencing_lines import Line, row_line
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.groups import Partitions
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.tickets import prepare_floor
from txnlog.protocol.transitions import Done, Transition, prepare_time_out
from txnlog.storage.delta.readings import Reading

logger = logging.getLogger("txnlog")


def transition(
    root: Root,
    transactional_id: str,
    decide: Callable[[TransactionMetadata | None], Transition | Done],
    *,
    by: str = "",
) -> TransactionMetadata | None:
    """`TransactionLog.transition` of a decision that may fence an owner, which is then logged."""
    made: Transition | Done = Done(None)

    def noted(row: TransactionMetadata | None) -> Transition | Done:
        nonlocal made
        made = decide(row)
        return made

    row = root.shard_for(transactional_id).transition(transactional_id, noted)
    line = row_line(made, by=by) if isinstance(made, Transition) else None
    if line is not None:
        log_line(line)
    return row


def log_line(line: Line) -> None:
    """Log a line of txnlog.protocol.fencing_lines."""
    logger.log(logging.WARNING if line.is_warning else logging.INFO, "%s", line.text)


def fence_holders(
    root: Root,
    group_id: str,
    holders: Sequence[TicketHolder],
    *,
    partitions: Partitions | None = None,
    by: str,
) -> None:
    """Refuse the holders' tickets from now on, and finish what they have decided before.

    An open transaction with offsets of these partitions (None: of any) is aborted. Call it after
    the read of the group's row that named the holders. The shards of their rows are written
    together. Raises UnstableOffsetCommitError if a client has prepared a transaction with offsets
    of the group.
    """
    by_shard: dict[int, list[TicketHolder]] = {}
    for holder in holders:
        by_shard.setdefault(root.shard_of(holder.transactional_id), []).append(holder)

    def raise_floors(number: int) -> list[TransactionMetadata | None]:
        return [_raise_floor(root, group_id, one, partitions, by) for one in by_shard[number]]

    reading = Reading.begin(root.store.clock)
    raised = root.store.together([partial(raise_floors, number) for number in by_shard])
    # One after the other: they may have topics in common.
    published = [
        [
            row
            for row in rows
            if _is_left(row, root, group_id) and publish(root, row, reading=reading)
        ]
        for rows in raised
    ]
    root.store.together([partial(_complete_each, root, left) for left in published])


def _is_left(
    row: TransactionMetadata | None, root: Root, group_id: str
) -> TypeGuard[TransactionMetadata]:
    """Whether it is decided, and its offsets of the group have not been moved, if it has some."""
    if row is None or not row.is_ending:
        return False
    if root.offsets_log(group_id).view.markers.get(row.producer_id, -1) >= row.txn_epoch:
        return False
    return any(one.group_id == group_id for one in row.pending.tickets)


def _complete_each(root: Root, published: Sequence[TransactionMetadata]) -> None:
    for row in published:
        complete(root, row)


def _raise_floor(
    root: Root, group_id: str, holder: TicketHolder, partitions: Partitions | None, by: str
) -> TransactionMetadata | None:
    return transition(
        root,
        holder.transactional_id,
        lambda now: prepare_floor(
            now,
            group_id=group_id,
            holder=holder,
            partitions=partitions,
            by=by,
            now_ms=root.store.clock.now_ms(),
        ),
        by=by,
    )


def time_out(root: Root, row: TransactionMetadata, *, by: str) -> TransactionMetadata | None:
    """Abort an Ongoing transaction after transaction.timeout.ms (R32)."""
    timed_out = transition(
        root,
        row.transactional_id,
        lambda now: prepare_time_out(
            now, transaction=row.transaction, by=by, now_ms=root.store.clock.now_ms()
        ),
    )
    if timed_out is not None and timed_out.state.is_prepared:
        return finish(root, timed_out)
    return timed_out
