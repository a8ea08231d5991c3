"""Transactions for operators: list, describe, fence and abort them (R43).

What blocks readers is in txnlog.admin.hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from txnlog.admin.descriptions import (
    AbortTransactionSpec,
    FencedProducer,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from txnlog.admin.state_rows import require_row, rows, shown_rows, unreadable_rows
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.coordinator.fencing import transition
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.state_rows import as_shown
from txnlog.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
)
from txnlog.messages import TopicPartition
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.protocol.appends import prepare_marker
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.revocation import prepare_abort_open, prepare_revoke
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.topics import TopicState
from txnlog.protocol.transitions import Done, Transition, prepare_fence
from txnlog.settings.patterns import Pattern
from txnlog.storage.tables.topic_log import TopicLog

TIMESTAMPS_US = 2**62
"""A header's timestamp above this is unknown; see decode_stats."""

Decide = Callable[[TransactionMetadata | None], Transition | Done]


# --- Listing --------------------------------------------------------------------------------------


def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[TransactionState] = (),
    producer_ids: Collection[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """State rows that match all filters; `duration_ms`: open for longer than that.

    Unreadable rows have an error, and only the pattern applies to them.
    Raises ConfigError for an invalid regular expression.
    """
    matches = Pattern("pattern", pattern).matches if pattern else None
    now_ms = cluster.store.clock.now_ms()
    found = []
    for number, row in shown_rows(cluster):
        start_ms = _start_ms(row)
        if (
            (states and row.state not in states)
            or (producer_ids and row.producer_id not in producer_ids)
            or (duration_ms >= 0 and (start_ms is None or now_ms - start_ms <= duration_ms))
            or (matches is not None and not matches(row.transactional_id))
        ):
            continue
        found.append(
            TransactionListing(
                transactional_id=row.transactional_id,
                coordinator=number,
                producer_id=row.producer_id,
                state=row.state,
                query_name=row.owner.query_name,
            )
        )
    found += [
        TransactionListing(
            transactional_id=row.key,
            coordinator=number,
            producer_id=-1,
            state=None,
            error=row.error,
        )
        for number, row in unreadable_rows(cluster)
        if matches is None or matches(row.key)
    ]
    return sorted(found, key=lambda listing: listing.transactional_id)


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Raises TransactionalIdNotFoundError."""
    [row] = as_shown(cluster, [require_row(cluster, transactional_id)])
    return describe_row(cluster.shard_of(transactional_id), row)


def describe_row(shard: int, row: TransactionMetadata) -> TransactionDescription:
    """The description of a state row in this shard."""
    owner = row.owner
    touched = {(tp.topic, number) for tp in row.partitions for number in tp.partitions}
    touched.update((batch.topic, batch.partition) for batch in row.pending.batches)
    return TransactionDescription(
        coordinator_id=shard,
        transactional_id=row.transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        state=row.state,
        timeout_ms=row.timeout_ms,
        start_time_ms=_start_ms(row),
        topic_partitions=[TopicPartition(*key) for key in sorted(touched)],
        groups=tuple(one.group_id for one in row.pending.tickets),
        prepared_by_client=row.pending.prepared_by_client,
        decider="" if row.decider is None else row.decider.name,
        owner=owner.describe(),
        owner_since_ms=owner.since_ms,
        query_id=owner.query_id,
        query_name=owner.query_name,
        is_owner_fenced=owner.run_id in owner.former_runs,
        fenced=owner.fenced,
    )


def describe_producers(log: TopicLog, partition: int) -> list[ProducerState]:
    """The producers with state in a partition, by id, as of the last refresh of its log.

    Raises UnknownTopicOrPartitionError.
    """
    check_partition(log, partition)
    view = log.view
    producer_ids = {pid for pid, number in view.last_sequences if number == partition}
    newest = {header.producer_id: header for header in view.partitions[partition].batches}
    # Compacted segments have no producer.
    newest.pop(-1, None)
    producer_ids.update(newest)
    return [_producer(view, partition, pid, newest.get(pid)) for pid in sorted(producer_ids)]


def _producer(
    view: TopicState, partition: int, producer_id: int, newest: BatchHeader | None
) -> ProducerState:
    sequences = view.sequences.get((producer_id, partition))
    last_sequence = view.last_sequences.get((producer_id, partition), -1)
    if sequences is not None:
        last_sequence = max(last_sequence, sequences.last_sequence)
    elif newest is not None and newest.base_sequence >= 0:
        last_sequence = max(last_sequence, newest.last_sequence)
    undecided = [
        header.base_offset
        for header in view.partitions[partition].ongoing.values()
        if header.producer_id == producer_id
    ]
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=0 if newest is None else newest.producer_epoch,
        last_sequence=last_sequence,
        last_timestamp_ms=-1 if newest is None else newest_timestamp_ms(newest),
        coordinator_epoch=view.markers.get(producer_id, -1),
        current_transaction_start_offset=min(undecided, default=None),
    )


def newest_timestamp_ms(header: BatchHeader) -> int:
    """The newest timestamp of a batch's records; -1 if the header does not have it."""
    newest_us = header.timestamp_max_us
    return newest_us // 1000 if newest_us < TIMESTAMPS_US else -1


def _start_ms(row: TransactionMetadata) -> int | None:
    return None if row.state.is_idle else row.started_ms


# --- Aborting and fencing -------------------------------------------------------------------------


def abort_transaction(
    cluster: Cluster, transactional_id: str, *, by: str, reason: str
) -> TransactionMetadata:
    """Abort the open transaction of an id, and fence its owner; returns the new row (R43).

    A deferred transaction is in no row before it is decided: if the row is idle, or shows one that
    is published, its owner is fenced, so that its transaction can only abort. Raises
    TransactionalIdNotFoundError, and InvalidTxnStateError for a transaction decided as a commit,
    after finishing it.
    """
    row = require_row(cluster, transactional_id)
    [shown] = as_shown(cluster, [row])
    if shown.state is TransactionState.PREPARE_COMMIT:
        finish(cluster, row)
        raise InvalidTxnStateError(
            f"The transaction of {transactional_id!r} has been decided as a commit, and is now "
            "finished. To stop further writes, fence its producer.",
            transactional_id=transactional_id,
            state=row.state.name,
        )
    if row.state is not TransactionState.ONGOING:
        return fence_producer(cluster, transactional_id, by=by, reason=reason)

    def decide(now: TransactionMetadata | None) -> Transition | Done:
        return prepare_abort_open(
            now,
            producer_id=row.producer_id,
            txn_epoch=row.txn_epoch,
            by=by,
            reason=reason,
            now_ms=cluster.store.clock.now_ms(),
        )

    return _carry_out(cluster, row, decide, by=by)


def fence_producer(
    cluster: Cluster, transactional_id: str, *, by: str, reason: str
) -> TransactionMetadata:
    """Fence the id's owner, also a Spark query's run; returns the new row (R43).

    An open transaction aborts, a decided one is finished. Raises TransactionalIdNotFoundError.
    """
    row = require_row(cluster, transactional_id)

    def decide(now: TransactionMetadata | None) -> Transition | Done:
        return prepare_revoke(
            now,
            run_id=row.owner.run_id,
            by=by,
            reason=reason,
            now_ms=cluster.store.clock.now_ms(),
        )

    return _carry_out(cluster, row, decide, by=by)


def _carry_out(
    cluster: Cluster, row: TransactionMetadata, decide: Decide, *, by: str
) -> TransactionMetadata:
    """Write the decision, and finish its transaction."""
    for attempt in range(OPERATION_ATTEMPTS_MAX):
        try:
            moved = transition(cluster, row.transactional_id, decide, by=by)
        except ConcurrentTransactionsError:
            decided = cluster.coordinator.describe(row.transactional_id)
            if decided is not None:
                finish(cluster, decided)
            cluster.store.back_off(attempt)
            continue
        if moved is not None and moved.is_ending:
            moved = finish(cluster, moved)
        return moved or row
    raise ConcurrentTransactionsError(
        f"{row.transactional_id!r} kept deciding new transactions; try again.",
        transactional_id=row.transactional_id,
    )


def fence_producers(
    cluster: Cluster, transactional_id: str, *, by: str, reason: str
) -> FencedProducer:
    """`fence_producer` with the result of Kafka's admin client."""
    row = fence_producer(cluster, transactional_id, by=by, reason=reason)
    return FencedProducer(row.producer_id, row.producer_epoch)


def abort_hanging(
    cluster: Cluster, spec: AbortTransactionSpec, *, by: str, reason: str
) -> TransactionMetadata | None:
    """Abort a producer's open data in a partition; returns its state row, if any (R21).

    A row that could still decide the transaction is ended first, so that the abort marker cannot
    contradict a later decision. Raises InvalidTxnStateError when nothing is open.
    """
    topic, partition = spec.topic_partition.topic, spec.topic_partition.partition
    log = cluster.topic(topic)
    check_partition(log, partition)

    def open_epochs() -> list[int]:
        undecided = log.view.ongoing_of(spec.producer_id, spec.producer_epoch)
        return [header.producer_epoch for header in undecided if header.partition == partition]

    if not open_epochs():
        raise InvalidTxnStateError(
            f"Topic {topic!r} partition {partition} has no open transaction of producer "
            f"{spec.producer_id} up to epoch {spec.producer_epoch}.",
            producer_id=spec.producer_id,
        )
    # A marker of a later epoch would stand for transactions that are still to come.
    epoch = max(open_epochs())
    row = next((r for _, r in rows(cluster) if r.producer_id == spec.producer_id), None)
    for _, unreadable in unreadable_rows(cluster):
        # This row may have decided the transaction as a commit.
        if unreadable.values.get("producer_id") in (None, str(spec.producer_id)):
            raise unreadable.error
    if row is not None and row.is_ending:
        row = finish(cluster, row)
    if row is not None and row.state is TransactionState.ONGOING and row.txn_epoch <= epoch:
        row = abort_transaction(cluster, row.transactional_id, by=by, reason=reason)
    if row is not None and row.producer_epoch <= epoch:
        row = _fence_above(cluster, row, epoch, by=by, reason=reason)
    log.refresh()
    if open_epochs():
        log.transact(
            lambda state: prepare_marker(
                state,
                topic_id=log.topic_id,
                transaction=ProducerIdAndEpoch(spec.producer_id, epoch),
                result=TransactionResult.ABORT,
            )
        )
    return row


def _fence_above(
    cluster: Cluster, row: TransactionMetadata, epoch: int, *, by: str, reason: str
) -> TransactionMetadata:
    """No owner decides a transaction up to this epoch any more."""

    def decide(now: TransactionMetadata | None) -> Transition | Done:
        now_ms = cluster.store.clock.now_ms()
        return prepare_fence(now, above_epoch=epoch, by=by, reason=reason, now_ms=now_ms)

    return _carry_out(cluster, row, decide, by=by)
