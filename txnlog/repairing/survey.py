"""Reads a whole root past its damage: what is whole of each table, and what lost its effect.

Tables are read in an order: topics and groups say which markers they have before the shards of the
transaction log say which they should have. One topic is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.errors import ConfigError, CorruptLogError, ObjectNotFoundError
from txnlog.protocol.batches import COMMITTED, BatchHeader, encode_stats
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.protocol.repair.facts import (
    LEAP,
    Decisions,
    Gap,
    Markers,
    SalvagedRows,
    SalvagedTopic,
)
from txnlog.protocol.shards import OFFSETS_PREFIX, STATE_PREFIX
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import INTERNAL_PREFIX, PartitionState, may_be_topic
from txnlog.protocol.txn_memory import producer_key
from txnlog.protocol.verification.findings import Findings, Severity
from txnlog.protocol.verification.replay import File
from txnlog.repairing.logs import FoundLog, Notes, read_log
from txnlog.storage.delta.actions import Add, Commit, Metadata, Remove, Txn
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import ClusterView, check_format
from txnlog.storage.tables.row_log import RowView
from txnlog.storage.tables.schemas import CONFIG_PREFIX
from txnlog.storage.tables.topic_log import OF_A_TOPIC, TopicView
from txnlog.verifying.data_files import FILES_AT_ONCE, THREADS, damage_of
from txnlog.verifying.log_reading import Observer, read_table
from txnlog.verifying.report import Progress

Row = TypeVar("Row", TransactionMetadata, Group)

_TOPIC_MARK = CONFIG_PREFIX + "partitions"
_PREPARED = {TransactionState.PREPARE_COMMIT.name, TransactionState.PREPARE_ABORT.name}


class Survey:
    """What was found. `logs` are by table; `unreadable` topics have nothing that is whole.

    `damaged_files` are data and row files that are not whole, `sizes` those of row files by table
    and path.
    """

    def __init__(self, store: ObjectStore, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._count = 0
        self.cluster = ClusterView()
        self.logs: dict[str, FoundLog] = {}
        self.topics: dict[str, SalvagedTopic] = {}
        self.offsets: dict[str, SalvagedRows[Group]] = {}
        self.states: dict[str, SalvagedRows[TransactionMetadata]] = {}
        self.unreadable: list[str] = []
        self.damaged_files: set[str] = set()
        self.sizes: dict[str, Mapping[str, int]] = {}
        self.broken: set[tuple[str, str]] = set()
        self.decisions = Decisions({}, {}, shards=1)

    def run(self) -> None:
        """Raises ConfigError if nothing of `__cluster` is whole, UnsupportedProtocolError for
        another format, StorageError.
        """
        names = set(self._store.list_folders())
        if not any(name.startswith(INTERNAL_PREFIX) for name in names):
            raise ConfigError(
                f"There is no txnlog cluster at {self._store.url}. Check the path.",
                root=self._store.url,
            )
        found = self._read(cluster_log.PATH, self.cluster, _ClusterNotes())
        if found.metadata is None:
            raise ConfigError(
                f"{self._store.url}: nothing of {cluster_log.PATH} is whole, which says how many "
                "shards there are. Restore the whole root from a backup.",
                root=self._store.url,
            )
        check_format(self.cluster.config.get("format", ""), self._store.url)
        made = {n for n, state in self.cluster.created.items() if state == cluster_log.CREATED}
        tables = sorted(names | made)
        self._count = len(tables)
        for name in tables:
            if may_be_topic(name):
                self._topic(name)
        for name in tables:
            if name.startswith(OFFSETS_PREFIX) and name[len(OFFSETS_PREFIX) :].isdecimal():
                groups = self._shard(name, RowView(name, Group, "group_id"))
                if groups is not None:
                    self.offsets[name] = groups
        shards = int(self.cluster.config[cluster_log.OFFSETS_SHARDS])
        self.decisions = Decisions(self.topics, self.offsets, shards=shards)
        for name in tables:
            if name.startswith(STATE_PREFIX) and name[len(STATE_PREFIX) :].isdecimal():
                view = RowView(name, TransactionMetadata, "transactional_id")
                rows = self._shard(name, view, self.decisions.add)
                if rows is not None:
                    self.states[name] = rows
        for name, _ in self.decisions.unmoved:
            if name not in self.offsets:
                # Nothing of it is left, not even in the list of shards.
                self.logs[name] = FoundLog(name, is_damaged=True)
                self.offsets[name] = SalvagedRows(table=name, has_lost=True, version=LEAP - 1)
        self._staged_files()

    def _read(
        self,
        table: str,
        view: Any,
        notes: Notes,
        observe: Callable[[Findings], Observer] | None = None,
    ) -> FoundLog:
        """Read a log: all of it as verify does, and what is whole of it into the view."""

        files = 0

        def tick(count: int) -> None:
            nonlocal files
            files += count
            self._progress(table, len(self.logs), self._count, files)

        tick(0)
        whole = read_table(self._store, table, observe=observe, tick=tick)
        found = read_log(self._store, table, view, notes)
        is_damaged = any(one.severity is Severity.ERROR for one in whole.findings)
        found.is_damaged = is_damaged or found.lost > 0
        self.logs[table] = found
        return found

    # -- topics ----------------------------------------------------------------------------------

    def _topic(self, name: str) -> None:
        view = TopicView(name)
        notes = _TopicNotes(view)
        found = self._read(name, view, notes)
        if found.metadata is None:
            del self.logs[name]
            files = [item.path[len(name) + 1 :] for item in self._store.list_files(name)]
            is_ours = all(OF_A_TOPIC.match(file) for file in files)
            if is_ours and (files or found.top >= 0):
                self.unreadable.append(name)
            return
        if _TOPIC_MARK not in found.metadata.configuration:
            del self.logs[name]
            return
        damaged = self._damaged(name, view.by_path.values())
        self.damaged_files.update(f"{name}/{header.path}" for header in damaged)
        committed: dict[int, int] = {}
        for header in view.by_path.values():
            if header.status == COMMITTED:
                newest = committed.get(header.producer_id, -1)
                committed[header.producer_id] = max(newest, header.producer_epoch)
        used = [header.producer_id for header in view.by_path.values()]
        used += [*view.markers, *(producer_id for producer_id, _ in view.last_sequences)]
        self.topics[name] = SalvagedTopic(
            name=name,
            topic_id=view.topic_id,
            is_deleted=view.deleted,
            ends=[one.end_offset for one in view.partitions],
            markers=notes.markers(),
            committed=committed,
            undecided=[one for part in view.partitions for one in part.ongoing.values()],
            damaged=damaged,
            superseded=notes.superseded,
            removed=notes.removed,
            gaps=notes.gaps() if found.is_damaged else (),
            has_lost=found.lost > 0,
            producer_id_max=max(used, default=-1),
        )

    def _damaged(self, table: str, headers: Iterable[BatchHeader]) -> list[BatchHeader]:
        """The headers whose files are not whole."""
        ordered = sorted(headers, key=lambda one: (one.partition, one.base_offset))
        found = []
        with ThreadPoolExecutor(THREADS) as pool:
            for at in range(0, len(ordered), FILES_AT_ONCE):
                some = ordered[at : at + FILES_AT_ONCE]
                wrong = pool.map(lambda one: _is_damaged(self._store, table, one), some)
                found += [one for one, is_wrong in zip(some, wrong, strict=True) if is_wrong]
                self._progress(table, len(self.logs), self._count, at + len(some))
        return found

    # -- rows ------------------------------------------------------------------------------------

    def _shard(
        self,
        table: str,
        view: RowView[Row],
        observe: Callable[[TransactionMetadata, int], None] | None = None,
    ) -> SalvagedRows[Row] | None:
        """None for a shard that its first user will create."""
        notes = _RowNotes(view, observe)
        found = self._read(table, view, notes, lambda findings: notes.observe)
        announced = self.cluster.created.get(table)
        if found.top < 0 and announced != cluster_log.CREATED:
            del self.logs[table]
            return None
        # Of a shard that was created, all is lost.
        found.is_damaged |= found.top < 0
        rows = dict(view.rows)
        self.sizes[table] = view.sizes
        live = {row.path for row in rows.values()}
        live.update(one.path for one in view.rows.unreadable.values())
        broken = self._broken_row_files(table, view.sizes)
        self.damaged_files.update(f"{table}/{path}" for path in broken)
        return SalvagedRows(
            table=table,
            rows=rows,
            markers=notes.markers(),
            has_lost=found.lost > 0 or found.metadata is None,
            broken=broken,
            stale=sorted(view.sizes.keys() - live),
            version=found.new_version if found.is_damaged else found.version + 1,
        )

    def _broken_row_files(self, table: str, sizes: Mapping[str, int]) -> set[str]:
        paths = sorted(sizes)
        broken: set[str] = set()
        for at in range(0, len(paths), FILES_AT_ONCE):
            some = paths[at : at + FILES_AT_ONCE]
            calls = [
                partial(_is_broken_row, self._store, f"{table}/{one}", sizes[one]) for one in some
            ]
            wrong = self._store.together(calls)
            broken.update(one for one, is_wrong in zip(some, wrong, strict=True) if is_wrong)
        return broken

    def _staged_files(self) -> None:
        """Which files are not whole that a transaction publishes now, or may publish later."""
        staged: dict[tuple[str, str], StagedBatch] = {}
        rows = [(one.row, one.topics) for one in self.decisions.unpublished.values()]
        rows += [
            (row, tuple(row.topics))
            for shard in self.states.values()
            for row in shard.rows.values()
            if row.state is TransactionState.ONGOING
        ]
        for row, topics in rows:
            for batch in row.pending.batches:
                if batch.topic in topics and batch.path not in self.topics[batch.topic].removed:
                    staged[batch.topic, batch.path] = batch
        for (topic, path), batch in staged.items():
            stats = encode_stats(batch.num_records, batch.timestamp_min_us, batch.timestamp_max_us)
            if damage_of(
                self._store,
                f"{topic}/{path}",
                offsets=batch.num_records,
                size_bytes=batch.size_bytes,
                stats=stats,
            ):
                self.broken.add((topic, path))
                self.damaged_files.add(f"{topic}/{path}")


def _is_damaged(store: ObjectStore, table: str, header: BatchHeader) -> bool:
    found = damage_of(
        store,
        f"{table}/{header.path}",
        offsets=header.last_offset - header.base_offset + 1,
        size_bytes=header.size_bytes,
        stats=header.stats,
    )
    return found is not None


def _is_broken_row(store: ObjectStore, path: str, size_bytes: int) -> bool:
    try:
        data = store.get(path)
        return (
            len(data) != size_bytes
            or pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).num_rows != 1
        )
    except (ObjectNotFoundError, CorruptLogError, pa.ArrowException, OSError, ValueError):
        return True


def _gaps(partition: int, state: PartitionState, first: int | None) -> Iterable[Gap]:
    """Offsets between log start and end that no batch has. `first`, if known, had no record yet
    when the damage began: what is missing from there on is lost, and not removed by retention.
    """
    if not state.batches:
        return
    due = max(state.start_offset, state.batches[0].base_offset if first is None else first)
    for batch in state.batches:
        if due < batch.base_offset:
            yield Gap(partition, due, batch.base_offset - 1)
        due = max(due, batch.last_offset + 1)
    if due < state.end_offset:
        yield Gap(partition, due, state.end_offset - 1)


class _ClusterNotes(Notes):
    needs_first = True


class _MarkerNotes(Notes):
    """Which markers were before the damage, and which are behind it."""

    def __init__(self, view: TopicView | RowView[Any]) -> None:
        self._txns = view
        self._before: dict[int, int] | None = None
        self._behind: set[tuple[int, int]] = set()

    def begin_damage(self) -> None:
        self._before = dict(self._txns.markers)

    def note(self, commit: Commit, *, is_behind: bool) -> None:
        if is_behind:
            for action in commit.actions:
                key = producer_key(action.app_id) if isinstance(action, Txn) else None
                if isinstance(action, Txn) and isinstance(key, int):
                    self._behind.add((key, action.version))

    def markers(self) -> Markers:
        newest = dict(self._txns.markers)
        return Markers(
            newest=newest,
            before=newest if self._before is None else self._before,
            behind=self._behind,
            expired_ms=self._txns.txns.transactions_expired_ms,
        )


class _TopicNotes(_MarkerNotes):
    """Behind damage batches may be added at the end or in a gap, a segment may replace batches that
    it spans, and files may go.
    """

    needs_first = True

    def __init__(self, view: TopicView) -> None:
        super().__init__(view)
        self._view = view
        self.superseded: list[str] = []
        self.removed: set[str] = set()
        self._firsts: list[int | None] = []

    def begin_damage(self) -> None:
        super().begin_damage()
        parts = self._view.partitions
        self._firsts = [None if part.batches else part.end_offset for part in parts]

    def note(self, commit: Commit, *, is_behind: bool) -> None:
        super().note(commit, is_behind=is_behind)
        if is_behind:
            there = self._view.by_path
            paths = (one.path for one in commit.actions if isinstance(one, Remove))
            self.removed.update(path for path in paths if path not in there)

    def gaps(self) -> list[Gap]:
        """Offsets that lost commits had, between those that are left."""
        parts = self._view.partitions
        firsts = [*self._firsts, *[None] * (len(parts) - len(self._firsts))]
        numbered = enumerate(zip(parts, firsts, strict=True))
        return [gap for number, (part, first) in numbered for gap in _gaps(number, part, first)]

    def fits(self, commit: Commit) -> bool:
        removed = {action.path for action in commit.actions if isinstance(action, Remove)}
        spanned: set[str] = set()
        for action in commit.actions:
            if isinstance(action, Metadata):
                # A deletion removes what it knew of; a topic is created again after that only.
                if action.id != self._view.topic_id and not self._view.deleted:
                    return False
                if action.configuration.get(f"{CONFIG_PREFIX}deleted") == "true":
                    spanned |= self._view.by_path.keys() - removed
            elif isinstance(action, Add) and not self._has_room(action, removed, spanned):
                return False
        self.superseded += sorted(spanned)
        self._view.remove(spanned)
        return True

    def _has_room(self, add: Add, removed: set[str], spanned: set[str]) -> bool:
        values = add.partition_values
        number, first = int(values["partition"] or ""), int(values["base_offset"] or "")
        last = int(values["last_offset"] or "")
        if number >= len(self._view.partitions):
            return False
        there = self._view.batches(number, first, last + 1, read_committed=False)
        for batch in there:
            if batch.path in removed or batch.path == add.path:
                continue
            if batch.base_offset < first or batch.last_offset > last:
                return False
            spanned.add(batch.path)
        return True


class _RowNotes(_MarkerNotes):
    """Also passes on each row that decides a transaction, with the store's time."""

    def __init__(
        self,
        view: RowView[Any],
        decided: Callable[[TransactionMetadata, int], None] | None,
    ) -> None:
        super().__init__(view)
        self._decided = decided

    def observe(self, file: File, version: int) -> None:
        self._pass_on(file.path, file.values, file.modification_time)

    def note(self, commit: Commit, *, is_behind: bool) -> None:
        super().note(commit, is_behind=is_behind)
        for action in commit.actions:
            if isinstance(action, Add):
                self._pass_on(action.path, action.partition_values, action.modification_time)

    def _pass_on(self, path: str, found: Mapping[str, str | None], at_ms: int) -> None:
        if self._decided is None or found.get("state") not in _PREPARED:
            return
        values = {name: value for name, value in found.items() if value is not None}
        with suppress(CorruptLogError):
            row = TransactionMetadata.from_values(values, path=path, source=path)
            self._decided(row, at_ms)
