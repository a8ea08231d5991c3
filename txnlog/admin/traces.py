"""Why a group waits, what became of an id, which transaction wrote a record: reads what they need.

Read-only. The history that says who decided a transaction is that of the log's retention; a batch
shows its producer until it is compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from txnlog.admin.groups import require_group
from txnlog.admin.histories import headers_in, row_changes, row_of, search
from txnlog.admin.root_state import read_groups, read_root
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.coordinator.state_rows import as_shown
from txnlog.errors import (
    ObjectNotFoundError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import TopicPartition
from txnlog.process import arrow_compute as pc
from txnlog.process.failures import caught
from txnlog.protocol.batches import ABORTED, NONE, BatchHeader
from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.explanations import (
    GroupExplanation,
    IdExplanation,
    Piece,
    RecordTrace,
    explain_group,
    explain_id,
)
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.partitioner import partition_for_key
from txnlog.protocol.problems import Problem
from txnlog.protocol.shards import state_table
from txnlog.protocol.topics import may_be_topic
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.delta.actions import Add, Commit
from txnlog.storage.tables.topic_log import TopicLog

Decision = tuple[int, TransactionMetadata]
"""When a transaction was decided, and its row then."""

READ_ROWS = 65_536


def root_problems(cluster: Cluster) -> list[Problem]:
    """All problems of a root, those of readers first."""
    return find_problems(read_root(cluster))


def explain_group_of(cluster: Cluster, group_id: str) -> GroupExplanation:
    """Why a group waits or lags. Raises GroupIdNotFoundError, CorruptLogError for its row."""
    group = require_group(cluster, group_id)
    state = read_root(cluster, reader=group_id)
    return explain_group(state, state.groups.get(group_id, group))


def explain_id_of(cluster: Cluster, transactional_id: str) -> IdExplanation:
    """What became of an id. Raises TransactionalIdNotFoundError, CorruptLogError for its row."""
    table = state_table(cluster.shard_of(transactional_id))
    found = cluster.coordinator.describe(transactional_id)
    changes = list(row_changes(cluster, table, {transactional_id}))
    if found is None and not changes:
        raise TransactionalIdNotFoundError(
            f"There is no transactional.id {transactional_id!r}: it has not committed yet, or has "
            "expired, longer ago than the log tells.",
            transactional_id=transactional_id,
        )
    [row] = as_shown(cluster, [found]) if found is not None else [None]
    return explain_id(read_root(cluster), transactional_id, row, changes)


# --- Records --------------------------------------------------------------------------------------


def trace_record(cluster: Cluster, asked: TopicPartition) -> RecordTrace:
    """The transaction that wrote the record at an offset. Raises UnknownTopicOrPartitionError."""
    log = cluster.topic(asked.topic)
    check_partition(log, asked.partition)
    view, is_written = log.view, asked.offset < log.view.high_watermark(asked.partition)
    batches = view.batches(asked.partition, asked.offset, asked.offset + 1, False)
    live = batches[0] if batches else None
    trace = RecordTrace(
        topic=log.name,
        partition=asked.partition,
        offset=asked.offset,
        status="removed" if is_written else "not written",
        file="" if live is None else f"{log.path}/{live.path}",
        read_by=_readers(cluster, asked) if is_written else (),
    )
    if live is None or asked.offset < view.log_start_offset(asked.partition):
        return trace
    header = live if live.producer_id >= 0 else _written_as(cluster, asked)
    if header is None:
        return replace(trace, status="compacted, unknown")
    transaction = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    trace = replace(
        trace,
        status=header.status,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
    )
    if header.status == NONE:
        return trace
    return _with_transaction(cluster, trace, transaction, f"{log.path}/{header.path}")


def _with_transaction(
    cluster: Cluster, trace: RecordTrace, transaction: ProducerIdAndEpoch, file: str
) -> RecordTrace:
    row = row_of_producer(cluster, transaction.producer_id)
    decision = decision_of(cluster, transaction, row, _staged_ms(cluster, file))
    if row is not None:
        trace = replace(trace, transactional_id=row.transactional_id)
    if decision is None:
        return replace(trace, pieces=pieces_of(cluster, transaction, None))
    at_ms, decided = decision
    last = decided.owner.last_batch if decided.owner.query_id else None
    return replace(
        trace,
        transactional_id=decided.transactional_id,
        owner=decided.owner,
        batch_id=None if last is None or not decided.state.is_prepared else last.batch_id,
        decided_ms=at_ms if decided.state.is_prepared else -1,
        pieces=pieces_of(cluster, transaction, decided),
        offsets=decided.pending.tickets,
    )


def trace_key(cluster: Cluster, topic: str, key: bytes) -> RecordTrace:
    """The transaction of the newest record with a key that is not aborted; it reads files from the
    end on, until it finds one. Raises UnknownTopicOrPartitionError.
    """
    log = cluster.topic(topic)
    usual = partition_for_key(key, log.partitions)
    others = [number for number in range(log.partitions) if number != usual]
    for number in (usual, *others):
        offset = _newest(log, number, key)
        if offset is not None:
            return trace_record(cluster, TopicPartition(topic, number, offset))
    raise UnknownTopicOrPartitionError(f"Topic {topic!r} has no record with this key.", topic=topic)


def _newest(log: TopicLog, partition: int, key: bytes) -> int | None:
    view = log.view
    start, end = view.log_start_offset(partition), view.high_watermark(partition)
    for header in reversed(view.batches(partition, start, end, False)):
        if header.status == ABORTED:
            continue
        span = FileSpan(
            f"{log.path}/{header.path}",
            first_delta=max(0, start - header.base_offset),
            num_records=header.num_records,
            size_bytes=header.size_bytes,
        )
        deltas: list[int] = []
        columns = ["offset_delta", "key"]
        for batch in read_batch_file(log.store, span, columns=columns, batch_rows=READ_ROWS):
            found = batch.filter(pc.equal(batch.column("key"), key))
            deltas += found.column("offset_delta").to_pylist()
        if deltas:
            return header.base_offset + max(deltas)
    return None


def _readers(cluster: Cluster, asked: TopicPartition) -> list[str]:
    """The groups whose committed offset is past it."""
    found = []
    for group_id, group in read_groups(cluster).items():
        known = group.offsets.get(asked.topic, {})
        if asked.partition in known and known[asked.partition].offset > asked.offset:
            found.append(group_id)
    return sorted(found)


def _written_as(cluster: Cluster, asked: TopicPartition) -> BatchHeader | None:
    """The header of the record's batch before it was compacted, if the log still has it."""

    def match(header: BatchHeader) -> bool:
        is_there = header.base_offset <= asked.offset <= header.last_offset
        return is_there and header.partition == asked.partition and header.producer_id >= 0

    return search(cluster, asked.topic, partial(_header_in, asked.topic, match))


def _header_in(
    table: str, match: Callable[[BatchHeader], bool], commit: Commit
) -> BatchHeader | None:
    return next(filter(match, headers_in(table, commit)), None)


def row_of_producer(cluster: Cluster, producer_id: int) -> TransactionMetadata | None:
    """The row that has a producer id, if one has it still."""
    rows = (row for shard in cluster.existing_shards() for row in shard.view.rows.values())
    return next((row for row in rows if row.producer_id == producer_id), None)


def _staged_ms(cluster: Cluster, file: str) -> int | None:
    """About when a file was written, which is before its transaction is decided; None: unknown."""
    try:
        return cluster.store.head(file).last_modified_ms - CLOCK_ERROR_MS
    except ObjectNotFoundError:
        return None


def decision_of(
    cluster: Cluster,
    transaction: ProducerIdAndEpoch,
    row: TransactionMetadata | None,
    staged_ms: int | None,
) -> Decision | None:
    """The row with which a transaction was decided, or is open; an id that is gone, as that of a
    batch write, may be in any shard. It is looked for from when its file was staged.
    """
    if row is not None and row.transaction == transaction and not row.state.is_idle:
        return row.updated_ms, row
    shards = [shard.number for shard in cluster.existing_shards()]
    for number in shards if row is None else [cluster.shard_of(row.transactional_id)]:
        match = partial(_decision_in, state_table(number), transaction)
        found = search(cluster, state_table(number), match, since_ms=staged_ms)
        if found is not None:
            return found
    return None


def _decision_in(table: str, transaction: ProducerIdAndEpoch, commit: Commit) -> Decision | None:
    for action in commit.actions:
        if isinstance(action, Add):
            values = action.partition_values
            if values.get("producer_id") == str(transaction.producer_id):
                row = row_of(action, table, commit)
                if row.transaction == transaction and row.state.is_prepared:
                    return commit.info.timestamp, row
    return None


def pieces_of(
    cluster: Cluster, transaction: ProducerIdAndEpoch, decided: TransactionMetadata | None
) -> list[Piece]:
    """What the transaction wrote, in the topics that its decision names, or in all of them."""
    names = cluster.topic_names() if decided is None else filter(may_be_topic, decided.topics)
    found: dict[tuple[str, int], list[BatchHeader]] = {}
    for name, log in cluster.look_up(names).items():
        if isinstance(log, TopicLog):
            for header in log.view.by_path.values():
                if (header.producer_id, header.producer_epoch) == transaction:
                    found.setdefault((name, header.partition), []).append(header)
    named: set[tuple[str, int]] = set()
    if decided is not None:
        named.update((batch.topic, batch.partition) for batch in decided.pending.batches)
        named.update((one.topic, number) for one in decided.partitions for number in one.partitions)
        for topic in {topic for topic, number in named if (topic, number) not in found}:
            for key, headers in _compacted(cluster, topic, transaction).items():
                found.setdefault(key, headers)
    return [_piece(key, found.get(key, ())) for key in sorted({*found, *named})]


def _compacted(
    cluster: Cluster, topic: str, transaction: ProducerIdAndEpoch
) -> Mapping[tuple[str, int], list[BatchHeader]]:
    """The headers of a transaction in the commit that settled it, if the topic's log has it."""

    def match(commit: Commit) -> dict[tuple[str, int], list[BatchHeader]] | None:
        found: dict[tuple[str, int], list[BatchHeader]] = {}
        for header in headers_in(topic, commit):
            if (header.producer_id, header.producer_epoch) == transaction:
                found.setdefault((topic, header.partition), []).append(header)
        return found or None

    found = caught(partial(search, cluster, topic, match))
    return found if isinstance(found, dict) else {}


def _piece(key: tuple[str, int], headers: Iterable[BatchHeader]) -> Piece:
    ordered = sorted(headers, key=lambda header: header.base_offset)
    first = ordered[0].base_offset if ordered else -1
    last = ordered[-1].last_offset if ordered else -1
    offsets = sum(header.last_offset + 1 - header.base_offset for header in ordered)
    return Piece(*key, first, last, tuple(header.path for header in ordered), offsets)
