"""Tables of a root as of one of their versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from txnlog.coordinator.root import Root
from txnlog.errors import LogGapError, SnapshotNotFoundError
from txnlog.protocol.shards import STATE_PREFIX
from txnlog.storage.delta.actions import Commit
from txnlog.storage.delta.as_of import StoreAtVersions
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

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
