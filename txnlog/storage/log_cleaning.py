"""Log files of a table whose writers may all be gone: what housekeeping does about them."""

from __future__ import annotations

from txnlog.errors import ObjectNotFoundError
from txnlog.storage.checkpoint_reader import read_checkpoint
from txnlog.storage.checkpoints import (
    create_checkpoint,
    find_anchor,
    find_expired,
    maintain,
)
from txnlog.storage.log_files import LogFiles, commit_path, list_whole_log
from txnlog.storage.log_settings import LogSettings
from txnlog.storage.objects import ObjectMeta, ObjectStore

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
