"""Vacuum: deletes data and row files; nothing else does (D11).

A run that dies has deleted some of the files, and the next run starts from the beginning; two runs
at once delete the same files. txnlog.protocol.vacuum decides, and defines the order of the reads.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from txnlog.cluster import Cluster
from txnlog.coordinator.pins import kept_files
from txnlog.errors import CorruptLogError, ForeignTableError, UnsupportedProtocolError
from txnlog.housekeeping.table_vacuum import (
    StagedFiles,
    deletable_staged_files,
    old_staged_files,
)
from txnlog.process.failures import Failures
from txnlog.protocol.metadata import StagedTable
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.txn_memory import VACUUM_AGE, VACUUM_AGE_MS_DEFAULT
from txnlog.protocol.vacuum import (
    BATCH_FILE,
    NEVER_COMMITTED,
    RETENTION_PROPERTY,
    ROW_FILE,
    Deletable,
    StoredFile,
    check_vacuum_age,
    find_deletable,
    find_old,
    format_retention,
    keeps_for,
    vacuum_age_ms,
)
from txnlog.storage.delta.actions import Action, Txn
from txnlog.storage.delta.delta_log import DeltaLog, Outcome
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.delta.transact import transact
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

T = TypeVar("T")
Handle = TopicLog | TransactionLog | OffsetsLog

logger = logging.getLogger("txnlog")

DELETED_AT_ONCE = 10_000
TABLES_AT_ONCE = 8
"""Tables that are worked on together: for each its tombstones are in memory."""


def topic_logs(cluster: Cluster, failures: Failures) -> list[TopicLog]:
    """The logs of all topics, also of deleted ones: they keep a log, and files for a while.

    Foreign tables below the root are skipped, and damaged ones, which are logged. Other errors are
    added to `failures`.
    """
    logs = [cluster.topic_log(name) for name in cluster.topic_names()]
    found = []
    for log, error in zip(logs, cluster.tail_each(logs), strict=True):
        if isinstance(error, ForeignTableError):
            continue
        if isinstance(error, CorruptLogError | UnsupportedProtocolError):
            logger.warning("Housekeeping skips %s: %s", log.name, error)
        elif error is not None:
            failures.add(log.path, error)
        elif log.log.exists and "partitions" in log.config:
            found.append(log)
    return found


def some_at_a_time(parts: Sequence[T]) -> Iterator[Sequence[T]]:
    """TABLES_AT_ONCE of the parts, then the next ones, and so on."""
    for at in range(0, len(parts), TABLES_AT_ONCE):
        yield parts[at : at + TABLES_AT_ONCE]


@dataclass(frozen=True, slots=True)
class _Manifests:
    """What pending transactions name.

    `batches` are (topic, path). Not `is_whole`: a row that cannot be read may name more.
    """

    batches: Collection[tuple[str, str]]
    tables: Sequence[StagedTable]
    is_whole: bool


@dataclass(slots=True)
class _Table:
    """A table, and its files that are old and were not live at the first read."""

    handle: Handle
    old: list[StoredFile]

    @property
    def name(self) -> str:
        return self.handle.path

    @property
    def log(self) -> DeltaLog:
        return self.handle.log

    @property
    def names(self) -> re.Pattern[str]:
        return BATCH_FILE if isinstance(self.handle, TopicLog) else ROW_FILE

    @property
    def live(self) -> Collection[str]:
        handle = self.handle
        return handle.view.by_path if isinstance(handle, TopicLog) else handle.view.sizes


class Vacuum:
    """Deletes files that no table refers to. The constructor does no I/O.

    `age_ms` is how long unreferenced and removed files stay. Raises ConfigError for less than an
    hour.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        age_ms: int = VACUUM_AGE_MS_DEFAULT,
        log_retention_ms: int | None = None,
    ) -> None:
        check_vacuum_age(age_ms)
        self._cluster = cluster
        self._snapshots: dict[str, Snapshot] = {}
        self._store = cluster.store
        self._configured_ms = age_ms
        retention_ms = cluster.settings.log_retention_ms
        self._log_retention_ms = retention_ms if log_retention_ms is None else log_retention_ms

    def find(self) -> list[Deletable]:
        """What `run` would delete now; writes nothing. Tables that cannot be read are logged."""
        now_ms = self._store.now_ms()
        age_ms = self._age_ms()
        manifests = self._manifests()
        found: list[Deletable] = []
        # A dry run returns a list: errors are logged, and none is raised at the end.
        failures = Failures("Dry run")
        for table in self._tables(now_ms, age_ms, failures):
            with failures.of(table.name):
                found += self._deletable_of(table, manifests, now_ms, age_ms)
        for staged in old_staged_files(self._cluster, failures, now_ms=now_ms, age_ms=age_ms):
            with failures.of(staged.table.url):
                found += self._deletable_staged(staged, manifests, now_ms)
        return found

    def run(self) -> int:
        """Delete unreferenced files that are old enough; returns the number of files.

        A table that cannot be read or written keeps its files and stops no other: its error is
        raised at the end.
        """
        now_ms = self._store.now_ms()
        age_ms = self._age_ms()
        failures = Failures("Vacuum", logging.DEBUG)
        tables = self._tables(now_ms, age_ms, failures)
        staged = old_staged_files(self._cluster, failures, now_ms=now_ms, age_ms=age_ms)
        topics = [table for table in tables if isinstance(table.handle, TopicLog)]
        rows = [table for table in tables if not isinstance(table.handle, TopicLog)]
        # Only its own table refers to a row's file.
        deleted = self._each(
            rows, failures, partial(self._vacuum_rows, now_ms=now_ms, age_ms=age_ms)
        )
        with failures.of("manifests"):
            deleted += self._run_topics(topics, staged, now_ms, age_ms, failures)
        failures.check()
        return deleted

    def _each(
        self, tables: Sequence[_Table], failures: Failures, work: Callable[[_Table], int]
    ) -> int:
        """The sum of the work on the tables, some together; errors are kept."""
        done = 0
        for some in some_at_a_time(tables):
            parts = [(table.name, partial(work, table)) for table in some]
            done += sum(failures.together(self._store.together, parts))
        return done

    def _vacuum_rows(self, table: _Table, *, now_ms: int, age_ms: int) -> int:
        self._write_barrier(table.handle, age_ms)
        return self._delete(table, self._deletable(table, frozenset(), now_ms, age_ms))

    def _run_topics(
        self,
        topics: Sequence[_Table],
        staged: Sequence[StagedFiles],
        now_ms: int,
        age_ms: int,
        failures: Failures,
    ) -> int:
        """After the listing: barriers in all logs, the manifests, then the tables; also of what is
        staged for tables of others.
        """
        together = self._store.together

        def barrier(table: _Table) -> _Table:
            self._write_barrier(table.handle, age_ms)
            return table

        parts = [(table.name, partial(barrier, table)) for table in topics]
        behind_barrier = failures.together(together, parts)
        if not behind_barrier and not staged:
            return 0
        # A shard created later is written by a process that then reads the topics' barriers.
        shards = self._cluster.existing_shards()
        together([partial(self._write_barrier, shard, age_ms) for shard in shards])
        manifests = self._manifests()

        def vacuum(table: _Table) -> int:
            return self._delete(table, self._deletable_of(table, manifests, now_ms, age_ms))

        deleted = self._each(behind_barrier, failures, vacuum)
        for one in staged:
            with failures.of(one.table.url):
                found = self._deletable_staged(one, manifests, now_ms)
                start = len(one.table.url) + 1
                one.store.delete([item.path[start:] for item in found])
                deleted += len(found)
        return deleted

    # -- reads -----------------------------------------------------------------------------------

    def _age_ms(self) -> int:
        timeouts_ms = [
            row.timeout_ms
            for shard in self._cluster.existing_shards()
            for row in shard.view.rows.values()
        ]
        return vacuum_age_ms(
            self._configured_ms, log_retention_ms=self._log_retention_ms, timeouts_ms=timeouts_ms
        )

    def _tables(self, now_ms: int, age_ms: int, failures: Failures) -> list[_Table]:
        """Tables with old files, for which the barriers are worth their commits."""
        cluster = self._cluster
        handles: list[Handle] = [
            *topic_logs(cluster, failures),
            *cluster.existing_shards(),
            *cluster.offsets_handles(),
        ]
        found: list[_Table] = []
        for some in some_at_a_time(handles):
            parts = [(one.path, partial(self._table, one, now_ms, age_ms)) for one in some]
            found += failures.together(self._store.together, parts)
        return [table for table in found if table.old]

    def _table(self, handle: Handle, now_ms: int, age_ms: int) -> _Table:
        table = _Table(handle, [])
        files = self._files(table.name)
        old = find_old(files, table.names, now_ms=now_ms, age_ms=age_ms)
        if old:
            handle.refresh()
            table.old = [file for file in old if file.path not in table.live]
        return table

    def _files(self, table: str) -> list[StoredFile]:
        return [
            StoredFile(item.path[len(table) + 1 :], item.size_bytes, item.last_modified_ms)
            for item in self._store.list_files(table)
        ]

    def _manifests(self) -> _Manifests:
        """What pending transactions name, as of now."""
        shards = self._cluster.existing_shards()
        pending = [row.pending for shard in shards for row in list(shard.view.rows.values())]
        unreadable = [key for shard in shards for key in shard.view.rows.unreadable]
        if unreadable:
            logger.warning(
                "Vacuum keeps files of topics that were never committed: the state rows of %s "
                "cannot be read, and may refer to them. See `txnlog transactions list`.",
                ", ".join(map(repr, sorted(unreadable))),
            )
        return _Manifests(
            {(batch.topic, batch.path) for one in pending for batch in one.batches},
            [table for one in pending for table in one.tables],
            is_whole=not unreadable,
        )

    def _deletable_staged(
        self, staged: StagedFiles, manifests: _Manifests, now_ms: int
    ) -> list[Deletable]:
        if not manifests.is_whole:
            return []
        return deletable_staged_files(
            self._cluster, staged, manifests.tables, self._snapshots, now_ms=now_ms
        )

    def _deletable_of(
        self, table: _Table, manifests: _Manifests, now_ms: int, age_ms: int
    ) -> list[Deletable]:
        deletable = self._deletable(table, manifests.batches, now_ms, age_ms)
        return deletable if manifests.is_whole else _certain(table, deletable)

    def _deletable(
        self, table: _Table, named: Collection[tuple[str, str]], now_ms: int, age_ms: int
    ) -> list[Deletable]:
        """Read the table, then its tombstones: a file removed meanwhile is in one of them."""
        table.log.refresh()
        live = set(table.live)
        kept = {path for topic, path in named if topic == table.name}
        left = [file for file in table.old if file.path not in live and file.path not in kept]
        if not left:
            return []
        found = find_deletable(
            left,
            table=table.name,
            live=live,
            named=kept,
            removed_ms=read_tombstones(self._store, table.name, version=table.log.version),
            now_ms=now_ms,
            age_ms=age_ms,
        )
        if found and isinstance(table.handle, TopicLog):
            shown = kept_files(self._cluster, {table.name}, self._snapshots)
            found = [item for item in found if item.path not in shown]
        return found

    # -- writes ----------------------------------------------------------------------------------

    def _write_barrier(self, handle: Handle, age_ms: int) -> None:
        """Write a commit that conflicts with commits under way, and carries the vacuum age."""
        log = handle.log

        def decide() -> list[Action]:
            smallest_ms = min(age_ms, handle.view.txns.vacuum_age_ms)
            actions: list[Action] = [Txn(VACUUM_AGE, smallest_ms, self._store.now_ms())]
            metadata = log.metadata
            if metadata is not None and not keeps_for(metadata.configuration, age_ms):
                # Else checkpoints would drop tombstones that the next run needs, or keep tombstones
                # that no run needs.
                kept = {**metadata.configuration, RETENTION_PROPERTY: format_retention(age_ms)}
                actions.append(replace(metadata, configuration=kept))
            return actions

        def commit(actions: list[Action]) -> Outcome:
            return log.commit(actions, operation="VACUUM START")

        transact(log, decide, commit)

    def _delete(self, table: _Table, deletable: Sequence[Deletable]) -> int:
        for start in range(0, len(deletable), DELETED_AT_ONCE):
            some = deletable[start : start + DELETED_AT_ONCE]
            self._store.delete([item.path for item in some])
            if len(deletable) > DELETED_AT_ONCE:
                done = start + len(some)
                logger.info(
                    "Vacuum of %s: %d of %d files deleted", table.name, done, len(deletable)
                )
        return len(deletable)


def _certain(table: _Table, deletable: Sequence[Deletable]) -> list[Deletable]:
    """Without files of a topic that were never committed: a manifest may name them."""
    is_topic = isinstance(table.handle, TopicLog)
    return [item for item in deletable if not is_topic or item.reason != NEVER_COMMITTED]
