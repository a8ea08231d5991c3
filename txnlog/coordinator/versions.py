"""Tables of a root as of one of their versions, or as a snapshot shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from txnlog.coordinator.root import Root
from txnlog.coordinator.tables import check_same
from txnlog.errors import (
    CorruptLogError,
    LogGapError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    UnknownTableError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.enlisted.registry import find_enlisted
from txnlog.protocol.shards import STATE_PREFIX
from txnlog.protocol.snapshots import Snapshot, TableVersion
from txnlog.storage.delta.actions import Commit
from txnlog.storage.delta.as_of import StoreAtVersions
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.tables.enlisted_reader import EnlistedReader
from txnlog.storage.tables.enlisted_rows import read_table
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

Log = TypeVar("Log", TopicLog, TransactionLog, OffsetsLog)

_PLAIN = LogSettings(checkpoint_mode="off")


def topic_at_version(
    root: Root, name: str, version: int, watch: Callable[[str, Commit], object] | None = None
) -> TopicLog:
    """The topic at a version, with all that it hides; `watch` as in LogSettings.

    Raises SnapshotNotFoundError if the log no longer shows it.
    """
    store = StoreAtVersions(root.store, {name: version})
    settings = replace(_PLAIN, watch=watch)
    return _at(TopicLog(store, name, settings=settings, cluster_id=root.cluster_id), version)


def rows_at_version(root: Root, table: str, version: int) -> TransactionLog | OffsetsLog:
    """A row table at a version; raises as `topic_at_version`."""
    store = StoreAtVersions(root.store, {table: version})
    number = int(table.rpartition("-")[2])
    if table.startswith(STATE_PREFIX):
        return _at(TransactionLog(store, number, settings=_PLAIN), version)
    return _at(OffsetsLog(store, number, settings=_PLAIN), version)


def check_of_root(root: Root, snapshot: Snapshot) -> None:
    """Raises SnapshotNotFoundError: versions of one root say nothing about another one."""
    if snapshot.cluster_id != root.cluster_id:
        raise SnapshotNotFoundError(
            f"The snapshot is of another root, of cluster id {snapshot.cluster_id!r}; that of "
            f"{root.root} is {root.cluster_id!r}. Take one of this root."
        )


def topic_at(root: Root, name: str, snapshot: Snapshot) -> TopicLog:
    """The topic as a snapshot shows it: what it hides is not in the view.

    Raises UnknownTopicOrPartitionError, SnapshotNotFoundError if the log no longer shows it.
    """
    one = snapshot.topics.get(name)
    if one is None:
        there = [*sorted(snapshot.topics), *(f"table {table}" for table in sorted(snapshot.tables))]
        raise UnknownTopicOrPartitionError(
            f"There is no topic {name!r} in the snapshot of {root.root}; there are: "
            f"{', '.join(there) or 'none'}.",
            topic=name,
        )
    log = topic_at_version(root, name, one.version)
    log.view.remove([path for path, batch in log.view.by_path.items() if one.hides(batch)])
    return log


def rows_of_table(
    root: Root,
    name: str,
    snapshot: Snapshot | None,
    *,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
) -> pa.Table:
    """The rows of an enlisted table, as of now or as a snapshot shows it; see `read_table`.

    Raises UnknownTableError, SnapshotNotFoundError if the table no longer shows that version.
    """
    if snapshot is None:
        table = find_enlisted(root.enlisted(), name)
        log = root.open_table(table.url)
        log.refresh_files()
        check_same(log, table)
        return read_table(log, columns=columns, filter=filter)
    one = table_in(root, name, snapshot)
    try:
        return read_table(table_at(root, one), columns=columns, filter=filter)
    except ObjectNotFoundError as error:
        raise _gone_table(one, error.message) from error


def table_at(root: Root, one: TableVersion, *, files: bool = True) -> EnlistedReader:
    """An enlisted table as a snapshot shows it; raises SnapshotNotFoundError."""
    log = EnlistedReader(StoreAtVersions(root.open_table(one.url).store, {"": one.version}))
    try:
        (log.refresh_files if files else log.refresh)()
    except (CorruptLogError, UnknownTableError) as error:
        why = "its log was cleaned up." if isinstance(error, UnknownTableError) else error.message
        raise _gone_table(one, why) from error
    if log.state.version != one.version:
        raise _gone_table(one, f"its log ends with {log.state.version}.")
    if log.state.definition.metadata.id != one.table_id:
        raise _gone_table(one, "another table was made there since.")
    return log


def table_in(root: Root, name: str, snapshot: Snapshot) -> TableVersion:
    """A table of a snapshot. Raises UnknownTableError, which says why it is not there."""
    if name not in snapshot.tables:
        there = ", ".join(sorted(snapshot.tables)) or "none"
        why = snapshot.missing.get(name, f"there are: {there}.")
        raise UnknownTableError(
            f"There is no table {name!r} in the snapshot of {root.root}: {why}", table=name
        )
    return snapshot.tables[name]


def _gone_table(one: TableVersion, why: str) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"{one.url} no longer has version {one.version}, which the snapshot shows: {why} How long "
        "a table keeps its versions is up to its own properties and jobs.",
        url=one.url,
    )


def _at(log: Log, version: int) -> Log:
    try:
        log.refresh()
    except LogGapError as error:
        raise _gone(log, version) from error
    if log.log.version != version:
        raise _gone(log, version)
    return log


def _gone(log: TopicLog | TransactionLog | OffsetsLog, version: int) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"The log of {log.path} at {log.store.url} no longer has version {version}, which the "
        "snapshot shows: only named snapshots are kept. Take a new one.",
        table=log.path,
    )
