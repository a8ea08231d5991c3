"""Checkpoints of a log: when one is due, and how it is made from the previous one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from txnlog.errors import (
    RESTORE_ALL,
    CorruptLogError,
    ObjectNotFoundError,
    StorageError,
    TxnLogError,
)
from txnlog.storage.delta.actions import Commit, decode_commit
from txnlog.storage.delta.chain import check_chain
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.checkpoint_file import UNDECODABLE
from txnlog.storage.delta.checkpoint_reader import (
    IntactCheckpoint,
    damaged,
    first_intact,
    read_intact,
)
from txnlog.storage.delta.log_files import (
    LogFiles,
    checkpoint_path,
    commit_path,
    list_log,
    read_hint,
)
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

_ACTIONS_PER_COMMIT_OF_INTERVAL = 25
"""A checkpoint takes 2 to 5 microseconds per action, so a twentieth of what its commits take."""
_BYTES_PER_ACTION = 40
_BYTES_WITHOUT_ACTIONS = 8_000
_INTERVAL_MAX = 4_000
"""Upper bound of commits to replay when opening a log: seconds, in an object store."""


class Covered(NamedTuple):
    """There is a checkpoint of `version`, and all commits above it were written after `since_ms`.

    The time is by the boot clock. For `trust_ms` after it no clean-up frees the slots of these
    commits, so they are read by number. A listing of the log would also find them, but on a local
    disk its cost grows with a day of commits. `actions` is the number of actions of the checkpoint.
    """

    version: int
    since_ms: int
    actions: int = 0


def is_fresh(store: ObjectStore, covered: Covered, trust_ms: int) -> bool:
    return store.clock.boot_ms() - covered.since_ms <= trust_ms


def continue_from(
    store: ObjectStore,
    table: str,
    settings: LogSettings,
    covered: Covered,
    head: Covered,
    known: Mapping[int, Commit],
) -> Covered:
    """Write the checkpoint of `head` if one is due after `covered`; the newest one after that.

    `known` are commits that need not be read.
    """
    newest = covered.version
    hint = read_hint(store, table)
    if hint is not None and newest < hint.version <= head.version:
        # Another process wrote it; it has about as many actions.
        newest = hint.version
    if not _is_due(head.version - newest, covered.actions, settings.checkpoint_interval):
        return covered
    before = read_intact(store, table, newest)
    actions = _checkpoint(
        store, table, before, head.version, covered.since_ms, settings.trust_ms, known
    )
    return head._replace(actions=actions)


def _is_due(behind: int, actions: int, interval: int) -> bool:
    """The interval grows with the table, so that checkpoints take a constant share of the time."""
    return behind >= max(interval, min(_INTERVAL_MAX, actions // _ACTIONS_PER_COMMIT_OF_INTERVAL))


def maintain(store: ObjectStore, table: str, interval: int, trust_ms: int) -> Covered | None:
    """List the log, and write a checkpoint of its head if one is due."""

    def act(files: LogFiles, since_ms: int) -> Covered | None:
        newest = files.newest_checkpoint
        behind = files.commits[-1] - (newest if newest is not None else -1) if files.commits else 0
        sizes = {item.path: item.size_bytes for item in files.objects}
        size_bytes = 0 if newest is None else sizes[checkpoint_path(table, newest)]
        actions = max(0, size_bytes - _BYTES_WITHOUT_ACTIONS) // _BYTES_PER_ACTION
        if not _is_due(behind, actions, interval):
            return None
        actions = _checkpoint_head(store, files, since_ms, trust_ms)
        return Covered(files.commits[-1], since_ms, actions)

    return _on_listing(store, table, act)


def create_checkpoint(store: ObjectStore, table: str, *, trust_ms: int) -> int:
    """Write a checkpoint of the newest version, and return that version.

    Reads the log from its files. Raises StorageError if that took longer than `trust_ms`.
    """

    def act(files: LogFiles, since_ms: int) -> int:
        newest = files.newest_checkpoint
        head = files.commits[-1] if files.commits else -1
        if newest is not None and head <= newest:
            return newest
        if head >= 0:
            _checkpoint_head(store, files, since_ms, trust_ms)
        return head

    return _on_listing(store, table, act)


def _on_listing(store: ObjectStore, table: str, act: Callable[[LogFiles, int], T]) -> T:
    """The result of `act` on a listing of the log and the boot time before it.

    Another process may write a newer checkpoint after the listing and delete what it replaces
    before `act` reads it: then the log is listed again. Without a newer checkpoint a missing file
    is an error.
    """
    while True:
        since_ms = store.clock.boot_ms()
        files = list_log(store, table)
        try:
            return act(files, since_ms)
        except ObjectNotFoundError:
            found = list_log(store, table).newest_checkpoint
            newest = -1 if files.newest_checkpoint is None else files.newest_checkpoint
            if found is None or found <= newest:
                raise


def _checkpoint_head(store: ObjectStore, files: LogFiles, since_ms: int, trust_ms: int) -> int:
    """Write the checkpoint of the newest commit from the newest checkpoint that can be decoded.

    Returns the number of actions. Raises CorruptLogError as `first_intact`.
    """
    head = files.commits[-1]

    def attempt(store: ObjectStore, table: str, version: int) -> int:
        before = read_intact(store, table, version)
        return _checkpoint(store, table, before, head, since_ms, trust_ms)

    _, actions = first_intact(store, files, attempt)
    if actions is None:
        return _checkpoint(store, files.table, None, head, since_ms, trust_ms)
    return actions


def _checkpoint(
    store: ObjectStore,
    table: str,
    before: IntactCheckpoint | None,
    version: int,
    since_ms: int,
    trust_ms: int,
    known: Mapping[int, Commit] = MappingProxyType({}),
) -> int:
    """Write a version's checkpoint from the previous one and the commits after that.

    What was read is trusted for `trust_ms` after `since_ms`; `known` are commits that need not be
    read: the newest one, which is, shows by its chain that they are those of the log. Returns the
    number of actions. Raises CorruptLogError naming the previous checkpoint or the commit.
    """
    newest, digest = (-1, "") if before is None else (before.version, before.digest)
    versions = range(newest + 1, version + 1)
    paths = {v: commit_path(table, v) for v in versions if v not in known or v == version}
    found = {
        v: decode_commit(blob, version=v, source=path)
        for (v, path), blob in zip(paths.items(), store.get_many(list(paths.values())), strict=True)
    }
    commits = [found[v] if v in found else known[v] for v in versions]
    check_chain(store, table, digest, commits)
    parquet, hint = _computed(store, table, before, commits)
    if store.clock.boot_ms() - since_ms > trust_ms:
        raise StorageError(
            f"{store.url}/{table}: a checkpoint was discarded, since its input was read "
            f"more than {trust_ms // 60_000} min before and may be stale. The next attempt reads "
            "it again. If that is discarded, too, and this machine was never suspended, the log "
            "is too long for its store: run `txnlog housekeeping` near the store, with a shorter "
            "--delta.deletedFileRetentionDuration.ms, so that checkpoints keep fewer tombstones.",
            file=table,
        )
    store.put(checkpoint_path(table, version), parquet)
    hint_json = msgspec.json.encode({**hint, "version": version})
    store.put(f"{table}/_delta_log/_last_checkpoint", hint_json)
    return int(hint.get("size", 0))


def _computed(
    store: ObjectStore, table: str, before: IntactCheckpoint | None, commits: Sequence[Commit]
) -> tuple[bytes, dict[str, Any]]:
    """The checkpoint of the last commit, as `compute_checkpoint`.

    Raises CorruptLogError naming the previous checkpoint, whose bytes may be damaged if they have
    no seal, or the first commit; OutOfMemoryError.
    """
    name = checkpoint_path(table, commits[-1].version).rpartition("/")[2]
    data = None if before is None else before.data
    try:
        return compute_checkpoint(
            data, commits, store.now_ms, name=name, note=commits[-1].digest.encode()
        )
    except UNDECODABLE as error:
        raise _fault(store, table, before, commits, error) from error


def _fault(
    store: ObjectStore,
    table: str,
    before: IntactCheckpoint | None,
    commits: Sequence[Commit],
    error: Exception,
) -> TxnLogError:
    """The error for a checkpoint that cannot be computed: it names the file that is at fault."""
    path = commit_path(table, commits[0].version)
    if before is not None and not is_out_of_memory(error):
        checkpoint = checkpoint_path(table, before.version)
        try:
            compute_checkpoint(before.data, (), store.now_ms, name="", note=b"")
        except UNDECODABLE as alone:
            if not is_out_of_memory(alone):
                return damaged(store, checkpoint, str(alone))
            error, path = alone, checkpoint
    if is_out_of_memory(error):
        return out_of_memory(f"{store.url}/{path}", path)
    return CorruptLogError(
        f"{store.url}/{path}: no checkpoint can be made of the commits from this one to version "
        f"{commits[-1].version} ({type(error).__name__}: {error}). One of them was not written by "
        f"txnlog, or is damaged. {RESTORE_ALL}",
        file=path,
    )
