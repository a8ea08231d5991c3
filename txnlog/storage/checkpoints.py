"""Checkpoints of a log, and the removal of log files they replace.

Whoever commits a version that is a multiple of the interval makes the checkpoint, away from the
commit's own path.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from txnlog.errors import CorruptLogError, TxnLogError
from txnlog.protocol.txn_memory import is_horizon
from txnlog.storage import checkpoint_edits
from txnlog.storage.actions import (
    Action,
    Adds,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Txn,
    decode_commit,
)
from txnlog.storage.checkpoint_computation import compute_checkpoint
from txnlog.storage.log_files import (
    LogFiles,
    checkpoint_path,
    commit_path,
    list_log,
    list_whole_log,
    read_hint,
)
from txnlog.storage.objects import ObjectMeta, ObjectStore
from txnlog.storage.seals import check_span, read_seal
from txnlog.storage.store_errors import is_out_of_memory, out_of_memory

if TYPE_CHECKING:
    from txnlog.storage.delta_log import DeltaLog, LogSettings

log = logging.getLogger(__name__)

_ACTIONS_PER_COMMIT_OF_INTERVAL = 25
"""A checkpoint takes 10 to 15 microseconds per action, so a fifth of what its commits take."""
_BYTES_PER_ACTION = 80
_BYTES_WITHOUT_ACTIONS = 20_000
_INTERVAL_MAX = 4_000
"""Whoever opens a log reads as many commits: seconds, in an object store."""
_CLEANED_PER_RETENTION = 24


# -- reading a checkpoint --------------------------------------------------------------------------


def read_checkpoint(store: ObjectStore, files: LogFiles) -> Commit:
    """The newest checkpoint in the shape of one commit, without the files it says are removed.

    Raises CorruptLogError naming the file.
    """
    version = files.newest_checkpoint
    assert version is not None
    path = checkpoint_path(files.table, version)
    data = store.get(path)
    try:
        check_seal(data)
        file = checkpoint_edits.open_checkpoint(data)
        groups = checkpoint_edits.live_groups(file.metadata)
        table = file.read_row_groups(groups, _WANTED, use_threads=False)
        actions = _actions(table)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"{store.url}/{path}", path) from error
        raise CorruptLogError(
            f"{store.url}/{path}: this checkpoint is truncated or garbled ({error}). Delete it if "
            "an older checkpoint and all commits after that are there, else restore it.",
            file=path,
        ) from error
    if not any(isinstance(action, Metadata) for action in actions):
        raise CorruptLogError(f"{store.url}/{path}: this checkpoint has no metaData.", file=path)
    return Commit(version, CommitInfo(), tuple(actions))


_WANTED = [
    "protocol",
    "metaData",
    "txn",
    *(f"add.{name}" for name in ("path", "partitionValues", "size", "modificationTime", "stats")),
]


def check_seal(data: bytes) -> None:
    """Raise SealBrokenError for damage; a checkpoint of another tool has no seal to check."""

    def read_at(start: int, end: int) -> bytes:
        return data[start:end]

    spans = read_seal(read_at, len(data))
    for index in range(len(spans or ())):
        check_span(read_at, spans or (), index)


def _actions(table: pa.Table) -> list[Action]:
    """Rows to actions, column by column; only protocol and metaData go through Python dicts.

    Tombstones are vacuum's: a view that starts from here has never seen the files.
    """
    actions: list[Action] = []
    for row in _present(table, "protocol").to_pylist():
        actions.append(msgspec.convert(row, Protocol))
    for row in _present(table, "metaData").to_pylist():
        row["configuration"] = dict(row["configuration"] or [])
        row["format"] = {**row["format"], "options": dict(row["format"]["options"] or [])}
        actions.append(msgspec.convert(row, Metadata))
    txns = _present(table, "txn")
    if len(txns):
        columns = (
            txns.field("appId"),
            txns.field("version"),
            _field(txns, "lastUpdated", pa.int64()),
        )
        found = list(map(Txn, *(column.to_pylist() for column in columns)))
        # What a horizon makes be forgotten is gone already; what is here came after it.
        found.sort(key=lambda txn: not is_horizon(txn.app_id))
        actions += found
    adds = _present(table, "add")
    if len(adds):
        actions.append(
            Adds(
                adds.field("path").cast(pa.string()),
                adds.field("size"),
                adds.field("modificationTime"),
                _field(adds, "stats", pa.string()).cast(pa.string()),
                _partition_values(adds.field("partitionValues")),
            )
        )
    return actions


def _partition_values(maps: pa.MapArray) -> dict[str, pa.Array]:
    """Partition column -> its value per row, by flattening the map column."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    encoded = maps.keys.slice(first, last - first).dictionary_encode()
    items = maps.items.slice(first, last - first)
    names = encoded.indices.to_numpy()
    found = {}
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        places = np.flatnonzero(names == number)
        if len(places) != len(maps):
            raise ValueError(f"partition column {name!r} is missing in some rows")
        found[name] = items.take(pa.array(places))
    return found


def _present(table: pa.Table, name: str) -> pa.StructArray:
    """The rows of a checkpoint that hold this kind of action."""
    if name not in table.column_names:
        return pa.array([], type=pa.struct([("path", pa.string())]))
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if len(places) and places[-1] - places[0] + 1 == len(places):
        # One kind after the other, as delta-rs writes them: nothing to copy.
        return column.slice(places[0], len(places))
    return column.take(pa.array(places))


def _field(rows: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array:
    """A field that may be missing."""
    if rows.type.get_field_index(name) < 0:
        return pa.nulls(len(rows), kind)
    return rows.field(name)


# -- making one -----------------------------------------------------------------------------------

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

    _worker[1].submit(turn)


def wait_for_background() -> None:
    """Return when no checkpoint of this process is under way or waiting."""
    if _worker is not None and _worker[0] == os.getpid():
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
    if hint is not None and newest < hint <= head.version:
        # Somebody else's, of about the same size.
        newest = hint
    if not _is_time(head.version - newest, covered.actions, settings.checkpoint_interval):
        return covered
    actions = _checkpoint(store, table, newest, head.version, covered.since_ms, settings.trust_ms)
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
    actions = _checkpoint(store, table, newest, files.commits[-1], started_ms, trust_ms)
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
        _checkpoint(store, table, newest, head, started_ms, trust_ms)
    return head


def _checkpoint(
    store: ObjectStore, table: str, newest: int | None, version: int, since_ms: int, trust_ms: int
) -> int:
    """Write the checkpoint of a version from the one before and the commits between them.

    What was read is believed for `trust_ms` after `since_ms`. How many actions it has.
    """
    paths = [commit_path(table, v) for v in range(0 if newest is None else newest + 1, version + 1)]
    commits = [
        decode_commit(data, version=-1, source=path)
        for path, data in zip(paths, store.get_many(paths), strict=True)
    ]
    before = None if newest is None else store.get(checkpoint_path(table, newest))
    parquet, hint = compute_checkpoint(before, commits, store.now_ms)
    if store.clock.boot_ms() - since_ms > trust_ms:
        raise CorruptLogError(
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
    doomed = [item.path for item in find_expired(files, before_ms=store.now_ms() - retention_ms)]
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
