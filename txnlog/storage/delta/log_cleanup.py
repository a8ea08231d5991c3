"""Log clean-up: which commits and checkpoints a newer checkpoint replaces, and deleting them.

By the process that commits (`clean_up`), and by housekeeping for tables whose writers may all be
gone (`clean_log`).
"""

from __future__ import annotations

from txnlog.errors import ObjectNotFoundError
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
"""Expired commits that no checkpoint covers.

Their checkpoint may replace nothing yet: it does when the newest commit in it has expired, too.
"""


def clean_log(store: ObjectStore, table: str, settings: LogSettings, *, now_ms: int) -> int:
    """Checkpoint a log that is long or old, and delete what has expired; how many files that were.

    `now_ms` is by the store's clock. Writers do most of this themselves (see
    `checkpoints.maintain`); here also for tables nobody writes any more, and for what killed
    writers left on a local disk. The checkpoint that takes the place of older files is read before
    they are deleted: CorruptLogError if it is damaged.
    """
    before_ms, trust_ms = now_ms - settings.log_retention_ms, settings.trust_ms
    store.delete_temporaries(item.path for item in find_temporaries(store, table, before_ms))
    maintain(store, table, settings.checkpoint_interval, trust_ms)
    files = list_whole_log(store, table)
    if len(_uncovered(files, before_ms)) >= WORTH_A_CHECKPOINT:
        create_checkpoint(store, table, trust_ms=trust_ms)
        files = list_whole_log(store, table)
    anchor = find_anchor(files, before_ms=before_ms)
    expired = find_expired(files, before_ms=before_ms)
    if anchor is None or not expired:
        return 0
    try:
        read_checkpoint(store, table, anchor)
    except ObjectNotFoundError:
        # A writer's clean-up came in between, and has a newer one in its place.
        return 0
    store.delete(item.path for item in expired)
    return len(expired)


def find_cleanable(
    store: ObjectStore, table: str, settings: LogSettings, *, now_ms: int
) -> list[ObjectMeta]:
    """What `clean_log` would delete; a checkpoint that it would make counts as made."""
    before_ms = now_ms - settings.log_retention_ms
    files = list_whole_log(store, table)
    if len(_uncovered(files, before_ms)) >= WORTH_A_CHECKPOINT:
        files = files._replace(checkpoints=[*files.checkpoints, files.commits[-1]])
    return [
        *find_temporaries(store, table, before_ms),
        *find_expired(files, before_ms=before_ms),
    ]


def find_temporaries(store: ObjectStore, table: str, before_ms: int) -> list[ObjectMeta]:
    """What commits and checkpoints left that were killed while they were written."""
    found = store.list_temporaries(f"{table}/_delta_log")
    return [item for item in found if item.last_modified_ms <= before_ms]


def _uncovered(files: LogFiles, before_ms: int) -> list[int]:
    """Versions written before a time that no checkpoint has."""
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    newest = files.newest_checkpoint
    return [
        version
        for version in files.commits
        if (newest is None or version > newest)
        and written_ms[commit_path(files.table, version)] <= before_ms
    ]


def clean_up(store: ObjectStore, table: str, *, retention_ms: int) -> list[str]:
    """Delete commits and checkpoints that a newer checkpoint replaces and that have expired.

    A version can be opened for `retention_ms` after the next one took its place. Oldest first, so
    that what stays has no hole. Returns the paths deleted.
    """
    files = list_whole_log(store, table)
    if files.newest_checkpoint is None:
        return []
    before_ms = store.now_ms() - retention_ms
    doomed = [item.path for item in find_expired(files, before_ms=before_ms)]
    anchor = find_anchor(files, before_ms=before_ms)
    if not doomed or anchor is None:
        return []
    # What takes the place of the older files must be intact.
    read_checkpoint(store, table, anchor)
    store.delete(doomed)
    return doomed


def find_expired(files: LogFiles, *, before_ms: int) -> list[ObjectMeta]:
    """What clean-up deletes, in its order: what was written by `before_ms`, below the anchor.

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
    """The checkpoint from which, with the commits after it, all that must stay can be built.

    That is each version which was the newest one at `before_ms` or later: the one below the first
    commit written since, and those above. None: there is no such checkpoint, all files are needed.
    """
    written_ms = {item.path: item.last_modified_ms for item in files.objects}
    young = (v for v in files.commits if written_ms[commit_path(files.table, v)] > before_ms)
    first_young = next(young, None)
    if first_young is None:
        return files.newest_checkpoint
    return max((v for v in files.checkpoints if v < first_young), default=None)
