"""Reading the commits of a log that clean-up has left, whole or backwards until a match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from txnlog.cluster import Cluster
from txnlog.errors import LogGapError, ObjectNotFoundError
from txnlog.protocol.batches import BatchHeader, header_from_values
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.stories import RowChange
from txnlog.storage.delta.actions import Add, Commit, Remove, decode_commit
from txnlog.storage.delta.log_files import commit_path, list_log

T = TypeVar("T")

_AT_ONCE = 16


def commits(cluster: Cluster, table: str, from_version: int | None) -> Iterator[Commit]:
    """The existing commits of a log from a version on, in order; None: those after its newest
    checkpoint. Raises LogGapError, CorruptLogError.
    """
    since = None if from_version is None else from_version - 1
    versions = [
        version
        for version in list_log(cluster.store, table, since=since).commits
        if from_version is None or version >= from_version
    ]
    for at in range(0, len(versions), _AT_ONCE):
        yield from _read(cluster, table, versions[at : at + _AT_ONCE])


def search(
    cluster: Cluster,
    table: str,
    match: Callable[[Commit], T | None],
    *,
    since_ms: int | None = None,
) -> T | None:
    """What the newest commit gives that matches; with a time, by the store's clock, the oldest one
    that was written since, if there is one.
    """
    files = list_log(cluster.store, table, since=-1)
    if since_ms is not None:
        recent = {item.path for item in files.objects if item.last_modified_ms >= since_ms}
        versions = [v for v in files.commits if commit_path(table, v) in recent]
        for at in range(0, len(versions), _AT_ONCE):
            for commit in _read(cluster, table, versions[at : at + _AT_ONCE]):
                found = match(commit)
                if found is not None:
                    return found
    for end in range(len(files.commits), 0, -_AT_ONCE):
        versions = files.commits[max(0, end - _AT_ONCE) : end]
        for commit in reversed(_read(cluster, table, versions)):
            found = match(commit)
            if found is not None:
                return found
    return None


def _read(cluster: Cluster, table: str, versions: list[int]) -> list[Commit]:
    paths = [commit_path(table, version) for version in versions]
    try:
        files = cluster.store.get_many(paths)
    except ObjectNotFoundError as error:
        raise LogGapError(
            f"{error.message} It was deleted while the log was read; try again.",
            table=table,
            retriable=True,
            fatal=False,
        ) from error
    return [
        decode_commit(data, version=version, source=path)
        for version, path, data in zip(versions, paths, files, strict=True)
    ]


def row_changes(
    cluster: Cluster, table: str, ids: Collection[str], *, from_version: int | None = 0
) -> Iterator[RowChange]:
    """Each change of these ids' rows in a shard, in the order of the commits.

    Raises CorruptLogError.
    """
    paths: dict[str, str] = {}
    for commit in commits(cluster, table, from_version):
        info = commit.info
        at, told = (info.timestamp, commit.version), info.operation_parameters
        for action in commit.actions:
            if isinstance(action, Remove) and action.path in paths:
                yield RowChange(
                    *at, paths.pop(action.path), None, operation=info.operation, parameters=told
                )
            if isinstance(action, Add) and action.partition_values.get("transactional_id") in ids:
                row = row_of(action, table, commit)
                paths[action.path] = row.transactional_id
                yield RowChange(
                    *at, row.transactional_id, row, operation=info.operation, parameters=told
                )


def row_of(add: Add, table: str, commit: Commit) -> TransactionMetadata:
    """The row that a commit wrote. Raises CorruptLogError."""
    return TransactionMetadata.from_values(
        add.partition_values,  # type: ignore[arg-type]
        path=add.path,
        source=commit_path(table, commit.version),
    )


def headers_in(table: str, commit: Commit) -> Iterator[BatchHeader]:
    """The headers that a commit to a topic wrote. Raises CorruptLogError."""
    for action in commit.actions:
        if isinstance(action, Add):
            yield header_from_values(
                action.partition_values,  # type: ignore[arg-type]
                path=action.path,
                size_bytes=action.size,
                stats=action.stats or "",
                source=commit_path(table, commit.version),
            )
