"""Reading the checkpoint of a log; readers skip a damaged one and use the previous one.

It is read by columns, without its tombstones: these are most of a checkpoint, and a Python object
for each file would be most of the time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from txnlog.errors import RESTORE_ALL, RESTORE_FILE, CorruptLogError, LogGapError
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.txn_memory import is_horizon
from txnlog.storage.delta.actions import (
    Action,
    Adds,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Txn,
)
from txnlog.storage.delta.checkpoint_file import (
    UNDECODABLE,
    live_groups,
    open_checkpoint,
    present,
    read_tombstones,
)
from txnlog.storage.delta.log_files import (
    LogFiles,
    checkpoint_path,
    commit_path,
    list_whole_log,
    read_hint,
)
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.seals import check_span, read_seal

log = logging.getLogger("txnlog")

T = TypeVar("T")


def read_newest(store: ObjectStore, files: LogFiles) -> tuple[LogFiles, Commit | None]:
    """The newest intact checkpoint as one commit, or None if the log has none.

    Also returns the log's files, listed from the first one if the newest checkpoint was damaged.
    Raises CorruptLogError naming the damaged file if the log cannot be read without it,
    LogGapError if the first commits are missing.
    """
    return first_intact(store, files, read_checkpoint)


def read_checkpoint(store: ObjectStore, table: str, version: int) -> Commit:
    """One checkpoint as one commit, without its tombstones.

    Raises CorruptLogError naming the file.
    """
    path = checkpoint_path(table, version)
    checkpoint = read_intact(store, table, version)
    try:
        file = open_checkpoint(checkpoint.data)
        groups = live_groups(file.metadata)
        actions = _actions(file.read_row_groups(groups, _WANTED, use_threads=False))
    except UNDECODABLE as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"{store.url}/{path}", path) from error
        raise damaged(store, path, str(error)) from error
    if not any(isinstance(action, Metadata) for action in actions):
        raise damaged(store, path, "it has no metaData")
    return Commit(version, CommitInfo(), tuple(actions), checkpoint.digest)


def count_actions(data: bytes) -> dict[str, int]:
    """Number of actions of each kind in a checkpoint, decoded as readers do, by row group.

    Raises what Arrow and `open_checkpoint` raise.
    """
    file = open_checkpoint(data)
    found = dict.fromkeys(("protocol", "metaData", "txn", "add"), 0)
    for group in live_groups(file.metadata):
        for action in _actions(file.read_row_groups([group], _WANTED, use_threads=False)):
            match action:
                case Protocol():
                    found["protocol"] += 1
                case Metadata():
                    found["metaData"] += 1
                case Txn():
                    found["txn"] += 1
                case Adds():
                    found["add"] += len(action.paths)
    return {**found, "remove": len(read_tombstones(file))}


class IntactCheckpoint(NamedTuple):
    """A checkpoint's verified bytes, and the digest of the commit of its version ("": unknown)."""

    version: int
    data: bytes
    digest: str


def read_intact(store: ObjectStore, table: str, version: int) -> IntactCheckpoint:
    """The bytes of one checkpoint. Raises CorruptLogError naming the file."""
    data = store.get(checkpoint_path(table, version))
    return IntactCheckpoint(version, data, check_intact(store, table, version, data))


def first_intact(
    store: ObjectStore, files: LogFiles, read: Callable[[ObjectStore, str, int], T]
) -> tuple[LogFiles, T | None]:
    """The result of `read` for the newest checkpoint that it accepts, or None without one.

    A checkpoint for which it raises a CorruptLogError that names the checkpoint is logged and
    skipped; otherwise as `read_newest`.
    """
    first: CorruptLogError | None = None
    versions = list(files.checkpoints)
    while versions:
        version = versions.pop()
        try:
            return files, read(store, files.table, version)
        except CorruptLogError as error:
            if error.context.get("file") != checkpoint_path(files.table, version):
                raise
            log.error("A damaged checkpoint is skipped for the previous one: %s", error)
            if first is None:
                first = error
                files = list_whole_log(store, files.table)
                versions = [number for number in files.checkpoints if number < version]
    if files.commits and files.commits[0] != 0:
        raise first or LogGapError(
            f"{store.url}/{files.table}/_delta_log: the first commit is {files.commits[0]} and "
            f"there is no checkpoint: files are missing. {RESTORE_ALL}",
            file=commit_path(files.table, 0),
        )
    if first is not None and not files.commits:
        raise first
    return files, None


def check_intact(store: ObjectStore, table: str, version: int, data: bytes) -> str:
    """Verify a checkpoint's bytes; the digest of the commit of its version, "" if unknown.

    A checkpoint of another tool has no seal; only its size is compared with `_last_checkpoint`.
    Raises CorruptLogError naming the file.
    """
    path = checkpoint_path(table, version)

    def read_at(start: int, end: int) -> bytes:
        return data[start:end]

    try:
        seal = read_seal(read_at, len(data), name=path.rpartition("/")[2])
        spans = () if seal is None else seal.spans
        for index in range(len(spans)):
            check_span(read_at, spans, index)
    except ValueError as error:
        raise damaged(store, path, str(error)) from error
    if seal is not None:
        return seal.note.decode("ascii", "replace")
    hint = read_hint(store, table)
    if hint is not None and hint.version == version and hint.size_bytes not in (None, len(data)):
        raise damaged(
            store, path, f"it has {len(data)} bytes, _last_checkpoint says {hint.size_bytes}"
        )
    return ""


def damaged(store: ObjectStore, path: str, why: str) -> CorruptLogError:
    """The error for the checkpoint at `path`."""
    return CorruptLogError(
        f"{store.url}/{path}: this checkpoint is truncated or garbled ({why}). Delete it if an "
        f"older checkpoint and all commits after that are there. Else: {RESTORE_FILE}",
        file=path,
    )


_WANTED = [
    "protocol",
    "metaData",
    "txn",
    *(f"add.{name}" for name in ("path", "partitionValues", "size", "modificationTime", "stats")),
]


def _actions(table: pa.Table) -> list[Action]:
    """Rows as actions, column by column; only protocol and metaData go through Python dicts.

    Tombstones are left out: only vacuum reads them.
    """
    actions: list[Action] = []
    for row in present(table, "protocol").to_pylist():
        actions.append(msgspec.convert(row, Protocol))
    for row in present(table, "metaData").to_pylist():
        row["configuration"] = dict(row["configuration"] or [])
        row["format"] = {**row["format"], "options": dict(row["format"]["options"] or [])}
        actions.append(msgspec.convert(row, Metadata))
    txns = present(table, "txn")
    if len(txns):
        columns = (
            txns.field("appId"),
            txns.field("version"),
            _field(txns, "lastUpdated", pa.int64()),
        )
        found = list(map(Txn, *(column.to_pylist() for column in columns)))
        # A checkpoint has no entry that its horizons expire: each was written after them.
        found.sort(key=lambda txn: not is_horizon(txn.app_id))
        actions += found
    adds = present(table, "add")
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
    """Partition column -> its value in each row, null where the row has none."""
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    encoded = maps.keys.slice(first, last - first).dictionary_encode()
    items = maps.items.slice(first, last - first)
    names = np.from_dlpack(encoded.indices)
    found = {}
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        places = np.flatnonzero(names == number)
        if len(places) != len(maps):
            ends = np.from_dlpack(maps.offsets)[1:] - first
            at = np.full(len(maps), -1)
            at[np.searchsorted(ends, places, side="right")] = places
            found[name] = items.take(number_array(at, valid=at >= 0))
        else:
            found[name] = items.take(number_array(places))
    return found


def _field(rows: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array:
    """A field, or nulls if the file does not have it."""
    if rows.type.get_field_index(name) < 0:
        return pa.nulls(len(rows), kind)
    return rows.field(name)
