"""Log clean-up: delete the commits and checkpoints of a log that a newer checkpoint replaces.

Writers do it as they commit (`clean_up`); housekeeping does it for tables whose writers may all be
gone (`checkpoint_and_clean_up`).
"""

from __future__ import annotations

from txnlog.errors import ObjectNotFoundError
from txnlog.protocol.decoding import INT64_MAX
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.checkpoints import create_checkpoint, maintain
from txnlog.storage.delta.log_files import (
    LogFiles,
    checkpoint_path,
    commit_path,
    list_whole_log,
)
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectMeta, ObjectStore

WORTH_A_CHECKPOINT = 10
"""Expired commits above the newest checkpoint that are worth a new one.

It replaces them only once the newest commit in it has expired, too.
"""


def clean_up(
    store: ObjectStore, table: str, *, retention_ms: int, kept_from_ms: int = INT64_MAX
) -> list[str]:
    """Delete expired commits and checkpoints that a newer checkpoint replaces; returns their paths.

    A version stays readable for `retention_ms` after the next version was written: it may be the
    plan of a reader (D47). So does one that was the newest at `kept_from_ms` or later. Raises
    CorruptLogError if the checkpoint that replaces the files is damaged.
    """
    files = list_whole_log(store, table)
    if files.newest_checkpoint is None:
        return []
    before_ms = min(store.now_ms() - retention_ms, kept_from_ms)
    return _delete_expired(store, files, before_ms=before_ms)


def checkpoint_and_clean_up(
    store: ObjectStore, table: str, settings: LogSettings, *, now_ms: int
) -> int:
    """Checkpoint a log that is long or old, then clean it up; returns the number of files deleted.

    `now_ms` is by the store's clock. Writers do most of this themselves (`checkpoints.maintain`);
    this is for tables without writers, and for what killed writers left on a local disk. Raises
    CorruptLogError as `clean_up`.
    """
    before_ms, trust_ms = now_ms - settings.log_retention_ms, settings.trust_ms
    store.delete_temporaries(item.path for item in find_temporaries(store, table, before_ms))
    maintain(store, table, settings.checkpoint_interval, trust_ms)
    before_ms = min(before_ms, settings.kept_from_ms())
    files = list_whole_log(store, table)
    if len(_uncovered(files, before_ms)) >= WORTH_A_CHECKPOINT:
        create_checkpoint(store, table, trust_ms=trust_ms)
        files = list_whole_log(store, table)
    return len(_delete_expired(store, files, before_ms=before_ms))


def _delete_expired(store: ObjectStore, files: LogFiles, *, before_ms: int) -> list[str]:
    """Delete what `find_expired` finds, oldest first: a process that dies here leaves no hole."""
    anchor = find_anchor(files, before_ms=before_ms)
    expired = [item.path for item in find_expired(files, before_ms=before_ms)]
    if anchor is None or not expired:
        return []
    try:
        # Only an intact checkpoint can replace older files, and only one that is on the disk,
        # whether its writer synced it or not: D26.
        read_checkpoint(store, files.table, anchor)
        store.sync(checkpoint_path(files.table, anchor))
    except ObjectNotFoundError:
        # Another process cleaned up meanwhile, and a newer checkpoint replaces the anchor.
        return []
    # Not as a list: while a commit is there, no process may find a freed slot after it (D92).
    store.delete_in_order(expired)
    return expired


def find_cleanable(
    store: ObjectStore, table: str, settings: LogSettings, *, now_ms: int
) -> list[ObjectMeta]:
    """What `checkpoint_and_clean_up` would delete, as if the checkpoint it makes were made."""
    expired_ms = now_ms - settings.log_retention_ms
    before_ms = min(expired_ms, settings.kept_from_ms())
    files = list_whole_log(store, table)
    if len(_uncovered(files, before_ms)) >= WORTH_A_CHECKPOINT:
        files = files._replace(checkpoints=[*files.checkpoints, files.commits[-1]])
    return [
        *find_temporaries(store, table, expired_ms),
        *find_expired(files, before_ms=before_ms),
    ]


def find_temporaries(store: ObjectStore, table: str, before_ms: int) -> list[ObjectMeta]:
    """Temporary files of processes that were killed while they wrote a commit or a checkpoint."""
    found = store.list_temporaries(f"{table}/_delta_log")
    return [item for item in found if item.last_modified_ms <= before_ms]


def _uncovered(files: LogFiles, before_ms: int) -> list[int]:
    """Versions above the newest checkpoint that were written by `before_ms`."""
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    newest = files.newest_checkpoint
    return [
        version
        for version in files.commits
        if (newest is None or version > newest)
        and written_ms[commit_path(files.table, version)] <= before_ms
    ]


def find_expired(files: LogFiles, *, before_ms: int) -> list[ObjectMeta]:
    """Files below the anchor written by `before_ms`, in the order in which clean-up deletes them.

    `files` is a listing of the whole log.
    """
    anchor = find_anchor(files, before_ms=before_ms)
    if anchor is None:
        return []
    names = [commit_path(files.table, version) for version in files.commits if version < anchor]
    names += [checkpoint_path(files.table, v) for v in files.checkpoints if v < anchor]
    items = {item.path: item for item in files.objects}
    return [items[name] for name in names if items[name].last_modified_ms <= before_ms]


def find_anchor(files: LogFiles, *, before_ms: int) -> int | None:
    """The newest checkpoint from which every version that must stay readable can be built.

    These are the versions that were the newest one at `before_ms` or later: the version below the
    first commit written since, and all above it. None: no checkpoint will do; all files are needed.
    """
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    young = (v for v in files.commits if written_ms[commit_path(files.table, v)] > before_ms)
    first_young = next(young, None)
    if first_young is None:
        return files.newest_checkpoint
    return max((v for v in files.checkpoints if v < first_young), default=None)
