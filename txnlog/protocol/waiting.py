"""Transactions that readers, or others, wait for: whose, since when, until when, what ends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from txnlog.protocol.metadata import (
    NO_EPOCH,
    ProducerIdAndEpoch,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.problems import (
    ONCE,
    PATIENCE_MS,
    Place,
    Problem,
    ProblemKind,
    RootState,
    problem_of,
)
from txnlog.protocol.shards import offsets_table_of
from txnlog.protocol.states import TransactionState
from txnlog.protocol.verification.topics import TopicFacts, Undecided
from txnlog.text import shell_option

Rows = Mapping[ProducerIdAndEpoch, TransactionMetadata]


def held(topic: TopicFacts) -> dict[tuple[int, ProducerIdAndEpoch], list[Undecided]]:
    """The undecided batches of each transaction in each partition, in order: they hold its LSO."""
    found: dict[tuple[int, ProducerIdAndEpoch], list[Undecided]] = {}
    for batch in sorted(topic.undecided, key=lambda batch: (batch.partition, batch.base_offset)):
        transaction = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)
        found.setdefault((batch.partition, transaction), []).append(batch)
    return found


def last_stable_offset(topic: TopicFacts, partition: int) -> int:
    """Where read_committed readers of a partition stop."""
    first = [batch.base_offset for batch in topic.undecided if batch.partition == partition]
    return max(min(first, default=topic.ends[partition]), topic.starts[partition])


def unfinished(rows: Iterable[TransactionMetadata]) -> Rows:
    """The rows of open and decided transactions."""
    return {
        row.transaction: row for row in rows if row.txn_epoch != NO_EPOCH and not row.state.is_idle
    }


def unpublished_files(state: RootState) -> list[StagedBatch]:
    """What decided transactions have not brought into its topics yet."""
    return [
        batch
        for row in unfinished(state.rows).values()
        if row.state is TransactionState.PREPARE_COMMIT
        for batch in row.pending.batches
        if batch.topic in state.topics
        and _lacks_marker(state.topics[batch.topic], batch.topic_id, row)
    ]


def end_command(
    row: TransactionMetadata | None, transaction: ProducerIdAndEpoch, topic: str, partition: int
) -> str:
    """What ends a transaction at once; one without a row by its data in a partition."""
    if row is None:
        return (
            f"txnlog transactions abort {shell_option('--topic', topic)} -p {partition} "
            f"--producer-id {transaction.producer_id} --producer-epoch {transaction.epoch}"
        )
    if row.is_ending:
        return ONCE
    return f"txnlog transactions abort {shell_option('--transactional-id', row.transactional_id)}"


def waiting_transactions(state: RootState) -> Iterator[Problem]:
    """Those that hold the last stable offset, or whose records or offsets readers wait for."""
    rows = unfinished(state.rows)
    places: dict[tuple[ProducerIdAndEpoch, str], list[Place]] = {}
    for name, topic in sorted(state.topics.items()):
        for (partition, transaction), batches in held(topic).items():
            # One without a row is ended in each topic.
            key = transaction, "" if transaction in rows else name
            first, paths = batches[0], tuple(batch.path for batch in batches)
            since_ms = state.written_ms.get(f"{name}/{first.path}", -1)
            bounds = first.base_offset, batches[-1].last_offset
            places.setdefault(key, []).append(Place(name, partition, since_ms, *bounds, paths))
    for row in rows.values():
        places.setdefault((row.transaction, ""), []).extend(_waiting(row, state.topics))
    for (transaction, _), where in places.items():
        known = rows.get(transaction)
        if known is None:
            yield _hanging(transaction, where)
        elif known.is_ending:
            yield from _decided(known, where, state)
        elif where:
            yield _open(known, where, state.now_ms)


def _waiting(row: TransactionMetadata, topics: Mapping[str, TopicFacts]) -> list[Place]:
    """Where its decided records are not yet, and whose readers wait for its offsets."""
    since_ms = row.updated_ms if row.state.is_prepared else row.started_ms
    staged = {
        (batch.topic, batch.partition)
        for batch in row.pending.batches
        if row.state is TransactionState.PREPARE_COMMIT
        and batch.topic in topics
        and _lacks_marker(topics[batch.topic], batch.topic_id, row)
    }
    groups: dict[tuple[str, int], list[str]] = {}
    for ticket in row.pending.tickets if row.state is TransactionState.ONGOING else ():
        if ticket.ticket >= row.owner.floors.get(ticket.group_id, 0):
            for topic, numbers in ticket.offsets.items():
                for number in numbers:
                    if topic in topics:
                        groups.setdefault((topic, number), []).append(ticket.group_id)
    return [
        Place(*key, since_ms, groups=tuple(groups.get(key, ())))
        for key in sorted({*staged, *groups})
    ]


def _lacks_marker(topic: TopicFacts, topic_id: str, row: TransactionMetadata) -> bool:
    """A deleted topic gets no marker, nor one that was created again."""
    if topic.is_deleted or topic.topic_id != topic_id:
        return False
    return topic.txns.markers.get(row.producer_id, -1) < row.txn_epoch


def is_published(row: TransactionMetadata, state: RootState) -> bool:
    """Whether a decided transaction is where it has decided to be, COMPLETE or not."""
    return row.state.is_prepared and not _unpublished(row, state)


def _unpublished(row: TransactionMetadata, state: RootState) -> list[str]:
    """The tables without the marker, or the part, of a decided transaction."""
    named = dict(row.topic_ids)
    lacking = [
        name
        for name, topic_id in row.topic_ids
        if name in state.topics and _lacks_marker(state.topics[name], topic_id, row)
    ]
    for table in {offsets_table_of(one.group_id, state.offsets_shards) for one in row.moves}:
        named[table] = ""
        memory = state.offsets.get(table)
        if memory is not None and memory.markers.get(row.producer_id, -1) < row.txn_epoch:
            lacking.append(table)
    parts = [f"the table {name}" for name in state.waiting_parts.get(row.transaction, {})]
    return sorted({*lacking, *parts, *(table for table in named if table in state.gone)})


def late_transactions(state: RootState) -> Iterator[tuple[TransactionMetadata, int]]:
    """Transactions that wait for any process, and since when it can end them."""
    for row in state.rows:
        if row.decider is not None or (row.state.is_prepared and _unpublished(row, state)):
            yield row, row.updated_ms
        elif row.state is TransactionState.ONGOING and not row.pending.prepared_by_client:
            yield row, row.started_ms + row.timeout_ms


def _hanging(transaction: ProducerIdAndEpoch, places: Sequence[Place]) -> Problem:
    first = places[0]
    return Problem(
        kind=ProblemKind.HANGING,
        subject=f"producer {transaction.producer_id}, epoch {transaction.epoch}",
        why="without a state row",
        ends="an operator ends it: no process will",
        since_ms=min(place.since_ms for place in places),
        command=end_command(None, transaction, first.topic, first.partition),
        transaction=transaction,
        places=tuple(places),
    )


def _open(row: TransactionMetadata, places: Sequence[Place], now_ms: int) -> Problem:
    first, until_ms = places[0], row.started_ms + row.timeout_ms
    ends = "its time-out, unless it ends before"
    if row.pending.prepared_by_client:
        ends = "its client ends it, which has prepared it (two-phase commit): it has no time-out"
    elif now_ms > until_ms + PATIENCE_MS:
        ends = "its time-out is over: any client or housekeeping aborts it, and none runs"
    return problem_of(
        row,
        kind=ProblemKind.OPEN,
        why=row.state.kafka_name,
        ends=ends,
        since_ms=row.started_ms,
        until_ms=None if row.pending.prepared_by_client else until_ms,
        command=end_command(row, row.transaction, first.topic, first.partition),
        places=places,
    )


def _decided(
    row: TransactionMetadata, places: Sequence[Place], state: RootState
) -> Iterator[Problem]:
    """Only where its records, or its offsets, are not where it has decided them to be, or where a
    table is to decide it.
    """
    tables = _unpublished(row, state)
    if not tables and not places and row.decider is None:
        return
    files = [f"{batch.topic}/{batch.path}" for batch in row.pending.batches]
    damaged = state.damaged_files
    wrong = [f"{file} {damaged[file]}" for file in files if file in damaged]
    gone = [table for table in tables if table in state.gone]
    blocked = {
        name: reason
        for name, reason in state.waiting_parts.get(row.transaction, {}).items()
        if reason
    }
    kind, why, command = ProblemKind.DECIDED, row.state.kafka_name, ONCE
    ends = "any client or housekeeping finishes it: it is decided"
    if row.decider is not None:
        why = f"{why}; the next commit to the table {row.decider.name} decides it"
        ends = "any client or housekeeping puts the change there, or gives it up"
    if wrong:
        kind, command = ProblemKind.FILE_DAMAGED, "txnlog verify"
        why = f"{why}; a file that it has decided to publish is damaged: {'; '.join(wrong)}"
        ends = "the file, restored as it was; then any client finishes the transaction"
    elif gone:
        kind, command = ProblemKind.TOPIC_MISSING, "txnlog verify"
        why = f"{why}; it writes to {', '.join(gone)}, and its folder is gone"
        ends = "the folder, mounted or restored; then any client finishes the transaction"
    elif blocked:
        kind, name = ProblemKind.TABLE_BLOCKED, min(blocked)
        command = f"txnlog tables describe {name}"
        why = f"{why}; {'; '.join(f'{name}: {blocked[name]}' for name in sorted(blocked))}"
        ends = "the table, once it takes the part or can be read again, or `txnlog tables restage`"
        if row.decider is not None:
            ends = "the table, once it can be read again and takes commits; it decides then"
    elif tables and row.decider is None:
        why = f"{why}; its marker is not in {', '.join(tables)}"
    yield problem_of(
        row,
        kind=kind,
        why=why,
        ends=ends,
        since_ms=row.updated_ms,
        command=command,
        places=places,
    )
