"""The files of a table's `_delta_log`: their names, and what there is of them."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from txnlog.errors import ObjectNotFoundError
from txnlog.storage.objects import ObjectMeta, ObjectStore

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")


def commit_path(table: str, version: int) -> str:
    return f"{table}/_delta_log/{version:020}.json"


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

    `_last_checkpoint` only says where to start listing, and may be stale or wrong: if no
    checkpoint is found from there on, the whole log is listed.
    """
    hint = read_hint(store, table) if since is None else None
    start = hint.version if hint is not None else since
    start_after = None if start is None else f"{table}/_delta_log/{start:020}"
    objects = store.list(f"{table}/_delta_log", start_after=start_after)
    files = sort_files(table, objects)
    if since is None and start is not None and not files.checkpoints:
        files = list_whole_log(store, table)
    return files


def list_whole_log(store: ObjectStore, table: str) -> LogFiles:
    """List a log from its first file on."""
    return sort_files(table, store.list(f"{table}/_delta_log"))


def sort_files(table: str, objects: list[ObjectMeta]) -> LogFiles:
    commits, found = [], []
    for item in objects:
        name = item.path.rsplit("/", 1)[-1]
        if match := _COMMIT.match(name):
            commits.append(int(match[1]))
        elif match := _CHECKPOINT.match(name):
            found.append(int(match[1]))
    return LogFiles(table, sorted(commits), sorted(found), objects)


class Hint(NamedTuple):
    """What `_last_checkpoint` says; it may be stale or wrong."""

    version: int
    size_bytes: int | None


def read_hint(store: ObjectStore, table: str) -> Hint | None:
    """`_last_checkpoint`, if it is there and names a version."""
    try:
        data = store.get(f"{table}/_delta_log/_last_checkpoint")
        found = msgspec.json.decode(data)
        version, size_bytes = found["version"], found.get("sizeInBytes")
    # ValueError: what is no UTF-8, too.
    except (
        ObjectNotFoundError,
        msgspec.MsgspecError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ):
        return None
    if not isinstance(version, int):
        return None
    return Hint(version, size_bytes if isinstance(size_bytes, int) else None)
