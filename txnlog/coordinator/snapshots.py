"""Taking a snapshot of a root.

txnlog.protocol.snapshots decides, and says in which order what is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from txnlog.coordinator.finishing import publish
from txnlog.coordinator.root import Root
from txnlog.coordinator.tables import check_same
from txnlog.errors import (
    ConcurrentTransactionsError,
    ForeignTableError,
    TxnLogError,
)
from txnlog.process.failures import Failures, caught, parts_of
from txnlog.protocol.copies import check_whole
from txnlog.protocol.enlisted.actions import TableState
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.snapshots import (
    Offsets,
    Snapshot,
    TableVersion,
    TopicRead,
    TopicVersion,
    decided,
    drawn_in,
    is_past,
    is_taken_over,
    maybe_decided,
    offsets_of,
    table_version,
    unpublished,
    version_of,
    without_part,
)
from txnlog.protocol.topics import may_be_topic
from txnlog.storage.tables.row_log import TransactionLog, UnreadableRow
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

TRIES_MAX = 20
LOOKS = 3
"""So often a topic without the marker of a decided transaction is read, before it is published:
most likely its own process is about to."""


def take_snapshot(root: Root, *, with_tables: bool = True) -> Snapshot:
    """The topics, the enlisted tables and the offsets of all groups at one boundary between
    transactions. Without tables it also has the versions of the row tables.

    Publishes what other processes have decided, if they do not. Topics, tables and groups that
    cannot be read are logged and left out, and tables that do not take what was decided. Raises
    what publishing raises, ConcurrentTransactionsError, CorruptLogError for a row of the
    transaction log that cannot be read, and ConfigError for a copy that is not whole.
    """
    for attempt in range(TRIES_MAX):
        with _Decisions.of(root) as decisions:
            found = _try(root, decisions, with_tables)
        if found is not None:
            for name, why in found.missing.items():
                logger.warning("Table %r is not in the snapshot: %s", name, why)
            return found
        root.store.back_off(attempt)
    raise ConcurrentTransactionsError(
        f"{root}: {TRIES_MAX} times in a row compaction or retention has removed files from a "
        "topic, a table got a checkpoint, or a group went on, while the snapshot was taken; try "
        "again."
    )


def _try(root: Root, decisions: _Decisions, with_tables: bool) -> Snapshot | None:
    """None: begin again."""
    at_ms = root.store.now_ms()
    before = {name: log.log.version for name, log in root.opened_topics().items()}
    decisions.read()
    copy = root.read_copy(refresh=False)
    check_whole(copy, root.root)
    unmoved = decisions.pending()
    _let_decide(root, decisions)
    shards = root.known_offsets_shards()
    groups = [(dict(shard.view.rows), dict(shard.view.markers)) for shard in shards]
    if shards:
        decisions.read()
    shown = decisions.pending()
    read = {shard.path: shard.log.version for shard in decisions.shards}
    read |= {shard.path: shard.log.version for shard in shards}
    unmoved |= decisions.take()
    for _ in range(TRIES_MAX):
        heads = _published(root, shown.values(), with_tables)
        decisions.read()
        later = decisions.later(shown)
        states = [state for _, state in heads.tables.values()]
        drawn = drawn_in(states, root.cluster_id, later.values())
        if not drawn:
            break
        _let_decide(root, decisions, {row.transaction for row in drawn})
        later = decisions.later(shown)
        now = decided(later[row.transaction] for row in drawn if row.transaction in later)
        shown |= now
        unmoved |= now
    else:
        return None
    if root.read_copy(refresh=False) != copy:
        # Some tables may be those of another snapshot.
        return None
    carried = {ticket.group_id for row in unmoved.values() for ticket in row.moves}
    numbers = {shard.number for shard in shards}
    if not decisions.is_whole or any(root.offsets_shard_of(one) not in numbers for one in carried):
        return None
    if is_taken_over(unmoved.values(), later.values()):
        return None
    offsets: Offsets = {}
    for shard, (rows, markers) in zip(shards, groups, strict=True):
        new = {one for one in carried - rows.keys() if root.offsets_shard_of(one) == shard.number}
        readable = _readable(rows, new, shard.view.rows.unreadable)
        offsets |= offsets_of(readable, markers, unmoved.values())
    versions = _topic_versions(heads, before, offsets, later.values())
    tables = _table_versions(root, heads, later.values())
    if versions is None or tables is None:
        return None
    return Snapshot(
        cluster_id=root.cluster_id,
        at_ms=at_ms,
        topics=versions,
        tables=tables,
        missing=heads.missing,
        offsets=offsets,
        shards={} if with_tables else read,
    )


def _let_decide(
    root: Root, decisions: _Decisions, names: Collection[ProducerIdAndEpoch] | None = None
) -> None:
    """Let tables decide transactions (None: any), and read the shards again. Else a table would be
    shown as it was before. Where one cannot be read, nothing is decided, and it is missing.
    """
    asked = [row for row in decisions.asked() if names is None or row.transaction in names]
    for row in asked:
        caught(partial(publish, root, row), f"Publishing {row.transactional_id!r}")
    if asked:
        decisions.read()


def _readable(
    rows: Mapping[str, Group], new: Collection[str], unreadable: Collection[str]
) -> dict[str, Group]:
    """The rows, and those of new groups."""
    for group_id in unreadable:
        logger.warning("Group %r cannot be read: it is in no snapshot", group_id)
    rows = {**rows, **{group_id: Group(group_id=group_id) for group_id in new}}
    return {group_id: row for group_id, row in rows.items() if group_id not in unreadable}


def _topic_versions(
    heads: _Heads,
    before: Mapping[str, int],
    offsets: Offsets,
    later: Collection[TransactionMetadata],
) -> dict[str, TopicVersion] | None:
    """Each topic without what was decided `later`; None: begin again."""
    versions = {}
    for name, topic in heads.topics.items():
        log = topic.log
        found = TopicRead(topic.view, log.version, log.removed_at, before.get(name, -1))
        one = version_of(name, found, later)
        if one is None or is_past(offsets, name, topic.view, one):
            return None
        versions[name] = one
    return versions


def _table_versions(
    root: Root, heads: _Heads, later: Collection[TransactionMetadata]
) -> dict[str, TableVersion] | None:
    """Each table without what was decided `later`; None: begin again."""
    tables = {}
    for name, (table, state) in heads.tables.items():
        version = table_version(state, root.cluster_id, later)
        if version is None:
            return None
        tables[name] = TableVersion(url=table.url, table_id=table.table_id, version=version)
    return tables


class _Decisions:
    """What the transaction log decides from the first `read` on.

    `is_whole`: no commit of it was missed.
    """

    def __init__(self, root: Root) -> None:
        self.is_whole = True
        self._root = root
        self._shards: list[TransactionLog] | None = None
        self._next: dict[str, int] = {}
        self._rows: list[TransactionMetadata] = []

    @classmethod
    @contextmanager
    def of(cls, root: Root) -> Iterator[_Decisions]:
        """They are noted while the block runs."""
        decisions = cls(root)
        try:
            yield decisions
        finally:
            for shard in decisions.shards:
                shard.view.watch = None

    @property
    def shards(self) -> Sequence[TransactionLog]:
        """The shards, as of the last `read`."""
        return self._shards or ()

    def read(self) -> None:
        """Tail all shards."""
        is_first = self._shards is None
        failures = Failures("Reading tables", logging.DEBUG)
        shards = self._root.tail_shards(failures)
        failures.check()
        self._shards = shards
        for shard in self._shards:
            if shard.path not in self._next:
                # One that was created since has decided something already.
                self.is_whole &= is_first
                self._next[shard.path] = shard.log.version + 1
                shard.view.watch = partial(self._note, shard.path)

    def _note(
        self, path: str, version: int, rows: Sequence[TransactionMetadata | UnreadableRow]
    ) -> None:
        self.is_whole &= version == self._next[path]
        self._next[path] = version + 1
        for row in rows:
            if isinstance(row, UnreadableRow):
                self.is_whole = False
            else:
                self._rows.append(row)

    def take(self) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
        """What was decided up to now; `later` is from now on."""
        rows, self._rows = self._rows, self.asked()
        return decided(rows)

    def later(
        self, shown: Collection[ProducerIdAndEpoch]
    ) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
        """What may have been decided since `take`, but for what is shown."""
        found = maybe_decided(self._rows)
        return {name: row for name, row in found.items() if name not in shown}

    def asked(self) -> list[TransactionMetadata]:
        """What tables are to decide now."""
        rows = (row for shard in self.shards for row in shard.view.rows.active.values())
        return [row for row in rows if row.decider is not None]

    def pending(self) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
        """What is decided and not completed now. Raises CorruptLogError."""
        for shard in self.shards:
            for unreadable in shard.view.rows.unreadable.values():
                raise unreadable.error.replace()
        return decided(row for shard in self.shards for row in shard.view.rows.active.values())


class _Heads(NamedTuple):
    """Topics and enlisted tables by name, tailed to their heads; `missing` as in a snapshot."""

    topics: dict[str, TopicLog]
    tables: dict[str, tuple[EnlistedTable, TableState]]
    missing: dict[str, str]


def _published(root: Root, rows: Collection[TransactionMetadata], with_tables: bool) -> _Heads:
    """The heads, each with the markers and parts of these decided rows.

    A table that does not take a part is missing.
    """
    done: set[ProducerIdAndEpoch] = set()
    failed: dict[ProducerIdAndEpoch, TxnLogError] = {}
    missing: dict[str, str] = {}
    for attempt in range(TRIES_MAX):
        heads = _tail(root, missing, with_tables)
        left = unpublished(rows, {name: log.view for name, log in heads.topics.items()})
        asked = [row for row in rows if row.transaction not in done]
        for name, (_, state) in list(heads.tables.items()):
            lacking = without_part(asked, state, root.cluster_id)
            errors = [failed[row.transaction] for row in lacking if row.transaction in failed]
            if errors and not any(one.retriable for one in parts_of(errors[0])):
                del heads.tables[name]
                missing[name] = errors[0].message
            else:
                left += [row for row in lacking if row not in left]
        if not left:
            return heads
        for row in left:
            if row.transaction in failed:
                raise failed[row.transaction]
        if attempt < LOOKS:
            root.store.back_off(attempt)
            continue
        for row in left:
            outcome = caught(partial(publish, root, row), f"Publishing {row.transactional_id!r}")
            if isinstance(outcome, TxnLogError):
                failed[row.transaction] = outcome
            else:
                done.add(row.transaction)
    raise ConcurrentTransactionsError(
        f"{root}: {left[0].transactional_id!r} is decided, and could not be published; try again.",
        transactional_id=left[0].transactional_id,
    )


def _tail(root: Root, missing: dict[str, str], with_tables: bool) -> _Heads:
    """All topics, and enlisted tables, tailed; new topics are looked for beside.

    Tables that cannot be read are added to `missing`. Raises StorageError.
    """
    known = root.opened_topics()
    names: list[str] = []

    def look() -> None:
        names.extend(name for name in root.store.list_folders() if may_be_topic(name))

    enlisted = root.enlisted(refresh=False) if with_tables else {}
    enlisted = {name: table for name, table in enlisted.items() if name not in missing}
    calls: list[Callable[[], Any]] = [
        look,
        *(partial(_tailed, log) for log in known.values()),
        *(partial(_tailed_table, root, name, table) for name, table in enlisted.items()),
    ]
    outcomes = root.store.together(calls)[1:]
    new = [root.topic_log(name) for name in sorted(names) if name not in known]
    read: dict[str, TopicLog | TxnLogError] = dict(zip(known, outcomes, strict=False))
    read |= {
        log.name: outcome
        for log, outcome in zip(
            new, root.store.together([partial(_tailed, log) for log in new]), strict=True
        )
    }
    retried = Failures("Reading topics and tables", logging.DEBUG)
    topics: dict[str, TopicLog] = {}
    for name, found in read.items():
        if isinstance(found, TopicLog):
            topics |= {name: found} if found.exists else {}
        elif found.retriable:
            retried.add(name, found)
        elif not isinstance(found, ForeignTableError):
            logger.warning("Topic %r cannot be read: it is in no snapshot. %s", name, found)
    tables = {}
    for name, state in zip(enlisted, outcomes[len(known) :], strict=True):
        if isinstance(state, TableState):
            tables[name] = enlisted[name], state
        elif state.retriable:
            retried.add(name, state)
        else:
            missing[name] = state.message
    retried.check()
    return _Heads(topics, tables, missing)


def _tailed(log: TopicLog) -> TopicLog | TxnLogError:
    def tail() -> TopicLog:
        log.refresh()
        return log

    return caught(tail, f"Reading topic {log.name!r}")


def _tailed_table(root: Root, name: str, table: EnlistedTable) -> TableState | TxnLogError:
    def tail() -> TableState:
        log = root.table_log(table.url)
        log.refresh()
        check_same(log, table)
        return log.state

    return caught(tail, f"Reading table {name!r}")
