"""Files of an enlisted table's log, and its checkpoints: one file, several, or with sidecars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from txnlog.protocol.enlisted.actions import (
    Action,
    DomainMetadata,
    LiveFile,
    Protocol,
    Removed,
    Sidecar,
    TableMetadata,
    Txn,
    decode_actions,
    file_name,
)
from txnlog.storage.delta.checkpoint_file import open_checkpoint, present
from txnlog.storage.delta.log_files import log_folder, read_hint
from txnlog.storage.store.objects import ObjectStore

FOLDER = log_folder("")
_COMMIT = re.compile(r"([0-9]{20})\.json\Z")
_CHECKPOINT = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)\Z"
)

_KINDS: dict[str, tuple[type[Action], list[str]]] = {
    "protocol": (Protocol, ["protocol"]),
    "metaData": (TableMetadata, ["metaData"]),
    "txn": (Txn, ["txn"]),
    "domainMetadata": (DomainMetadata, ["domainMetadata"]),
}
_LIVE = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId", "stats")
_FILE_KINDS: dict[str, tuple[type[Action], list[str]]] = {
    "sidecar": (Sidecar, ["sidecar.path"]),
    "add": (LiveFile, [f"add.{name}" for name in (*_LIVE, "defaultRowCommitVersion")]),
    "remove": (Removed, ["remove.path", "remove.deletionVector"]),
}
"""Kind of action -> its class, and the columns that are read of it."""


class ForeignFiles(NamedTuple):
    """A listing of the log: versions of commits, and complete checkpoints with their files."""

    commits: list[int]
    checkpoints: list[tuple[int, list[str]]]


def list_files(store: ObjectStore, *, whole: bool = False) -> ForeignFiles:
    """List the log, from the checkpoint on that `_last_checkpoint` names, if that is there."""
    hint = None if whole else read_hint(store, "")
    start = None if hint is None else f"{FOLDER}/{hint.version:020}"
    commits: list[int] = []
    parts: dict[tuple[int, int], list[str]] = {}
    for item in store.list(FOLDER, start_after=start):
        name = item.path[len(FOLDER) + 1 :]
        if match := _COMMIT.match(name):
            commits.append(int(match[1]))
        elif match := _CHECKPOINT.match(name):
            # One of several files is complete with all of them; any other alone.
            key = (int(match[1]), int(match[3] or 1))
            if match[3]:
                parts.setdefault(key, []).append(item.path)
            else:
                parts[key] = [item.path]
    complete = [(v, sorted(paths)) for (v, count), paths in parts.items() if len(paths) == count]
    if start is not None and not complete:
        return list_files(store, whole=True)
    return ForeignFiles(sorted(commits), sorted(complete))


def read_checkpoint(store: ObjectStore, paths: Sequence[str], *, files: bool) -> list[Action]:
    """The actions of a checkpoint; those of files, and tombstones, only if asked for.

    Raises ObjectNotFoundError; UNDECODABLE for one that is damaged.
    """
    found: list[Action] = []
    for actions in store.together([partial(_read, store, path, files) for path in paths]):
        found += actions
    sidecars = [action.path for action in found if isinstance(action, Sidecar)]
    below = [f"{FOLDER}/_sidecars/{file_name(path)}" for path in sidecars]
    for actions in store.together([partial(_read, store, path, files) for path in below]):
        found += actions
    return found


def _read(store: ObjectStore, path: str, files: bool) -> list[Action]:
    data = store.get(path)
    if path.endswith(".json"):
        return decode_actions(data, files=files)
    kinds = {**_KINDS, **_FILE_KINDS} if files else _KINDS
    file = open_checkpoint(data)
    columns = [name for _, names in kinds.values() for name in names]
    rows = file.read(columns=columns, use_threads=False)
    return [action for name in kinds for action in _actions(rows, name, kinds[name][0])]


def _actions(rows: pa.Table, name: str, kind: type[Action]) -> Iterator[Action]:
    if name not in rows.column_names:
        return
    found = present(rows, name)
    maps = [field.name for field in found.type if pa.types.is_map(field.type)]
    for row in found.to_pylist():
        values: dict[str, Any] = {key: value for key, value in row.items() if value is not None}
        values.update((key, dict(values[key])) for key in maps if key in values)
        yield msgspec.convert(values, kind)
