"""Reads what `find_problems` judges: the newest state of the tables, as any consumer has it.

Nothing is listed that grows with what was ever written. Beside the tails of the logs it asks for
the files of what readers wait for, and where ids or topics look odd for their newest history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from txnlog.admin.ages import shown_now_ms
from txnlog.admin.looks import Looks
from txnlog.cluster import Cluster
from txnlog.coordinator.tables import waits_for
from txnlog.errors import (
    CorruptLogError,
    ForeignTableError,
    NotCoordinatorError,
    TxnLogError,
    UnsupportedProtocolError,
)
from txnlog.process.failures import caught
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.diagnosis import (
    TAKEOVERS_MIN,
    TAKEOVERS_MS,
    lagging_queries,
)
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.problems import RootState
from txnlog.protocol.shards import state_table
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import with_unmoved
from txnlog.protocol.topics import TopicState, may_be_topic
from txnlog.protocol.transitions import TAKEN_OVER
from txnlog.protocol.verification import tables as across
from txnlog.protocol.verification.findings import FindingKind, Findings
from txnlog.protocol.verification.topics import TopicFacts, Undecided
from txnlog.protocol.waiting import Rows, held, unfinished, unpublished_files
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

Logs = Mapping[str, TopicLog]

DAMAGES = (CorruptLogError, NotCoordinatorError, UnsupportedProtocolError)


def read_root(
    cluster: Cluster,
    *,
    reader: str | None = None,
    looks: Looks | None = None,
    as_of_ms: int | None = None,
) -> RootState:
    """All of a root, and whether the files are there that a group reads next.

    `as_of_ms`: the cluster is as of then. Files are as they are now, and tables may differ by
    milliseconds, so neither is judged. Raises StorageError, an authorization error; damage is in
    the state.
    """
    looks = looks or Looks(cluster)
    unreadable: dict[str, str] = {}
    shards, offsets = _row_tables(cluster, unreadable)
    is_whole, is_now = not unreadable, as_of_ms is None
    rows = {row.transaction: row for shard in shards for row in shard.view.rows.values()}
    groups = _groups(offsets, rows.values())
    logs, later = _topic_logs(looks, rows.values(), groups, unreadable)
    topics = {name: facts_of(log.view, name) for name, log in logs.items() if log.log.exists}
    unread = dict(_unread(groups, logs))
    files = {
        f"{topic}/{left[0].header.path}": left[0].header.size_bytes
        for (group_id, topic, _), left in unread.items()
        if group_id == reader and left
    }
    state = RootState(
        now_ms=shown_now_ms(cluster.store) if as_of_ms is None else as_of_ms,
        rows=list(rows.values()),
        groups=groups,
        topics=topics,
        offsets={log.path: log.view.txns for log in offsets},
        offsets_shards=cluster.offsets_shards_count,
        unread={key: sum(map(_records, left)) for key, left in unread.items()},
        oldest_ms=_oldest_ms(unread, logs),
        gone=[name for name, log in logs.items() if not log.log.exists],
        unreadable=unreadable,
        later=later,
        upkeep=looks.upkeep(),
        free_bytes=cluster.store.free_bytes(),
    )
    state = _confirmed(cluster, logs, state) if is_whole else _known_only(state)
    return replace(
        state,
        waiting_parts=_waiting_parts(cluster, state) if is_now else {},
        written_ms=_written_ms(looks, state),
        damaged_files=_damaged_files(looks, {**files, **_decided_files(state)}) if is_now else {},
        findings=_findings(cluster, state).kept if is_whole and is_now else (),
        takeovers=_takeovers(looks, state),
        batches=_batches(looks, state),
        small_files={name: looks.small_files(log) for name, log in logs.items()},
        unvacuumed=looks.unvacuumed(logs, state) if is_whole and is_now and not later else {},
    )


def read_groups(cluster: Cluster) -> dict[str, Group]:
    """The groups that can be read, with the offsets that are decided for them; all in two rounds.

    Raises StorageError, an authorization error.
    """
    shards, offsets = _row_tables(cluster, {})
    return _groups(offsets, (row for shard in shards for row in shard.view.rows.values()))


def read_waiting(cluster: Cluster, names: Iterable[str]) -> RootState:
    """What readers of some topics may wait for. Raises UnknownTopicOrPartitionError."""
    # Rows before topics: what was ended in between is seen as ended.
    rows = unfinished(_rows(cluster))
    logs = cluster.topics(names)
    topics = {name: facts_of(log.view, name) for name, log in logs.items()}
    state = RootState(now_ms=0, rows=list(rows.values()), topics=topics)
    state = _confirmed(cluster, logs, state)
    is_needed = rows or any(topic.undecided for topic in topics.values())
    return replace(
        state,
        now_ms=shown_now_ms(cluster.store) if is_needed else 0,
        written_ms=_written_ms(Looks(cluster), state),
    )


def facts_of(view: TopicState, name: str) -> TopicFacts:
    """What other tables are checked against."""
    numbers = range(len(view.partitions))
    return TopicFacts(
        name=name,
        topic_id=view.topic_id,
        is_deleted=view.deleted,
        starts=[view.log_start_offset(number) for number in numbers],
        ends=[view.high_watermark(number) for number in numbers],
        txns=view.txns,
        undecided=[
            Undecided(
                batch.producer_id,
                batch.producer_epoch,
                batch.partition,
                batch.base_offset,
                batch.last_offset,
                batch.path,
            )
            for partition in view.partitions
            for batch in partition.ongoing.values()
        ],
    )


# --- Tables ---------------------------------------------------------------------------------------


def _rows(cluster: Cluster) -> Iterable[TransactionMetadata]:
    return (row for shard in cluster.existing_shards() for row in list(shard.view.rows.values()))


def _row_tables(
    cluster: Cluster, unreadable: dict[str, str]
) -> tuple[list[TransactionLog], list[OffsetsLog]]:
    """The shards of both kinds; the ids before the groups, whose rows refer to them."""
    found: list[TransactionLog | OffsetsLog] = []
    tails = cluster.shard_tails()
    for is_state in (True, False):
        some = [(table, tail) for table, tail in tails if _is_state(table) is is_state]
        logs = cluster.store.together([partial(caught, tail) for _, tail in some])
        for (table, _), log in zip(some, logs, strict=True):
            if isinstance(log, TxnLogError):
                _note_damage(table, log, unreadable)
            else:
                found.append(log)
    for one in found:
        for key, row in one.view.rows.unreadable.items():
            unreadable[key] = row.error.message
    return (
        [log for log in found if isinstance(log, TransactionLog)],
        [log for log in found if isinstance(log, OffsetsLog)],
    )


def _is_state(table: str) -> bool:
    return table.startswith(state_table(0)[:-1])


def _note_damage(table: str, error: TxnLogError, unreadable: dict[str, str]) -> None:
    """Raises what is no damage: a store that is away, or a permission that is missing."""
    if not isinstance(error, DAMAGES):
        raise error
    unreadable[table] = error.message


def _groups(offsets: Iterable[OffsetsLog], rows: Iterable[TransactionMetadata]) -> dict[str, Group]:
    """With the offsets that are decided and not moved: they count."""
    moving: dict[str, list[TransactionMetadata]] = {}
    for row in rows:
        for one in row.moves:
            moving.setdefault(one.group_id, []).append(row)
    return {
        name: with_unmoved(group, moving.get(name, ()), log.view.markers)
        for log in offsets
        for name, group in log.view.rows.items()
    }


class _Left(NamedTuple):
    """A batch of which a group has not read the records from an offset on."""

    header: BatchHeader
    start_offset: int


def _records(left: _Left) -> int:
    return left.header.last_offset + 1 - max(left.header.base_offset, left.start_offset)


def _oldest_ms(
    unread: Mapping[tuple[str, str, int], Sequence[_Left]], logs: Logs
) -> dict[tuple[str, str, int], int]:
    """The time of the first record after each position; one of an open transaction, if no other."""
    found = {}
    for (group_id, name, number), left in unread.items():
        ongoing = logs[name].view.partitions[number].ongoing.values()
        first = left[0] if left else None
        if first is None and ongoing:
            header = min(ongoing, key=lambda one: one.base_offset)
            first = _Left(header, header.base_offset)
        if first is not None:
            found[group_id, name, number] = _time_ms(first)
    return found


def _time_ms(left: _Left) -> int:
    """About the timestamp of its first record that is left; -1: unknown."""
    header = left.header
    try:
        statistics = header.statistics
    except CorruptLogError:
        return -1
    first_us, last_us = statistics.timestamp_min_us, statistics.timestamp_max_us
    if not -(2**62) < first_us <= last_us < 2**62:
        return -1
    passed, offsets = (
        left.start_offset - header.base_offset,
        header.last_offset + 1 - header.base_offset,
    )
    return (first_us + max(0, passed) * (last_us - first_us) // offsets) // 1000


def _unread(
    groups: Mapping[str, Group], logs: Logs
) -> Iterator[tuple[tuple[str, str, int], list[_Left]]]:
    """What is left of each partition up to its last stable offset, without aborted batches."""
    for group_id, group in groups.items():
        for name, numbers in group.positions().items():
            view = logs[name].view if name in logs else None
            for number, start in numbers.items():
                if view is not None and not view.deleted and number < len(view.partitions):
                    end = view.last_stable_offset(number)
                    batches = view.batches(number, start, end, read_committed=True)
                    yield (group_id, name, number), [_Left(header, start) for header in batches]


def _topic_logs(
    looks: Looks,
    rows: Iterable[TransactionMetadata],
    groups: Mapping[str, Group],
    unreadable: dict[str, str],
) -> tuple[Logs, Collection[str]]:
    """The logs of all topics, also of deleted ones, and of those rows name that have none; and the
    names of those that are read later: of no open transaction.
    """
    there = looks.cluster.topic_names()
    newest = sorted(rows, key=lambda row: -row.updated_ms)
    named = dict.fromkeys(topic for row in newest for topic in row.topics)
    ongoing = (row for row in newest if row.state is TransactionState.ONGOING)
    needed = {topic for row in ongoing for topic in row.topics if may_be_topic(topic)}
    read = {topic for group in groups.values() for topic in group.positions()}
    wanted = [*sorted(needed), *(name for name in there if name in read), *named, *there]
    logs = {name: looks.cluster.topic_log(name) for name in wanted if may_be_topic(name)}
    errors = looks.tail(list(logs.values()), len(needed))
    found = {}
    for name, error in sorted(errors.items()):
        if error is None and (logs[name].log.exists or name in named):
            found[name] = logs[name]
        elif error is not None and not isinstance(error, ForeignTableError):
            _note_damage(name, error, unreadable)
    return found, logs.keys() - errors.keys()


def _known_only(state: RootState) -> RootState:
    """Where rows cannot be read, data without a row may be theirs."""
    rows = unfinished(state.rows)
    topics = {
        name: replace(topic, undecided=[b for b in topic.undecided if _transaction(b) in rows])
        for name, topic in state.topics.items()
    }
    return replace(state, topics=topics)


def _confirmed(cluster: Cluster, logs: Logs, state: RootState) -> RootState:
    """With rows that were read after the topics: a transaction may have begun in between.

    One that has no row then, and whose data is still undecided after that, is hanging.
    """
    rows: Rows = unfinished(state.rows)
    lost = {
        name
        for name, topic in state.topics.items()
        if any(_transaction(batch) not in rows for batch in topic.undecided)
    }
    if not lost:
        return state
    then = {**rows, **unfinished(_rows(cluster))}
    cluster.refresh_together(logs[name] for name in lost)
    topics = dict(state.topics)
    for name in lost:
        still = set(facts_of(logs[name].view, name).undecided)
        kept = [b for b in topics[name].undecided if _transaction(b) in then or b in still]
        topics[name] = replace(topics[name], undecided=kept)
    known = {row.transactional_id for row in then.values()}
    idle = [row for row in state.rows if row.transactional_id not in known]
    return replace(state, rows=[*then.values(), *idle], topics=topics)


def _transaction(batch: Undecided) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)


def _waiting_parts(cluster: Cluster, state: RootState) -> dict[ProducerIdAndEpoch, dict[str, str]]:
    """What tables of others do not have of decided transactions, or are to decide, and why."""
    found: dict[ProducerIdAndEpoch, dict[str, str]] = {}
    for row in state.rows:
        for table in row.tables if row.decider is None else [row.decider]:
            why = waits_for(cluster, row, table)
            if why is not None:
                found.setdefault(row.transaction, {})[table.name] = why
    return found


# --- Files ----------------------------------------------------------------------------------------


def _written_ms(looks: Looks, state: RootState) -> dict[str, int]:
    """When what readers wait for was written, where it is there."""
    files = [
        f"{name}/{batches[0].path}"
        for name, topic in state.topics.items()
        for batches in held(topic).values()
    ]
    return {path: size_and_time[1] for path, size_and_time in looks.heads(files).items()}


def _decided_files(state: RootState) -> dict[str, int]:
    return {f"{one.topic}/{one.path}": one.size_bytes for one in unpublished_files(state)}


def _damaged_files(looks: Looks, sizes: Mapping[str, int]) -> dict[str, str]:
    """What is wrong with files of these sizes."""
    heads = looks.heads(sizes)
    found = {path: "is missing" for path in sizes if path not in heads}
    for path, (size_bytes, _) in heads.items():
        if size_bytes != sizes[path]:
            found[path] = f"has {size_bytes} bytes, and {sizes[path]} were written"
    return found


# --- Histories, checks across tables --------------------------------------------------------------


def _takeovers(looks: Looks, state: RootState) -> dict[str, list[int]]:
    """When ids that were taken over just now, and often, changed their owners."""
    asked = [
        row.transactional_id
        for row in state.rows
        if row.owner.fenced is not None
        and row.owner.fenced.reason == TAKEN_OVER
        and state.now_ms - row.owner.fenced.at_ms <= TAKEOVERS_MS
        and len(row.owner.former_runs) >= TAKEOVERS_MIN
    ]
    found: dict[str, list[int]] = {}
    for name, changes in looks.histories(asked).items():
        runs = [(one.at_ms, one.row.owner.run_id) for one in changes if one.row is not None]
        found[name] = [at_ms for (_, before), (at_ms, run_id) in pairwise(runs) if run_id != before]
    return found


def _batches(looks: Looks, state: RootState) -> dict[str, list[int]]:
    """When queries that are behind, and idle, decided their newest batches."""
    return {
        name: [
            one.at_ms
            for one in changes
            if one.row is not None and one.row.state is TransactionState.PREPARE_COMMIT
        ]
        for name, changes in looks.histories(lagging_queries(state)).items()
    }


def _findings(cluster: Cluster, state: RootState) -> Findings:
    """Damage that shows in what other tables say: lost commits, lost topics."""
    found = Findings()
    memories = {name: topic.txns for name, topic in state.topics.items()}
    memories |= state.offsets

    def behind(rows: Iterable[TransactionMetadata]) -> Findings:
        findings = Findings()
        by_producer = {row.producer_id: row for row in rows}
        tables = {
            number: state_table(cluster.shard_of(row.transactional_id))
            for number, row in by_producer.items()
        }
        across.check_rows_behind(memories, state.topics.values(), by_producer, findings, tables)
        return findings

    if len(behind(state.rows)):
        # The topics were read after the rows.
        found.extend(behind(_rows(cluster)))
    existing = {*state.topics, *state.unreadable, *state.later}
    across.check_gone(existing, {}, state.rows, state.groups, found)
    offsets = Findings()
    across.check_offsets(state.groups, state.topics, existing, offsets, shards=state.offsets_shards)
    offsets.keep_only(FindingKind.OFFSET_BEYOND_END)
    found.extend(offsets)
    return found
