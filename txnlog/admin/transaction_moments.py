"""One transaction with everything that is known of it: its siblings, its steps, its phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txnlog.admin.histories import row_changes
from txnlog.admin.traces import Decision, decision_of, pieces_of, row_of_producer
from txnlog.cluster import Cluster
from txnlog.coordinator.state_rows import as_shown
from txnlog.errors import TransactionalIdNotFoundError
from txnlog.protocol.batches import NONE, BatchHeader
from txnlog.protocol.explanations import Piece
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.moments import Moved, Step, TransactionMoment, Written
from txnlog.protocol.panels.changes import Changes
from txnlog.protocol.panels.queries import phases_in, told_phases
from txnlog.protocol.shards import state_table
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.stories import RowChange, change_texts

UNKNOWN = "compacted, unknown"
_COMPLETE = {result.status: result.complete.kafka_name for result in TransactionResult}


def transaction_moment(
    cluster: Cluster, transaction: ProducerIdAndEpoch, recent: Changes
) -> TransactionMoment:
    """`recent` is asked before the logs. Raises TransactionalIdNotFoundError."""
    row = row_of_producer(cluster, transaction.producer_id)
    decision = _recent_decision(transaction, recent)
    if decision is None:
        decision = decision_of(cluster, transaction, row, None)
    known = row if decision is None else decision[1]
    pieces = pieces_of(cluster, transaction, None if decision is None else decision[1])
    is_past = row is not None and 0 <= transaction.epoch <= row.txn_epoch
    if decision is None and not pieces and not is_past:
        raise TransactionalIdNotFoundError(
            f"No transaction of producer {transaction.producer_id}, epoch {transaction.epoch} is "
            "known. Check both numbers; or its id has expired, and its batches were compacted or "
            "deleted.",
            producer_id=transaction.producer_id,
        )
    name = "" if known is None else known.transactional_id
    changes = _changes(cluster, name, transaction, recent)
    last = known.owner.last_batch if known is not None and known.owner.query_id else None
    is_batch = decision is not None and known is not None and known.state.is_prepared
    batch_id = last.batch_id if last is not None and is_batch else None
    return TransactionMoment(
        transaction=transaction,
        transactional_id=name,
        state=_state(cluster, transaction, row, decision, pieces),
        owner="" if decision is None else decision[1].owner.describe(),
        query_id="" if known is None else known.owner.query_id,
        batch_id=batch_id,
        steps=sorted(
            [*_steps(changes, transaction), *_visible(transaction, recent)],
            key=lambda step: step.at_ms,
        ),
        written=[_written(piece, decision) for piece in pieces],
        moved=[
            Moved(ticket.group_id, ticket.offsets)
            for ticket in (() if decision is None else decision[1].pending.tickets)
        ],
        phases=_phases(changes, transaction, batch_id),
        is_compacted=decision is None,
    )


def _recent_decision(transaction: ProducerIdAndEpoch, recent: Changes) -> Decision | None:
    for changes in recent.rows.values():
        for change in reversed(changes):
            row = change.row
            if row is not None and row.transaction == transaction and row.state.is_prepared:
                return change.at_ms, row
    return None


def _changes(
    cluster: Cluster, name: str, transaction: ProducerIdAndEpoch, recent: Changes
) -> list[RowChange]:
    """The changes of its row from the one before it to the one after it."""
    some: Sequence[RowChange] = recent.rows.get(name, ())
    is_whole = any(_is_of(change, transaction) for change in some[1:])
    if name and (not is_whole or _is_of(some[0], transaction)):
        some = list(row_changes(cluster, state_table(cluster.shard_of(name)), {name}))
    own = [at for at, change in enumerate(some) if _is_of(change, transaction)]
    return list(some[max(0, own[0] - 1) : own[-1] + 2]) if own else []


def _is_of(change: RowChange, transaction: ProducerIdAndEpoch) -> bool:
    row = change.row
    return row is not None and row.transaction == transaction


def _steps(changes: Sequence[RowChange], transaction: ProducerIdAndEpoch) -> Iterator[Step]:
    before: TransactionMetadata | None = None
    for change in changes:
        is_removed = change.row is None and before is not None
        if _is_of(change, transaction) or (is_removed and before.transaction == transaction):  # type: ignore[union-attr]
            for _, text in change_texts(before, change):
                yield Step(change.at_ms, text)
        before = change.row


def _visible(transaction: ProducerIdAndEpoch, recent: Changes) -> Iterator[Step]:
    for topic, changes in recent.topics.items():
        for change in changes:
            if transaction in change.marked:
                ends = {one.status for one in change.appended}
                what = " and ".join(sorted(ends)) or "nothing of it"
                yield Step(change.at_ms, f"Its marker is in topic {topic}: {what}.")


def _phases(
    changes: Sequence[RowChange], transaction: ProducerIdAndEpoch, batch_id: int | None
) -> dict[str, float]:
    for change in changes:
        # PREPARE_COMMIT tells about the batch before.
        is_end = change.row is None or change.row.state.is_idle
        if is_end and (change.row is None or _is_of(change, transaction)):
            return phases_in(change.parameters)
        if batch_id is not None and batch_id in told_phases(change):
            return told_phases(change)[batch_id]
    return {}


def _state(
    cluster: Cluster,
    transaction: ProducerIdAndEpoch,
    row: TransactionMetadata | None,
    decision: Decision | None,
    pieces: Sequence[Piece],
) -> str:
    if row is not None and row.transaction == transaction and row.state.is_idle:
        return row.state.kafka_name
    if decision is None:
        views = [(cluster.topic_log(piece.topic).view, piece) for piece in pieces]
        headers = [view.by_path[path] for view, piece in views for path in piece.files]
        return _of_headers(headers)
    decided = decision[1]
    is_open = row is not None and row.transaction == transaction
    if decided.state is TransactionState.ONGOING or (is_open and not _is_visible(cluster, decided)):
        return decided.state.kafka_name
    return TransactionResult.of(decided.state).complete.kafka_name


def _of_headers(headers: Sequence[BatchHeader]) -> str:
    statuses = {header.status for header in headers if header.status != NONE}
    found = [_COMPLETE.get(status, "Ongoing") for status in sorted(statuses)]
    return found[0] if found else UNKNOWN


def _is_visible(cluster: Cluster, row: TransactionMetadata) -> bool:
    [shown] = as_shown(cluster, [row])
    return shown.state is not row.state


def _written(piece: Piece, decision: Decision | None) -> Written:
    if piece.files or decision is None:
        return Written(*piece[:4], piece.num_records, piece.files)
    staged = [
        batch
        for batch in decision[1].pending.batches
        if (batch.topic, batch.partition) == (piece.topic, piece.partition)
    ]
    records = sum(batch.num_records for batch in staged)
    return Written(*piece[:4], records, [batch.path for batch in staged])
