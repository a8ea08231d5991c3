"""Copies a snapshot of a root to another place, which is a root of its own afterwards.

txnlog.protocol.copies decides what is in it (D142). The order of steps, each may be the last:

1. the logs and the folders of the copy are read, if there are any; a new place gets a `__cluster`,
   which says that it is not whole; then the snapshot is kept under a name that expires, and is
   renewed: it is newer than what was read;
2. data files are copied that are not there with the same size: their names are never used again;
3. `__cluster` names this run, if it says what it said before: from now on nobody opens the copy,
   and no other run can end its own;
4. one commit to each table, also where nothing has changed: a run that was taken over meets it;
5. the copy is verified; then `__cluster` says that it is whole;
6. the snapshot is dropped, and files of step 1 are deleted that neither it nor a named snapshot of
   the copy shows: no later run can want them.

tests/model/test_copies.py searches this.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from txnlog.coordinator.copied_topics import CopiedTopic, read_topic
from txnlog.coordinator.copy_target import CopyTarget, operation_of
from txnlog.coordinator.pins import drop_snapshot, keep_snapshot, kept_files, renew_snapshot
from txnlog.coordinator.root import Root
from txnlog.coordinator.versions import rows_at_version
from txnlog.errors import (
    RESTORE_ALL,
    ConfigError,
    CorruptLogError,
    ForeignTableError,
    LogGapError,
    SnapshotNotFoundError,
    StorePermissionError,
)
from txnlog.process.failpoint import reach
from txnlog.process.failures import caught
from txnlog.protocol.copies import OF_A_COPY, Copy, WholeCopy
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.topics import may_be_topic
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger("txnlog")

Ends = Mapping[str, dict[str, tuple[int, ...]]]
OnCopied = Callable[[str, int, int], None]
"""Called with the topic, bytes done, and bytes in all."""

TTL_MS = 3_600_000
"""How long the snapshot is kept after the last renewal: until a killed run lets vacuum go on."""
FILES_AT_ONCE = 16
_DATA_FILE = re.compile(r"[^/]+/part-[^/]+\.parquet")


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
    copy = origin.read_copy()
    if not origin.cluster_id:
        raise ConfigError(f"There is no txnlog cluster at {origin.root}.", root=origin.root)
    target = CopyTarget(store, origin, shared=shared)
    target.open(fsync=fsync)
    sizes, left = _listed(store)
    with _kept(origin, copy) as kept:
        _check_complete(origin, kept.snapshot)
        # They are read again, at their versions.
        origin.forget_topics()
        topics: dict[str, CopiedTopic] = {}
        for name, one in kept.snapshot.topics.items():
            topics[name] = read_topic(origin, name, one)
            kept.renew()
        files = _copy_files(origin.store, store, topics, sizes, shared, kept.renew, report)
        reach("copy.copied")
        target.begin(fsync=fsync)
        reach("copy.begun")
        ends = {name: one.ends for name, one in topics.items()}
        written = target.write(kept.snapshot, topics)
        reach("copy.written")
        # From here on nothing is read of the origin.
        check()
        target.end(WholeCopy(snapshot=written, ends={**kept.ends, origin.cluster_id: ends}))
        reach("copy.ended")
    _delete_unused(target.root, files.unused, left)
    return CopyReport(
        cluster_id=target.root.cluster_id,
        at_ms=written.at_ms,
        topics=len(ends),
        groups=target.num_groups,
        transactional_ids=target.num_ids,
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


def _check_complete(origin: Root, snapshot: Snapshot) -> None:
    """Raise for a topic or a group that cannot be read: what a former copy has of it would go; and
    for what a copy has lost since it was whole.
    """
    _check_not_shorter(origin, snapshot)
    names = {name for name in origin.store.list_folders() if may_be_topic(name)}
    for name in sorted(names - snapshot.topics.keys()):
        with suppress(ForeignTableError):
            origin.topic_log(name).refresh()
    for table, version in snapshot.shards.items():
        for unreadable in rows_at_version(origin, table, version).view.rows.unreadable.values():
            raise unreadable.error.replace()


def _check_not_shorter(copy: Root, snapshot: Snapshot) -> None:
    """Raise for a table that has lost commits since the copy was whole, and nobody has mended."""
    whole = copy.whole_copy()
    versions = {name: one.version for name, one in snapshot.topics.items()} | snapshot.shards
    for table, version in {} if whole is None else whole.versions.items():
        found = versions.get(table, -1)
        if found < version and may_be_topic(table):
            log = copy.topic_log(table)
            log.refresh()
            found = log.log.version
        if found < version and (found < 0 or operation_of(copy.store, table, found) in OF_A_COPY):
            raise LogGapError(
                f"{copy.root}/{table} has version {found}, and had {version} when this copy was "
                f"whole: commits of it are lost. {RESTORE_ALL}",
                table=table,
            )


def _is_as_copied(copy: Root, whole: WholeCopy) -> bool:
    """Whether no client has written to a copy: else what it was as one is long gone."""
    topics = [copy.topic_log(name) for name in copy.store.list_folders() if may_be_topic(name)]
    copy.refresh_together(topics)
    versions = {log.path: log.log.version for log in topics if log.exists}
    versions |= {log.path: log.log.version for log in copy.existing_shards()}
    versions |= {log.path: log.log.version for log in copy.offsets_shards()}
    return versions == whole.versions


class _Kept(NamedTuple):
    """A snapshot of the origin, `ends` of the origin's own origins, and a call that keeps it."""

    snapshot: Snapshot
    ends: Ends
    renew: Callable[[], None]


@contextmanager
def _kept(origin: Root, copy: Copy | None) -> Iterator[_Kept]:
    """Keep a snapshot of the origin while the block runs; `copy`: what the origin is as one."""
    former = origin.whole_copy()
    if copy is not None and copy.run:
        # What it was before the interrupted run: nobody writes there, nor deletes.
        if former is None:
            raise ConfigError(
                f"The root at {origin.root} is a copy that was never whole.", root=origin.root
            )
        yield _Kept(former.snapshot, former.ends, lambda: None)
        return
    name = f"copy-{uuid.uuid4()}"
    clock = origin.store.clock
    kept_ms = clock.boot_ms()
    try:
        # Tables show what was decided later than the rows, and are not copied.
        snapshot = keep_snapshot(origin, name, ttl_ms=TTL_MS, with_tables=False)
    except StorePermissionError:
        if former is None or not _is_as_copied(origin, former):
            raise
        # A backup that can only be read.
        yield _Kept(former.snapshot, former.ends, lambda: None)
        return

    def renew() -> None:
        nonlocal kept_ms
        now_ms = clock.boot_ms()
        if now_ms - kept_ms > TTL_MS // 4:
            renew_snapshot(origin, name, ttl_ms=TTL_MS)
            kept_ms = now_ms

    try:
        yield _Kept(snapshot, {} if former is None else former.ends, renew)
    except Exception:
        caught(partial(drop_snapshot, origin, name), f"Dropping snapshot {name!r}")
        raise
    with suppress(SnapshotNotFoundError):
        # It may have expired while the copy was verified.
        drop_snapshot(origin, name)


@dataclass(slots=True)
class _Files:
    count: int = 0
    size_bytes: int = 0
    copied: int = 0
    bytes_copied: int = 0
    unused: set[str] = field(default_factory=set)


def _listed(store: ObjectStore) -> tuple[dict[str, int], list[str]]:
    """Sizes of the files in folders of topics, and what killed runs were writing there."""
    folders = sorted(name for name in store.list_folders() if may_be_topic(name))
    listed = store.together([partial(store.list_files, name) for name in folders])
    left = [item.path for name in folders for item in store.list_temporaries(name)]
    return {item.path: item.size_bytes for items in listed for item in items}, left


def _copy_files(
    origin: ObjectStore,
    target: ObjectStore,
    topics: Mapping[str, CopiedTopic],
    sizes: Mapping[str, int],
    shared: bool,
    renew: Callable[[], None],
    report: OnCopied,
) -> _Files:
    """Copy all files that are not there with their size."""
    found, copy = _Files(), _take_file if shared else _copy_file
    wanted = {
        f"{name}/{path}": add.size for name, one in topics.items() for path, add in one.adds.items()
    }
    missing = [(path, size) for path, size in wanted.items() if sizes.get(path) != size]
    found.count, found.size_bytes = len(wanted), sum(wanted.values())
    found.unused = {path for path in sizes.keys() - wanted.keys() if _DATA_FILE.fullmatch(path)}
    total_bytes = sum(size_bytes for _, size_bytes in missing)
    if shared:
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


def _delete_unused(copy: Root, unused: set[str], left: Iterable[str]) -> None:
    """Delete what was listed before the snapshot was taken: later files may be another run's."""
    copy.store.delete_temporaries(left)
    if not unused:
        return
    topics = {path.partition("/")[0] for path in unused}
    copy.store.delete(sorted(unused - kept_files(copy, topics, {})))


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
    # At once: another run may have copied it since the listing, and its copy may be whole.
    target.put(path, data)
    reach("copy.file")
