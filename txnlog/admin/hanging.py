"""What readers wait for now: open, decided and hanging transactions, and how to end them (R21)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from txnlog.admin.ages import shown_now_ms
from txnlog.admin.descriptions import HangingTransaction
from txnlog.admin.state_rows import rows
from txnlog.admin.transactions import newest_timestamp_ms
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.errors import ObjectNotFoundError
from txnlog.messages import TopicPartition
from txnlog.protocol.appends import has_marker
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.metadata import NO_EPOCH, ProducerIdAndEpoch, StagedBatch, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.text import shell_option

AGE_UNKNOWN_MS = 2**62
"""Of a batch whose file is missing."""

Logs = Mapping[str, TopicLog]
Rows = Mapping[ProducerIdAndEpoch, TransactionMetadata]


class _Held(NamedTuple):
    """Undecided batches of one transaction in a partition, in order: they hold its LSO."""

    log: TopicLog
    partition: int
    transaction: ProducerIdAndEpoch
    batches: list[BatchHeader]


def find_hanging(
    cluster: Cluster, partitions: Collection[TopicPartition], *, age_ms_min: int = 0
) -> list[HangingTransaction]:
    """The transactions that readers of these partitions, or of their committed offsets, wait for.

    By partition; those that hold its last stable offset come first, in order of their data. Ages
    are by the store's clock: records may carry any timestamp. Raises UnknownTopicOrPartitionError.
    """
    # Rows before topics: what was ended in between is seen as ended, and is not listed.
    owned = _by_transaction(cluster)
    logs = cluster.topics(partition.topic for partition in partitions)
    for partition in partitions:
        check_partition(logs[partition.topic], partition.partition)
    held = _held(logs, partitions)
    if any(one.transaction not in owned for one in held):
        held, owned = _confirmed(cluster, logs, held, owned)
    now_ms = shown_now_ms(cluster.store) if held or owned else 0
    asked = {(partition.topic, partition.partition) for partition in partitions}
    found = [
        *(_of_held(one, owned.get(one.transaction), now_ms) for one in held),
        *_of_rows(owned.values(), logs, asked, now_ms),
    ]
    found = [one for one in found if one.duration_ms >= age_ms_min]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.start_offset is None))


def _by_transaction(cluster: Cluster) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
    """The rows of open and decided transactions."""
    return {
        row.transaction: row
        for _, row in rows(cluster)
        if row.txn_epoch != NO_EPOCH and not row.state.is_idle
    }


def _held(logs: Logs, partitions: Collection[TopicPartition]) -> list[_Held]:
    found = []
    for where in sorted(partitions):
        log = logs[where.topic]
        by_transaction: dict[ProducerIdAndEpoch, list[BatchHeader]] = {}
        ongoing = log.view.partitions[where.partition].ongoing.values()
        for header in sorted(ongoing, key=lambda header: header.base_offset):
            key = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            by_transaction.setdefault(key, []).append(header)
        found += [_Held(log, where.partition, key, each) for key, each in by_transaction.items()]
    return found


def _confirmed(
    cluster: Cluster, logs: Logs, held: list[_Held], owned: Rows
) -> tuple[list[_Held], dict[ProducerIdAndEpoch, TransactionMetadata]]:
    """With rows that were read after the topics: a transaction may have begun in between.

    One that has no row then, and whose data is still undecided after that, is nobody's.
    """
    rows_then = {**owned, **_by_transaction(cluster)}
    lost = [one for one in held if one.transaction not in rows_then]
    cluster.refresh_together(logs[one.log.name] for one in lost)
    where = [TopicPartition(one.log.name, one.partition) for one in lost]
    still = {(one.log.name, one.partition, one.transaction) for one in _held(logs, where)}
    left = [
        one
        for one in held
        if one.transaction in rows_then or (one.log.name, one.partition, one.transaction) in still
    ]
    return left, rows_then


def _of_held(held: _Held, row: TransactionMetadata | None, now_ms: int) -> HangingTransaction:
    log, first = held.log, held.batches[0]
    age_ms = _age_ms(log, first, now_ms)
    where = TopicPartition(log.name, held.partition)
    return _described(
        row,
        log,
        where,
        held.transaction,
        start_offset=first.base_offset,
        last_timestamp_ms=max(map(newest_timestamp_ms, held.batches)),
        since_ms=-1 if age_ms == AGE_UNKNOWN_MS else now_ms - age_ms,
        duration_ms=age_ms,
    )


def _of_rows(
    owned: Collection[TransactionMetadata],
    logs: Logs,
    asked: Collection[tuple[str, int]],
    now_ms: int,
) -> Iterator[HangingTransaction]:
    """Decided records that are in no topic yet, and offsets that readers of a group wait for."""
    for row in owned:
        staged: dict[tuple[str, int], list[StagedBatch]] = {}
        if row.state is TransactionState.PREPARE_COMMIT:
            for batch in row.pending.batches:
                log = logs.get(batch.topic)
                if log is not None and not has_marker(log.view, batch.topic_id, row.transaction):
                    staged.setdefault((batch.topic, batch.partition), []).append(batch)
        groups: dict[tuple[str, int], list[str]] = {}
        if row.state is TransactionState.ONGOING:
            for ticket in row.pending.tickets:
                if ticket.ticket >= row.owner.floors.get(ticket.group_id, 0):
                    for topic, numbers in ticket.offsets.items():
                        for number in numbers:
                            groups.setdefault((topic, number), []).append(ticket.group_id)
        since_ms = row.updated_ms if row.state.is_prepared else row.started_ms
        for key in sorted({*staged, *groups} & set(asked)):
            times_us = [batch.timestamp_max_us for batch in staged.get(key, ())]
            yield _described(
                row,
                logs[key[0]],
                TopicPartition(*key),
                row.transaction,
                start_offset=None,
                last_timestamp_ms=max(times_us, default=-1000) // 1000,
                since_ms=since_ms,
                duration_ms=max(0, now_ms - since_ms),
                groups=tuple(groups.get(key, ())),
            )


def _described(
    row: TransactionMetadata | None,
    log: TopicLog,
    where: TopicPartition,
    transaction: ProducerIdAndEpoch,
    *,
    start_offset: int | None,
    last_timestamp_ms: int,
    since_ms: int,
    duration_ms: int,
    groups: tuple[str, ...] = (),
) -> HangingTransaction:
    is_open = row is not None and row.state is TransactionState.ONGOING
    is_prepared = row is not None and row.pending.prepared_by_client
    has_time_out = row is not None and is_open and not is_prepared
    return HangingTransaction(
        topic=where.topic,
        partition=where.partition,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        coordinator_epoch=log.view.markers.get(transaction.producer_id, -1),
        start_offset=start_offset,
        last_timestamp_ms=last_timestamp_ms,
        duration_ms=duration_ms,
        transactional_id="" if row is None else row.transactional_id,
        state=None if row is None else row.state,
        since_ms=row.started_ms if row is not None and is_open else since_ms,
        until_ms=row.started_ms + row.timeout_ms if row is not None and has_time_out else None,
        prepared_by_client=is_open and is_prepared,
        owner="" if row is None else row.owner.describe(),
        query_name="" if row is None else row.owner.query_name,
        groups=groups,
        command=_command(row, where, transaction),
    )


def _command(
    row: TransactionMetadata | None, where: TopicPartition, transaction: ProducerIdAndEpoch
) -> str:
    """What ends it at once."""
    if row is None:
        return (
            f"txnlog transactions abort {shell_option('--topic', where.topic)} "
            f"-p {where.partition} --producer-id {transaction.producer_id} "
            f"--producer-epoch {transaction.epoch}"
        )
    if row.state.is_prepared:
        return "txnlog housekeeping --once"
    return f"txnlog transactions abort {shell_option('--transactional-id', row.transactional_id)}"


def _age_ms(log: TopicLog, header: BatchHeader, now_ms: int) -> int:
    try:
        meta = log.store.head(f"{log.path}/{header.path}")
    except ObjectNotFoundError:
        return AGE_UNKNOWN_MS
    return max(0, now_ms - meta.last_modified_ms)
