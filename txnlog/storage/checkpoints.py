"""Checkpoints of a log, and the removal of log files they replace.

Whoever commits a version that is a multiple of the interval makes the checkpoint, away from the
commit's own path.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from txnlog.errors import StorageError, TxnLogError
from txnlog.storage.actions import (
    decode_commit,
)
from txnlog.storage.chain import check_chain
from txnlog.storage.checkpoint_computation import compute_checkpoint
from txnlog.storage.checkpoint_reader import (
    IntactCheckpoint,
    find_intact,
    read_checkpoint,
    read_intact,
)
from txnlog.storage.log_files import (
    LogFiles,
    checkpoint_path,
    commit_path,
    list_log,
    list_whole_log,
    read_hint,
)
from txnlog.storage.log_settings import LogSettings
from txnlog.storage.objects import ObjectMeta, ObjectStore

if TYPE_CHECKING:
    from txnlog.storage.delta_log import DeltaLog

log = logging.getLogger(__name__)

_ACTIONS_PER_COMMIT_OF_INTERVAL = 25
"""A checkpoint takes 10 to 15 microseconds per action, so a fifth of what its commits take."""
_BYTES_PER_ACTION = 80
_BYTES_WITHOUT_ACTIONS = 20_000
_INTERVAL_MAX = 4_000
"""Whoever opens a log reads as many commits: seconds, in an object store."""
_CLEANED_PER_RETENTION = 24


_worker: tuple[int, ThreadPoolExecutor] | None = None
_waiting: set[tuple[str, str]] = set()


class Covered(NamedTuple):
    """There is a checkpoint of `version`, and all commits above it were written after `since_ms`.

    The latter by the boot clock. For the trust of a log from then on no clean-up frees their
    slots, so they can be read by their numbers. A listing would say the same, and on a local disk
    it takes longer the more commits there are, a day's of them. `actions` are the checkpoint's.
    """

    version: int
    since_ms: int
    actions: int = 0


def after_commit(delta_log: DeltaLog, sent_ms: int) -> None:
    """Called with every commit of ours: makes a checkpoint when it is this commit's turn.

    `sent_ms` is the boot time before it was written.
    """
    settings = delta_log.settings
    if settings.checkpoint_mode == "off" or delta_log.version == 0:
        return
    if delta_log.version % settings.checkpoint_interval:
        return
    head = Covered(delta_log.version, sent_ms)
    clean = _must_clean(delta_log)
    if settings.checkpoint_mode == "inline":
        _maintain_quietly(delta_log, head, clean=clean)
    else:
        _in_background(delta_log, head, clean=clean)


def _must_clean(delta_log: DeltaLog) -> bool:
    """Now and then: what has expired is found by listing the whole log, of a day's commits."""
    now_ms, cleaned_ms = delta_log.store.clock.boot_ms(), delta_log.cleaned_ms
    pause_ms = delta_log.settings.log_retention_ms // _CLEANED_PER_RETENTION
    if cleaned_ms is not None and now_ms - cleaned_ms < pause_ms:
        return False
    delta_log.cleaned_ms = now_ms
    return True


def _in_background(delta_log: DeltaLog, head: Covered, *, clean: bool) -> None:
    """One thread, and at most one turn waiting for each table: a later one covers its commits."""
    global _worker
    if _worker is None or _worker[0] != os.getpid():
        _worker = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="txnlog-checkpoint"))
        _waiting.clear()
    key = (delta_log.store.url, delta_log.path)
    if key in _waiting and not clean:
        return
    _waiting.add(key)

    def turn() -> None:
        _waiting.discard(key)
        _maintain_quietly(delta_log, head, clean=clean)

    try:
        _worker[1].submit(turn)
    except RuntimeError as error:
        # The interpreter is shutting down, or has no thread left. The commit has landed, and the
        # next writer makes the checkpoint.
        _waiting.discard(key)
        log.info("No checkpoint of %s this time: %s", delta_log.path, error)


def wait_for_background() -> None:
    """Return when no checkpoint of this process is under way or waiting."""
    if _worker is not None and _worker[0] == os.getpid():
        with suppress(RuntimeError):
            _worker[1].submit(int).result()


def _maintain_quietly(delta_log: DeltaLog, head: Covered, *, clean: bool) -> None:
    store, table, settings = delta_log.store, delta_log.path, delta_log.settings
    covered, delta_log.covered = delta_log.covered, None
    try:
        if covered is not None and _is_fresh(store, covered, settings.trust_ms):
            delta_log.covered = _go_on(store, table, settings, covered, head)
        else:
            delta_log.covered = maintain(
                store, table, settings.checkpoint_interval, settings.trust_ms
            )
        if clean:
            clean_up(store, table, retention_ms=settings.log_retention_ms)
    except TxnLogError as error:
        log.warning("No checkpoint of %s this time, the next one will do: %s", table, error)
    except Exception:
        log.exception("No checkpoint of %s this time", table)


def _is_fresh(store: ObjectStore, covered: Covered, trust_ms: int) -> bool:
    return store.clock.boot_ms() - covered.since_ms <= trust_ms


def _go_on(
    store: ObjectStore, table: str, settings: LogSettings, covered: Covered, head: Covered
) -> Covered:
    """The next checkpoint after one that is known, if it is time, up to a commit of ours."""
    newest = covered.version
    hint = read_hint(store, table)
    if hint is not None and newest < hint.version <= head.version:
        # Another process's, of about the same size.
        newest = hint.version
    if not _is_time(head.version - newest, covered.actions, settings.checkpoint_interval):
        return covered
    before = read_intact(store, table, newest)
    actions = _checkpoint(store, table, before, head.version, covered.since_ms, settings.trust_ms)
    return head._replace(actions=actions)


def _is_time(behind: int, actions: int, interval: int) -> bool:
    """The interval grows with the table, so that checkpoints cost a constant share."""
    return behind >= max(interval, min(_INTERVAL_MAX, actions // _ACTIONS_PER_COMMIT_OF_INTERVAL))


def maintain(store: ObjectStore, table: str, interval: int, trust_ms: int) -> Covered | None:
    """Checkpoint the head of a log, by a listing, if the newest checkpoint is old enough."""
    started_ms = store.clock.boot_ms()
    files = list_log(store, table)
    newest = files.newest_checkpoint
    behind = files.commits[-1] - (newest if newest is not None else -1) if files.commits else 0
    sizes = {item.path: item.size_bytes for item in files.objects}
    size_bytes = 0 if newest is None else sizes[checkpoint_path(table, newest)]
    actions = max(0, size_bytes - _BYTES_WITHOUT_ACTIONS) // _BYTES_PER_ACTION
    if not _is_time(behind, actions, interval):
        return None
    files, before = find_intact(store, files)
    actions = _checkpoint(store, table, before, files.commits[-1], started_ms, trust_ms)
    return Covered(files.commits[-1], started_ms, actions)


def create_checkpoint(store: ObjectStore, table: str, *, trust_ms: int) -> int:
    """Write a checkpoint of the newest version and say which that is.

    Everything is read anew, and given up if that took longer than what is read may be believed.
    """
    started_ms = store.clock.boot_ms()
    files = list_log(store, table)
    newest = files.newest_checkpoint
    head = files.commits[-1] if files.commits else -1
    if newest is not None and head <= newest:
        return newest
    if head >= 0:
        files, before = find_intact(store, files)
        _checkpoint(store, table, before, head, started_ms, trust_ms)
    return head


def _checkpoint(
    store: ObjectStore,
    table: str,
    before: IntactCheckpoint | None,
    version: int,
    since_ms: int,
    trust_ms: int,
) -> int:
    """Write the checkpoint of a version from the one before and the commits that follow that.

    What was read is believed for `trust_ms` after `since_ms`. How many actions it has.
    """
    newest, data, digest = (-1, None, "") if before is None else before
    name = checkpoint_path(table, version).rpartition("/")[2]
    paths = [commit_path(table, v) for v in range(newest + 1, version + 1)]
    commits = [
        decode_commit(blob, version=newest + 1 + at, source=path)
        for at, (path, blob) in enumerate(zip(paths, store.get_many(paths), strict=True))
    ]
    check_chain(store, table, digest, commits)
    parquet, hint = compute_checkpoint(
        data, commits, store.now_ms, name=name, note=commits[-1].digest.encode()
    )
    if store.clock.boot_ms() - since_ms > trust_ms:
        raise StorageError(
            f"{store.url}/{table}: a checkpoint is thrown away, as what it is made of was read "
            f"more than {trust_ms // 60_000} min before and may be stale. The next one begins "
            "anew. If that is thrown away, too, though this machine was never suspended, the log "
            "is too long for its store: run `txnlog housekeeping` near the store, with a shorter "
            "--delta.deletedFileRetentionDuration.ms, so that fewer removed files are named.",
            file=table,
        )
    store.put(checkpoint_path(table, version), parquet)
    hint_json = msgspec.json.encode({**hint, "version": version})
    store.put(f"{table}/_delta_log/_last_checkpoint", hint_json)
    return int(hint.get("size", 0))


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
