"""Checks across tables. Each says which of its sides must be read first.

A reader of several logs reads them at different times. What is written later is read later, so a
write in between can only make a check succeed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch, TransactionMetadata
from txnlog.protocol.problems import ONCE, Problem, ProblemKind, RootState
from txnlog.protocol.shards import offsets_table_of
from txnlog.protocol.topics import may_be_topic
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.rows import RowFacts
from txnlog.protocol.verification.topics import TopicFacts
from txnlog.protocol.waiting import late_transactions
from txnlog.text import shell_option

STUCK_MS_DEFAULT = 3_600_000
RANGES_SHOWN_MAX = 10
"""Partitions that the finding of a hanging transaction names."""

Decided = Mapping[tuple[int, str, str], tuple[int, int]]
"""Producer id, topic (or table of offsets), topic id (or "") -> newest decided epoch, the store's
time of the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableId:
    """The id in a table's metaData, and the expected id ("": any)."""

    table: str
    found: str
    expected: str = ""


def check_table_ids(tables: Iterable[TableId], findings: Findings) -> None:
    """Ids are unique; those of internal tables derive from the cluster id."""
    holders: dict[str, str] = {}
    for one in sorted(tables, key=lambda table: table.table):
        if one.expected and one.found != one.expected:
            findings.add(
                Finding(
                    kind=FindingKind.TABLE_ID_WRONG,
                    table=one.table,
                    what=f"its id is {one.found}, not {one.expected}",
                )
            )
        first = holders.setdefault(one.found, one.table)
        if first != one.table:
            findings.add(
                Finding(
                    kind=FindingKind.TABLE_ID_SHARED,
                    table=one.table,
                    what=f"its id {one.found} is also that of {first}",
                )
            )


def unpublished(topic: TopicFacts, decided: Iterable[TransactionMetadata]) -> list[StagedBatch]:
    """Batches of rows, read before the topic, whose transaction has no marker in it."""
    if topic.is_deleted:
        return []
    markers = topic.txns.markers
    return [
        batch
        for row in decided
        if markers.get(row.producer_id, -1) < row.txn_epoch
        for batch in row.pending.batches
        if (batch.topic, batch.topic_id) == (topic.name, topic.topic_id)
    ]


def check_ended(
    decided: Decided,
    earlier: Decided,
    before: Mapping[int, TransactionMetadata],
    topics: Mapping[str, TopicFacts],
    offsets: Mapping[str, TxnMemory],
    findings: Findings,
) -> None:
    """A transaction that has ended left its marker everywhere (R4).

    `earlier` are the decisions before those of `decided`, `before` the rows by producer id, read
    before `topics` and `offsets`, the readable tables of consumer offsets. A marker can have
    expired if the topic's horizon is above the decision.
    """
    for key, newest in sorted(decided.items()):
        producer_id, topic, topic_id = key
        row = before.get(producer_id)
        is_under_way = row is not None and row.state.is_prepared and row.txn_epoch <= newest[0]
        ended = earlier.get(key) if is_under_way else newest
        if ended is None:
            continue
        epoch, decided_ms = ended
        facts = topics.get(topic)
        if topic_id:
            if facts is None or facts.is_deleted or facts.topic_id != topic_id:
                continue
            if not facts.is_complete:
                continue
        txns = facts.txns if facts is not None else offsets.get(topic)
        if txns is None:
            continue
        marker = txns.markers.get(producer_id, -1)
        is_expired = marker < 0 and decided_ms < txns.transactions_expired_ms + CLOCK_ERROR_MS
        if marker < epoch and not (txns.transactions_expired_ms >= 0 and is_expired):
            findings.add(
                Finding(
                    kind=FindingKind.MARKER_MISSING,
                    table=topic,
                    subject=str(producer_id),
                    what=f"the transaction of producer {producer_id} epoch {epoch} has ended, the "
                    f"newest marker here has epoch {marker}",
                )
            )


def check_rows_behind(
    tables: Mapping[str, TxnMemory],
    topics: Iterable[TopicFacts],
    after: Mapping[int, TransactionMetadata],
    findings: Findings,
    table_of: Mapping[int, str],
) -> None:
    """No marker, and no undecided batch, is ahead of its row; one finding per row.

    `tables` are the memories of all topics and shards of offsets. `after`, rows by producer id, is
    read after them, and after the `topics`.
    """
    newest: dict[int, tuple[int, str]] = {}
    for table, memory in tables.items():
        for producer_id, marker in memory.markers.items():
            found = marker, f"{table} has its marker"
            newest[producer_id] = max(newest.get(producer_id, found), found)
    for facts in topics:
        for batch in facts.undecided:
            found = batch.producer_epoch, f"{facts.name} has its undecided batch"
            newest[batch.producer_id] = max(newest.get(batch.producer_id, found), found)
    for producer_id, (epoch, what) in newest.items():
        row = after.get(producer_id)
        if row is not None and epoch > row.txn_epoch:
            findings.add(
                Finding(
                    kind=FindingKind.ROW_BEHIND_MARKER,
                    table=table_of[producer_id],
                    subject=row.transactional_id,
                    what=f"{what} of epoch {epoch}, its row has {row.txn_epoch}",
                )
            )


def check_gone(
    existing: Collection[str],
    decided: Decided,
    rows: Iterable[TransactionMetadata],
    groups: Mapping[str, Group],
    findings: Findings,
    copied: Iterable[str] = (),
) -> None:
    """Every topic that a transaction wrote to, or that has a reader or was `copied` (tables), has a
    folder: a deleted one, too (D12). `existing` are the folders with a log; one finding per topic.
    """
    known = dict.fromkeys(filter(may_be_topic, copied), "the copy had it when it was whole")
    for producer_id, topic, topic_id in decided:
        if topic_id:
            known[topic] = f"producer {producer_id} wrote to it"
    for row in rows:
        last = row.owner.last_batch
        named = {*row.topics, *(last.topics if last is not None else ())}
        known |= dict.fromkeys(named, f"{row.transactional_id!r} wrote to it")
    for group_id, group in groups.items():
        assigned = {topic for topics in group.assignment.values() for topic in topics}
        known |= dict.fromkeys(assigned, f"group {group_id!r} reads it")
    for topic, why in sorted(known.items()):
        if topic not in existing:
            findings.add(no_log(topic, f"its folder is gone, and {why}"))


def no_log(table: str, what: str) -> Finding:
    """A table without a log."""
    return Finding(kind=FindingKind.LOG_MISSING, table=table, file=f"{table}/_delta_log", what=what)


def check_shards_known(tables: Iterable[str], known: Collection[str], findings: Findings) -> None:
    """`__cluster`, read after the folders were listed, knows every shard that has one (D95)."""
    for table in sorted(set(tables).difference(known)):
        what = "__cluster does not know that it exists"
        findings.add(Finding(kind=FindingKind.SHARD_UNKNOWN, table=table, what=what))


def check_hanging(
    topics: Iterable[TopicFacts], after: Mapping[int, TransactionMetadata], findings: Findings
) -> None:
    """Every undecided batch has a transaction that will decide it (R21); one finding for each
    transaction in a topic.

    `after`, rows by producer id, is read after the topics; the second pass must find the batch
    undecided again, since it may have been settled in between. Batches whose marker is there are
    found by the checks of the topic.
    """
    state = RootState(
        now_ms=0, rows=list(after.values()), topics={facts.name: facts for facts in topics}
    )
    for problem in find_problems(state):
        transaction = problem.transaction
        if problem.kind is not ProblemKind.HANGING or transaction is None:
            continue
        marker = state.topics[problem.places[0].topic].txns.markers.get(transaction.producer_id, -1)
        if marker < transaction.epoch and not _is_open(transaction, after):
            findings.add(_hanging(transaction, problem))


def _hanging(transaction: ProducerIdAndEpoch, problem: Problem) -> Finding:
    first = problem.places[0]
    where = [
        f"partition {place.partition} {place.start_offset}..{place.last_offset}"
        for place in problem.places
    ]
    if len(where) > RANGES_SHOWN_MAX:
        where[RANGES_SHOWN_MAX:] = [f"{len(where) - RANGES_SHOWN_MAX} more partitions"]
    batches = sum(len(place.paths) for place in problem.places)
    return Finding(
        kind=FindingKind.HANGING_TRANSACTION,
        table=first.topic,
        file=f"{first.topic}/{first.paths[0]}",
        partition=first.partition,
        offset=-1 if first.start_offset is None else first.start_offset,
        last_offset=first.last_offset,
        subject=str(transaction.producer_id),
        what=f"{batches} undecided batches of producer {transaction.producer_id} epoch "
        f"{transaction.epoch}, which has no open transaction: offsets of {', '.join(where)}",
        command=problem.command,
    )


def _is_open(transaction: ProducerIdAndEpoch, after: Mapping[int, TransactionMetadata]) -> bool:
    """Whether a later transaction of the id will settle it, too."""
    row = after.get(transaction.producer_id)
    return row is not None and not row.state.is_idle and row.txn_epoch >= transaction.epoch


def check_stuck(
    rows: Mapping[str, RowFacts[TransactionMetadata]],
    topics: Mapping[str, TopicFacts],
    offsets: Mapping[str, TxnMemory],
    findings: Findings,
    *,
    shards: int,
    now_ms: int,
    stuck_ms: int = STUCK_MS_DEFAULT,
) -> None:
    """Transactions that no process finishes or times out. By wall clocks, so only a warning.

    One that has all of its markers waits for nothing: its COMPLETE comes with the next write of its
    id. `shards` is the number of shards of the consumer `offsets`.
    """
    tables = {
        row.transactional_id: table for table, facts in rows.items() for row in facts.rows.values()
    }
    found = [row for facts in rows.values() for row in facts.rows.values()]
    named = {topic for row in found for topic, _ in row.topic_ids}
    named |= {offsets_table_of(one.group_id, shards) for row in found for one in row.moves}
    state = RootState(
        now_ms=now_ms,
        rows=found,
        topics=topics,
        offsets=offsets,
        offsets_shards=shards,
        gone=named - topics.keys() - offsets.keys(),
    )
    for row, since_ms in late_transactions(state):
        if now_ms - since_ms >= stuck_ms:
            findings.add(
                Finding(
                    kind=FindingKind.TRANSACTION_STUCK,
                    table=tables[row.transactional_id],
                    subject=row.transactional_id,
                    what=f"{row.state.name} of epoch {row.txn_epoch} since "
                    f"{(now_ms - since_ms) // 60_000} min",
                    command=ONCE,
                )
            )


def check_producer_ids(
    rows: Mapping[str, RowFacts[TransactionMetadata]],
    topics: Iterable[TopicFacts],
    offsets: Mapping[str, TxnMemory],
    given_out: int,
    findings: Findings,
) -> None:
    """Ids are unique, and below `given_out`, which is read last."""
    holders: dict[int, str] = {}
    for table, facts in rows.items():
        for row in facts.rows.values():
            if row.producer_id >= given_out:
                findings.add(_unknown(table, row.transactional_id, row.producer_id, given_out))
            other = holders.setdefault(row.producer_id, row.transactional_id)
            if other != row.transactional_id:
                findings.add(
                    Finding(
                        kind=FindingKind.PRODUCER_ID_SHARED,
                        table=table,
                        subject=row.transactional_id,
                        what=f"producer id {row.producer_id} is also that of {other!r}",
                    )
                )
    largest = {topic.name: topic.producer_id_max for topic in topics}
    largest |= {table: max(memory.markers, default=-1) for table, memory in offsets.items()}
    for table, producer_id in largest.items():
        if producer_id >= given_out:
            findings.add(_unknown(table, str(producer_id), producer_id, given_out))


def _unknown(table: str, subject: str, producer_id: int, given_out: int) -> Finding:
    return Finding(
        kind=FindingKind.PRODUCER_ID_UNKNOWN,
        table=table,
        subject=subject,
        what=f"producer id {producer_id} is in use, __cluster has given out those below "
        f"{given_out}",
    )


_OFFSET_COMMANDS: Mapping[FindingKind, str] = {
    FindingKind.OFFSET_BEYOND_END: "txnlog groups reset-offsets {} --to-latest --execute",
    FindingKind.OFFSET_WITHOUT_PARTITION: "txnlog groups delete-offsets {}",
}


def check_offsets(
    groups: Mapping[str, Group],
    topics: Mapping[str, TopicFacts],
    existing: Iterable[str],
    findings: Findings,
    *,
    shards: int,
) -> None:
    """Committed offsets are between log start and end. `groups` are read before `topics`.

    `existing` are the names of all topics, also of those that are not verified; `shards` is the
    number of shards of the consumer offsets.
    """
    names = set(existing)
    for group_id, group in sorted(groups.items()):
        for topic, offsets in sorted(group.offsets.items()):
            facts = topics.get(topic)
            if facts is None and topic in names:
                continue
            for partition, known in sorted(offsets.items()):
                finding = _offset_finding(facts, partition, known.offset)
                if finding is not None:
                    kind, what = finding
                    options = (
                        shell_option("--group", group_id),
                        shell_option("--topic", f"{topic}:{partition}"),
                    )
                    findings.add(
                        Finding(
                            kind=kind,
                            command=_OFFSET_COMMANDS.get(kind, "").format(" ".join(options)),
                            table=offsets_table_of(group_id, shards),
                            subject=group_id,
                            partition=partition,
                            offset=known.offset,
                            what=f"offset {known.offset} of {topic} partition {partition}: {what}",
                        )
                    )


def _offset_finding(
    facts: TopicFacts | None, partition: int, offset: int
) -> tuple[FindingKind, str] | None:
    if facts is None or facts.is_deleted:
        what = "there is no such topic" if facts is None else "the topic is deleted"
        return FindingKind.OFFSET_WITHOUT_PARTITION, what
    if not facts.is_complete:
        return None
    if not 0 <= partition < len(facts.ends):
        return FindingKind.OFFSET_WITHOUT_PARTITION, f"it has {len(facts.ends)} partitions"
    if offset > facts.ends[partition]:
        return FindingKind.OFFSET_BEYOND_END, f"the partition ends at {facts.ends[partition]}"
    if offset < facts.starts[partition]:
        return FindingKind.OFFSET_BELOW_START, f"the log starts at {facts.starts[partition]}"
    return None


def check_tickets(
    groups: Mapping[str, Group],
    rows: Iterable[TransactionMetadata],
    findings: Findings,
    *,
    shards: int,
) -> None:
    """No ticket is above the newest one that its group has given.

    `rows` are read before `groups`: a run registers before its row has the ticket. `shards` is the
    number of shards of the consumer offsets.
    """
    for group_id, group in sorted(groups.items()):
        for holder in group.tickets.holders:
            if holder.ticket > group.tickets.newest:
                _above(holder.transactional_id, group_id, holder.ticket, group, findings, shards)
    for row in rows:
        tickets = {group_id: floor - 1 for group_id, floor in row.owner.floors.items()}
        tickets.update((one.group_id, one.ticket) for one in row.pending.tickets)
        for group_id, ticket in sorted(tickets.items()):
            found = groups.get(group_id)
            if found is not None and ticket > found.tickets.newest:
                _above(row.transactional_id, group_id, ticket, found, findings, shards)


def _above(
    name: str, group_id: str, ticket: int, group: Group, findings: Findings, shards: int
) -> None:
    findings.add(
        Finding(
            kind=FindingKind.TICKET_ABOVE_NEWEST,
            table=offsets_table_of(group_id, shards),
            subject=group_id,
            what=f"{name!r} has ticket {ticket}, and the group has given {group.tickets.newest}",
        )
    )
