"""The files of a table's `_delta_log`: their names, and listings of them."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from txnlog.errors import RESTORE_ALL, CorruptLogError, LogGapError, ObjectNotFoundError
from txnlog.protocol.decoding import INT64_MAX, Natural
from txnlog.storage.store.objects import ObjectMeta, ObjectStore

_COMMIT = re.compile(r"([0-9]{20})\.json\Z")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet\Z")
_MISSED_MAX = 10_000
"""Largest hole in a listing, which is no snapshot; a larger hole is damage."""


def log_folder(table: str) -> str:
    """The folder of a table's log; "" is the table at the store's own URL."""
    return f"{table}/_delta_log" if table else "_delta_log"


def commit_path(table: str, version: int) -> str:
    return f"{log_folder(table)}/{version:020}.json"


def checkpoint_path(table: str, version: int) -> str:
    return f"{table}/_delta_log/{version:020}.checkpoint.parquet"


class LogFiles(NamedTuple):
    """One listing of a log: versions of commits and checkpoints, ascending, and every object."""

    table: str
    commits: list[int]
    checkpoints: list[int]
    objects: list[ObjectMeta]

    @property
    def newest_checkpoint(self) -> int | None:
        return self.checkpoints[-1] if self.checkpoints else None


def list_log(store: ObjectStore, table: str, *, since: int | None = None) -> LogFiles:
    """List a log, whole or from a version on.

    `_last_checkpoint` is only a hint where to start, and may be stale or wrong: if there is no
    checkpoint from there on, the whole log is listed.
    """
    hint = read_hint(store, table) if since is None else None
    start = hint.version if hint is not None else since
    start_after = None if start is None else f"{table}/_delta_log/{start:020}"
    objects = store.list(f"{table}/_delta_log", start_after=start_after)
    files = sort_files(table, objects)
    _check_holes(files, store, since)
    if since is None and start is not None and not files.checkpoints:
        files = list_whole_log(store, table)
    return files


def list_whole_log(store: ObjectStore, table: str) -> LogFiles:
    """List a log from its first file."""
    files = sort_files(table, store.list(f"{table}/_delta_log"))
    _check_holes(files, store, None)
    return files


def _check_holes(files: LogFiles, store: ObjectStore, since: int | None) -> None:
    """Raise LogGapError for a large hole, before a caller iterates over its versions."""
    before = files.newest_checkpoint if files.checkpoints else since
    for version in files.commits:
        if before is not None and version - before > _MISSED_MAX:
            missing = commit_path(files.table, before + 1)
            raise LogGapError(
                f"{store.url}/{missing}: this commit and those after it are missing, and "
                f"{commit_path(files.table, version)} is there. If that file was put "
                f"there by mistake, remove it. Else: {RESTORE_ALL}",
                file=commit_path(files.table, version),
            )
        before = version if before is None else max(before, version)


def sort_files(table: str, objects: list[ObjectMeta]) -> LogFiles:
    """Commits and checkpoints among listed objects, without numbers above Delta's versions."""
    commits, found = [], []
    start = len(f"{table}/_delta_log/")
    for item in objects:
        name = item.path[start:]
        if match := _COMMIT.match(name):
            commits.append(int(match[1]))
        elif match := _CHECKPOINT.match(name):
            found.append(int(match[1]))
    commits, found = ([v for v in some if v <= INT64_MAX] for some in (commits, found))
    return LogFiles(table, sorted(commits), sorted(found), objects)


class Hint(NamedTuple):
    """The content of `_last_checkpoint`; it may be stale or wrong."""

    version: int
    size_bytes: int | None


def read_hint(store: ObjectStore, table: str) -> Hint | None:
    """`_last_checkpoint`, if it exists and holds a version."""
    try:
        data = store.get(f"{log_folder(table)}/_last_checkpoint")
        found = HINT.decode(data)
    # ValueError: also for bytes that are not UTF-8. Without a valid hint the log is listed.
    except (ObjectNotFoundError, CorruptLogError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return Hint(found.version, found.size_bytes)


class _Hint(msgspec.Struct, frozen=True):
    version: Natural
    size_bytes: Natural | None = msgspec.field(default=None, name="sizeInBytes")


HINT = msgspec.json.Decoder(_Hint)
