"""Copies a snapshot of a root to another place, which is a root of its own afterwards.

txnlog.protocol.copies decides what is in it. The order of steps, of which each may be the last:

1. the snapshot is kept under a name that expires, and is renewed;
2. the logs of the copy are read, if there are any; then its `__cluster` is written or changed: from
   now on nobody opens it, and no other run can end its own;
3. data files are copied that are not there with the same size: their names are never used again;
4. one commit to each table, also where nothing has changed: a run that was taken over meets it;
5. the copy is verified; then `__cluster` says that it is whole;
6. files that it no longer shows are deleted, and the snapshot is dropped.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from txnlog.coordinator.pins import drop_snapshot, keep_snapshot, renew_snapshot
from txnlog.coordinator.root import Root
from txnlog.coordinator.snapshots import rows_at_version, topic_at_version
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    CorruptLogError,
    ObjectNotFoundError,
)
from txnlog.process.failpoint import reach
from txnlog.process.failures import caught
from txnlog.protocol.batches import ABORTED
from txnlog.protocol.copies import (
    OPERATION,
    OPERATIONS,
    WHOLE_COPY,
    Copy,
    WholeCopy,
    aborted_in_copy,
    check_copy_of,
    group_in_copy,
    row_in_copy,
)
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.snapshots import Snapshot, TopicVersion
from txnlog.protocol.topics import end_app_id, may_be_topic
from txnlog.protocol.txn_memory import (
    EXPIRING_TRANSACTIONS,
    VACUUM_AGE,
    TxnMemory,
    is_expired,
    is_horizon,
    producer_key,
)
from txnlog.storage.delta.actions import (
    Action,
    Add,
    Adds,
    Commit,
    Metadata,
    Remove,
    Txn,
    decode_commit,
)
from txnlog.storage.delta.delta_log import Outcome
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import PATH, WHOLE_COPIES
from txnlog.storage.tables.row_log import (
    OffsetsLog,
    Row,
    RowCommit,
    RowLog,
    RowView,
    TransactionLog,
)
from txnlog.storage.tables.schemas import CONFIG_PREFIX
from txnlog.storage.tables.topic_log import HOME

logger = logging.getLogger("txnlog")

Ends = Mapping[str, dict[str, tuple[int, ...]]]
OnCopied = Callable[[str, int, int], None]
"""Called with what is done, bytes done, and bytes in all."""

TTL_MS = 3_600_000
"""How long the snapshot is kept after the last renewal: until a killed run lets vacuum go on."""
FILES_AT_ONCE = 16
ACTIONS_MAX = 100_000
"""Of one commit; nobody reads a copy before its last one."""
_DATA_FILE = re.compile(r"[^/]+/part-[^/]+\.parquet")
_FOREVER_MS = 100 * 366 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """A copy: its cluster id, what it has, and what this run has copied of it.

    `at_ms` is when its snapshot was begun, by the clock of the origin's store. `tables` are
    enlisted in the origin, and not copied.
    """

    cluster_id: str
    at_ms: int
    topics: int
    groups: int
    transactional_ids: int
    files: int
    size_bytes: int
    files_copied: int
    bytes_copied: int
    tables: tuple[str, ...] = ()


@dataclass(slots=True)
class TableContents:
    """The live files, and the `txn` actions, that the commits of a table have named."""

    adds: dict[str, Add] = field(default_factory=dict)
    txns: dict[str, Txn] = field(default_factory=dict)

    def note(self, _: str, commit: Commit) -> None:
        """Take the actions of the next commit, or of a checkpoint."""
        for action in commit.actions:
            if isinstance(action, Add):
                self.adds[action.path] = action
            elif isinstance(action, Adds):
                self.adds |= {add.path: add for add in action}
            elif isinstance(action, Remove):
                self.adds.pop(action.path, None)
            elif isinstance(action, Txn):
                self.txns[action.app_id] = action

    def valid_txns(self, memory: TxnMemory) -> dict[str, Txn]:
        """Those that the table has not forgotten, horizons first; but of vacuum and expiry."""
        found = sorted(self.txns.values(), key=lambda one: not is_horizon(one.app_id))
        transactions_ms = memory.transactions_expired_ms
        producers_ms = memory.producers_expired_ms
        return {
            one.app_id: one
            for one in found
            if one.app_id not in (VACUUM_AGE, EXPIRING_TRANSACTIONS)
            and not is_expired(
                one.app_id,
                one.last_updated,
                transactions_ms=transactions_ms,
                producers_ms=producers_ms,
            )
        }


@dataclass(frozen=True, slots=True)
class _Topic:
    """What the table of a topic shall have: `metadata` but for its home."""

    metadata: Metadata
    adds: Mapping[str, Add]
    txns: Mapping[str, Txn]
    ends: tuple[int, ...]


def copy_root(
    origin: Root,
    store: ObjectStore,
    *,
    check: Callable[[], None],
    fsync: bool,
    report: OnCopied,
    shared: bool = False,
) -> CopyReport:
    """Copy a snapshot of a root to `store`: an empty place, or one with an earlier copy of it.

    Writers go on. `check` verifies the copy, and raises if it must not be used. A run that ends in
    the midst is continued by the next one. `shared`: no data passes through this process, see
    ObjectStore.take. Raises ConfigError for a place that has something else,
    ConcurrentTransactionsError if another process copies there, CorruptLogError, StorageError.
    """
    if shared and not store.shares_with(origin.store):
        raise ConfigError(
            f"{store.url} and {origin.root} are not on one file system, nor in one bucket: data "
            "files cannot be shared. Use `txnlog backup`.",
            root=store.url,
        )
    with _kept(origin) as (snapshot, former, renew):
        target = _Target(store, origin.cluster_id, shared=shared)
        target.open()
        target.begin(origin, fsync=fsync)
        reach("copy.begun")
        topics = {name: _read_topic(origin, name, one) for name, one in snapshot.topics.items()}
        renew()
        copy = _take_file if shared else _copy_file
        files = _copy_files(origin.store, store, topics, copy, renew=renew, report=report)
        reach("copy.copied")
        versions = {name: target.write_topic(name, one) for name, one in topics.items()}
        for name in target.other_topics(topics):
            versions[name] = target.delete_topic(name)
        counts = target.write_rows(origin, snapshot, topics)
        target.give_out_above(origin.producer_ids_end - 1)
        reach("copy.written")
        check()
        whole = WholeCopy(
            snapshot=Snapshot(
                at_ms=snapshot.at_ms,
                topics={name: TopicVersion(version=versions[name]) for name in topics},
                offsets=target.offsets,
                shards=target.versions,
            ),
            ends={**former, origin.cluster_id: {name: one.ends for name, one in topics.items()}},
        )
        renew()
        target.end(whole)
        reach("copy.ended")
        store.delete(sorted(files.unused))
        return CopyReport(
            cluster_id=target.root.cluster_id,
            at_ms=snapshot.at_ms,
            topics=len(topics),
            groups=counts[1],
            transactional_ids=counts[0],
            files=files.count,
            size_bytes=files.size_bytes,
            files_copied=files.copied,
            bytes_copied=0 if shared else files.bytes_copied,
            tables=tuple(origin.enlisted(refresh=False)),
        )


def check_apart(origin: str, target: str) -> None:
    """Raise ConfigError if one of two roots is in the other, or is it."""
    one, other = f"{origin.rstrip('/')}/", f"{target.rstrip('/')}/"
    if one.startswith(other) or other.startswith(one):
        raise ConfigError(
            f"{target} and {origin} are not apart: a root cannot be copied into itself. Choose "
            "another place.",
            root=target,
        )


# -- the origin ------------------------------------------------------------------------------------


@contextmanager
def _kept(
    origin: Root,
) -> Iterator[tuple[Snapshot, Ends, Callable[[], None]]]:
    """A snapshot of the origin, kept; its own origins' ends; and a call that renews it."""
    copy = origin.read_copy()
    if not origin.cluster_id:
        raise ConfigError(f"There is no txnlog cluster at {origin.root}.", root=origin.root)
    former = origin.whole_copy()
    if copy is not None and copy.run:
        # What it was before the interrupted run: nobody writes there, nor deletes.
        if former is None:
            raise ConfigError(
                f"The root at {origin.root} is a copy that was never whole.", root=origin.root
            )
        yield former.snapshot, former.ends, lambda: None
        return
    name = f"copy-{uuid.uuid4()}"
    clock = origin.store.clock
    kept_ms = clock.boot_ms()
    snapshot = keep_snapshot(origin, name, ttl_ms=TTL_MS)

    def renew() -> None:
        nonlocal kept_ms
        now_ms = clock.boot_ms()
        if now_ms - kept_ms > TTL_MS // 4:
            renew_snapshot(origin, name, ttl_ms=TTL_MS)
            kept_ms = now_ms

    try:
        yield snapshot, {} if former is None else former.ends, renew
    except Exception:
        caught(partial(drop_snapshot, origin, name), f"Dropping snapshot {name!r}")
        raise
    drop_snapshot(origin, name)


def _read_topic(origin: Root, name: str, one: TopicVersion) -> _Topic:
    contents = TableContents()
    log = topic_at_version(origin, name, one.version, contents.note)
    metadata = log.log.metadata
    assert metadata is not None
    aborted, markers = aborted_in_copy(log.view, one)
    adds = {path: contents.adds[path] for path in log.view.by_path}
    for path in aborted:
        values = {**adds[path].partition_values, "txn_status": ABORTED}
        adds[path] = replace(adds[path], partition_values=values)
    txns = contents.valid_txns(log.view.txns)
    now_ms = origin.store.now_ms()
    for producer_id, epoch in markers.items():
        app_id = f"txnlog/{producer_id}"
        txns[app_id] = Txn(app_id, epoch, now_ms)
    _take_back(origin, name, one, txns)
    ends = tuple(log.view.high_watermark(number) for number in range(log.partitions))
    return _Topic(metadata, adds, txns, ends)


def _take_back(origin: Root, name: str, one: TopicVersion, txns: dict[str, Txn]) -> None:
    """Give batch writes that the snapshot leaves out back the txnVersion of before.

    Else their repetition would be taken for done. Each has one marker commit, since the snapshot.
    """
    left = set(one.excluded)
    version = one.version
    taken: set[str] = set()
    kept: dict[str, Txn] = {}
    while left:
        path = commit_path(name, version)
        commit = decode_commit(origin.store.get(path), version=version, source=path)
        found = {action.app_id: action for action in commit.actions if isinstance(action, Txn)}
        apps = {app_id: txn for app_id, txn in found.items() if producer_key(app_id) is None}
        gone = left & {(producer_key(app_id), txn.version) for app_id, txn in found.items()}
        if gone:
            left -= gone
            taken |= apps.keys()
        else:
            kept = apps | kept
        version -= 1
    if taken:
        before = TableContents()
        topic_at_version(origin, name, version, before.note)
        kept = before.txns | kept
    for app_id in taken:
        txns.pop(app_id, None)
        if app_id in kept:
            txns[app_id] = kept[app_id]


# -- files -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Files:
    count: int = 0
    size_bytes: int = 0
    copied: int = 0
    bytes_copied: int = 0
    unused: set[str] = field(default_factory=set)


def _copy_files(
    origin: ObjectStore,
    target: ObjectStore,
    topics: Mapping[str, _Topic],
    copy: Callable[[ObjectStore, ObjectStore, str, int], None],
    *,
    renew: Callable[[], None],
    report: OnCopied,
) -> _Files:
    """Copy all files that are not there with their size."""
    found = _Files()
    folders = {name for name in target.list_folders() if may_be_topic(name)}
    listed = target.together([partial(target.list_files, name) for name in sorted(folders)])
    sizes = {item.path: item.size_bytes for items in listed for item in items}
    wanted = {
        f"{name}/{path}": add.size for name, one in topics.items() for path, add in one.adds.items()
    }
    missing = [(path, size) for path, size in wanted.items() if sizes.get(path) != size]
    found.count, found.size_bytes = len(wanted), sum(wanted.values())
    found.unused = {path for path in sizes.keys() - wanted.keys() if _DATA_FILE.fullmatch(path)}
    total_bytes = sum(size_bytes for _, size_bytes in missing)
    target.delete([path for path, _ in missing if path in sizes])
    together = (target if target.is_remote else origin).together
    for at in range(0, len(missing), FILES_AT_ONCE):
        some = missing[at : at + FILES_AT_ONCE]
        report(some[0][0].partition("/")[0], found.bytes_copied, total_bytes)
        together([partial(copy, origin, target, path, size) for path, size in some])
        found.copied += len(some)
        found.bytes_copied += sum(size_bytes for _, size_bytes in some)
        renew()
    report("", found.bytes_copied, total_bytes)
    return found


def _take_file(origin: ObjectStore, target: ObjectStore, path: str, size_bytes: int) -> None:
    target.take(path, origin)
    reach("copy.file")


def _copy_file(origin: ObjectStore, target: ObjectStore, path: str, size_bytes: int) -> None:
    data = origin.get(path)
    if len(data) != size_bytes:
        raise CorruptLogError(
            f"{origin.url}/{path} has {len(data)} bytes, and its log says {size_bytes}: it is "
            "damaged. `txnlog verify` says what is lost; nothing was copied of it.",
            file=path,
        )
    target.put_new(path, data)
    reach("copy.file")


# -- the copy --------------------------------------------------------------------------------------


class _Target:
    """The root that is written."""

    def __init__(self, store: ObjectStore, origin_id: str, *, shared: bool) -> None:
        self._shared = shared
        self._run = str(uuid.uuid4())
        self._origin_id = origin_id
        self._contents: dict[str, TableContents] = {}
        self._opened: dict[str, int] = {}
        self._copy: Copy | None = None
        # Its versions stay: the last whole copy is at those that it had.
        settings = LogSettings(log_retention_ms=_FOREVER_MS, watch=self._note)
        self.root = Root(store, settings=settings)
        self.offsets: dict[str, dict[str, dict[int, int]]] = {}
        self.versions: dict[str, int] = {}

    def _note(self, path: str, commit: Commit) -> None:
        if may_be_topic(path):
            self._contents.setdefault(path, TableContents()).note(path, commit)

    def open(self) -> None:
        """Read the logs that are there. Raises ConfigError if the place is not for this copy."""
        root = self.root
        self._copy = root.read_copy()
        if not root.cluster_id:
            items = root.store.list_some("")
            others = [item.path for item in items if not item.path.startswith(f"{PATH}/")]
            if others:
                raise ConfigError(
                    f"{root.root} is not empty: it holds {min(others)!r}, and is no root. Choose "
                    "an empty place, or one with an earlier copy.",
                    root=root.root,
                )
            return
        origin, shared = self._origin_id, self._shared
        check_copy_of(self._copy, origin=origin, shared=shared, url=root.root)
        whole = root.whole_copy()
        known = {} if whole is None else {t: v.version for t, v in whole.snapshot.topics.items()}
        known |= {} if whole is None else whole.snapshot.shards
        names = [name for name in root.store.list_folders() if may_be_topic(name)]
        logs = [root.topic_log(name) for name in names]
        root.refresh_together(logs)
        versions = {log.path: log.log.version for log in logs}
        versions |= {log.path: log.log.version for log in root.existing_shards()}
        versions |= {log.path: log.log.version for log in root.offsets_shards()}
        self._opened = {path: version for path, version in versions.items() if version >= 0}
        for path, version in self._opened.items():
            self._check_unchanged(path, known.get(path, -1), version)

    def _check_unchanged(self, table: str, version: int, head: int) -> None:
        """Raise ConfigError if a client has written to a table since."""
        for number in range(version + 1, head + 1):
            path = commit_path(table, number)
            try:
                data = self.root.store.get(path)
                operation = decode_commit(data, version=number, source=path).info.operation
            except ObjectNotFoundError:
                operation = "cleaned up"
            if operation not in OPERATIONS:
                raise ConfigError(
                    f"{self.root.root} was written to since it was copied ({path}: {operation}): "
                    "it is a root of its own now. Choose an empty place.",
                    root=self.root.root,
                )

    def begin(self, origin: Root, *, fsync: bool) -> None:
        """From now on this run makes the copy."""
        copy = Copy(origin=self._origin_id, shared=self._shared, run=self._run)
        self.root.begin_copy(copy, expected=self._copy, of=origin, fsync=fsync)

    def other_topics(self, topics: Collection[str]) -> list[str]:
        """Topics of earlier copies that are none any more."""
        opened = self.root.opened_topics()
        return [n for n, log in sorted(opened.items()) if log.exists and n not in topics]

    def write_topic(self, name: str, wanted: _Topic) -> int:
        """Bring a topic to what it shall have; returns its version."""
        home = {f"{CONFIG_PREFIX}{HOME}": f"{self.root.cluster_id}/{name}"}
        configuration = {**wanted.metadata.configuration, **home}
        metadata = replace(wanted.metadata, configuration=configuration)
        log = self.root.topic_log(name)
        found = self._contents.get(name, TableContents())
        actions: list[Action] = [] if name in self._opened else [PROTOCOL]
        if log.log.metadata != metadata:
            actions.append(metadata)
        actions += [txn for txn in wanted.txns.values() if found.txns.get(txn.app_id) != txn]
        now_ms = self.root.store.now_ms()
        gone = sorted(found.adds.keys() - wanted.adds.keys())
        actions += [Remove(path, now_ms, data_change=True) for path in gone]
        actions += [
            replace(add, data_change=True)
            for path, add in wanted.adds.items()
            if _header(found.adds.get(path)) != _header(add)
        ]
        return self._commit(name, actions)

    def delete_topic(self, name: str) -> int:
        """A topic that was deleted in the origin: its ends stay."""
        log = self.root.topic_log(name)
        metadata = log.log.metadata
        assert metadata is not None
        now_ms = self.root.store.now_ms()
        deleted = {**metadata.configuration, f"{CONFIG_PREFIX}deleted": "true"}
        actions: list[Action] = [replace(metadata, configuration=deleted)]
        actions += [
            Txn(end_app_id(number), log.view.high_watermark(number), now_ms)
            for number in range(log.partitions)
        ]
        actions += [Remove(path, now_ms, data_change=True) for path in log.view.by_path]
        return self._commit(name, actions)

    def _commit(self, name: str, actions: Sequence[Action]) -> int:
        log = self.root.topic_log(name).log
        expected = self._opened.get(name, -1)
        for at in range(0, max(len(actions), 1), ACTIONS_MAX):
            some = actions[at : at + ACTIONS_MAX]

            def decide(expected: int = expected) -> bool:
                self._check_version(name, log.version, expected)
                return True

            def commit(_: bool, some: Sequence[Action] = some) -> Outcome:
                return log.commit(some, operation=OPERATION)

            transact(log, decide, commit)
            expected += 1
        return log.version

    def _check_version(self, table: str, found: int, expected: int) -> None:
        if found != expected:
            raise ConcurrentTransactionsError(
                f"{self.root.root}/{table} has version {found}, and had {expected} when this copy "
                "was begun: another process writes there. Run it again.",
                table=table,
            )

    def write_rows(
        self, origin: Root, snapshot: Snapshot, topics: Mapping[str, _Topic]
    ) -> tuple[int, int]:
        """Bring the rows to those of the snapshot; returns the numbers of ids and of groups."""
        newest = _newest_markers(topics.values())
        counts = [0, 0]
        for table, version in sorted(snapshot.shards.items()):
            found = rows_at_version(origin, table, version)
            if isinstance(found, TransactionLog):
                rows = [
                    row_in_copy(row, marker=newest.get(row.producer_id, -1), topics=topics)
                    for row in found.view.rows.values()
                ]
                shown = {row.transactional_id: row for row in rows if row is not None}
                counts[0] += len(shown)
                self._put_rows(self.root.shard(found.number), shown)
            else:
                groups = self._groups(origin, found, snapshot, topics)
                counts[1] += len(groups)
                self._put_rows(self.root.offsets_shard(found.number), groups)
        return counts[0], counts[1]

    def _groups(
        self,
        origin: Root,
        found: OffsetsLog,
        snapshot: Snapshot,
        topics: Collection[str],
    ) -> dict[str, Group]:
        rows = found.view.rows
        names = [
            name
            for name in {*rows, *snapshot.offsets}
            if origin.offsets_shard_of(name) == found.number and name not in rows.unreadable
        ]
        groups = {}
        for name in sorted(names):
            group = rows.get(name) or Group(group_id=name)
            groups[name] = group_in_copy(group, snapshot.offsets.get(name, {}), topics=topics)
            if positions := groups[name].positions():
                self.offsets[name] = positions
        return groups

    def _put_rows(self, log: RowLog[Row], rows: Mapping[str, Row]) -> None:
        def decide(view: RowView[Row], version: int) -> RowCommit[Row]:
            # One that was not there was created a moment ago.
            self._check_version(log.path, version - 1, self._opened.get(log.path, 0))
            paths = {name: row.path for name, row in view.rows.items()}
            kept = {name: replace(row, path=paths.get(name, "")) for name, row in rows.items()}
            return RowCommit(
                operation=OPERATION,
                puts=tuple(row for name, row in kept.items() if view.rows.get(name) != row),
                removes=tuple(row for name, row in view.rows.items() if name not in kept),
            )

        log.transact(decide)
        self.versions[log.path] = log.log.version

    def give_out_above(self, producer_id: int) -> None:
        """Producer ids of the copy are others than those of its origin."""
        self.root.read_copy()
        if self.root.producer_ids_end <= producer_id:
            self.root.next_producer_id(above=producer_id)

    def end(self, whole: WholeCopy) -> None:
        """The copy is whole."""
        path = f"{WHOLE_COPIES}{uuid.uuid4()}.json"
        self.root.store.put_new(path, WHOLE_COPY.encode(whole).encode())
        self.root.end_copy(self._run, path)
        # Whoever reads what it was last may do so still.
        kept = {path, "" if self._copy is None else self._copy.file}
        files = [item.path for item in self.root.store.list_files(PATH)]
        self.root.store.delete(
            [one for one in files if one.startswith(WHOLE_COPIES) and one not in kept]
        )


def _newest_markers(topics: Iterable[_Topic]) -> dict[int, int]:
    """Producer id -> the newest epoch of which a topic has the marker."""
    newest: dict[int, int] = {}
    for topic in topics:
        for app_id, txn in topic.txns.items():
            key = producer_key(app_id)
            if isinstance(key, int):
                newest[key] = max(txn.version, newest.get(key, -1))
    return newest


def _header(add: Add | None) -> object:
    return None if add is None else (add.partition_values, add.size, add.stats)
