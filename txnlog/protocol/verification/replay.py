"""The state of a table by its log, in columns: loaded from a checkpoint, changed by commits.

Live files are an Arrow table, since a million of them would not fit as Python objects. Changes of
commits are buffered until the columns are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    TxnMemory,
    is_expired,
    is_horizon,
)

FILE_COLUMNS = ("path", "size", "modification_time", "stats")
_TYPES = {"size": pa.int64(), "modification_time": pa.int64()}
DIFFERENCES_MAX = 5
CHANGES_MAX = 20_000
"""Maximum number of buffered changes; each takes about a kilobyte."""


class TableMetadata(NamedTuple):
    """A table's newest `metaData` and `protocol`; `versions` are reader and writer versions."""

    table_id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    versions: tuple[int, int] = (1, 2)


class File(NamedTuple):
    """A live file that a commit added."""

    path: str
    size: int
    modification_time: int
    stats: str
    values: Mapping[str, str | None]


def file_of_row(row: dict[str, Any]) -> File:
    """A file from a row of the columns; removes FILE_COLUMNS from the row."""
    path, size, modified, stats = (row.pop(name) for name in FILE_COLUMNS)
    return File(path, size, modified, stats, row)


class TableState:
    """See the module. `txns` maps app id -> (version, last updated or None)."""

    def __init__(self) -> None:
        self.metadata: TableMetadata | None = None
        self.txns: dict[str, tuple[int, int | None]] = {}
        self._base = _table(dict.fromkeys(FILE_COLUMNS, ()), ())
        self._changed: dict[str, File | None] = {}

    def load(
        self,
        metadata: TableMetadata,
        txns: Mapping[str, tuple[int, int | None]],
        files: Mapping[str, Any],
    ) -> None:
        """Load a checkpoint's columns; `files` has FILE_COLUMNS and every partition column.

        Entries that the checkpoint's own horizons expire are dropped, as every reader does.
        """
        self.metadata = metadata
        self.txns = dict(txns)
        for app_id in (EXPIRED_TRANSACTIONS, EXPIRED_PRODUCERS):
            if app_id in self.txns:
                self._expire()
        columns = files or dict.fromkeys((*FILE_COLUMNS, *metadata.partition_columns), ())
        self._base = _table(columns, metadata.partition_columns)
        self._changed.clear()

    def add(self, file: File) -> None:
        """Add a file, or replace the header of a live path."""
        self._change(file.path, file)

    def remove(self, path: str) -> None:
        self._change(path, None)

    def _change(self, path: str, file: File | None) -> None:
        self._changed[path] = file
        if len(self._changed) >= CHANGES_MAX:
            self._apply_changes()

    def set_txn(self, app_id: str, version: int, updated_ms: int | None) -> None:
        """Apply a `txn` action; a horizon expires what was written before it."""
        self.txns[app_id] = version, updated_ms
        if is_horizon(app_id):
            self._expire()

    def memory(self) -> TxnMemory:
        """The `txn` actions in the form that decisions use."""
        found = TxnMemory()
        order = sorted(self.txns.items(), key=lambda item: not is_horizon(item[0]))
        for app_id, (version, updated_ms) in order:
            found.set_txn(app_id, version, updated_ms)
        return found

    @property
    def files(self) -> pa.Table:
        """All live files, FILE_COLUMNS and the partition columns as strings."""
        self._apply_changes()
        if self._base.column("path").num_chunks > 1:
            self._base = self._base.combine_chunks()
        return self._base

    def _apply_changes(self) -> None:
        if self._changed:
            self._base = self._merged()
            self._changed.clear()

    def _merged(self) -> pa.Table:
        names = () if self.metadata is None else self.metadata.partition_columns
        paths = pa.array(list(self._changed), pa.string())
        kept = self._base
        is_changed = pc.is_in(kept.column("path"), paths)
        if pc.any(is_changed).as_py():
            kept = kept.filter(pc.invert(is_changed))
        added = [file for file in self._changed.values() if file is not None]
        columns: dict[str, Any] = {
            "path": [file.path for file in added],
            "size": [file.size for file in added],
            "modification_time": [file.modification_time for file in added],
            "stats": [file.stats for file in added],
        }
        for name in names:
            columns[name] = [file.values.get(name) for file in added]
        new = _table(columns, names)
        if not len(kept):
            return new
        return pa.concat_tables([kept, new], promote_options="default")

    def _expire(self) -> None:
        transactions_ms = self.txns.get(EXPIRED_TRANSACTIONS, (-1, None))[0]
        producers_ms = self.txns.get(EXPIRED_PRODUCERS, (-1, None))[0]
        self.txns = {
            app_id: entry
            for app_id, entry in self.txns.items()
            if not is_expired(
                app_id, entry[1], transactions_ms=transactions_ms, producers_ms=producers_ms
            )
        }


def differences(replayed: TableState, stated: TableState) -> list[str]:
    """Where a checkpoint contradicts the log before it, up to DIFFERENCES_MAX sentences."""
    found = []
    if replayed.metadata != stated.metadata:
        found.append("its metaData or protocol differs")
    for app_id in sorted({*replayed.txns, *stated.txns}):
        before, after = replayed.txns.get(app_id), stated.txns.get(app_id)
        if before != after:
            found.append(f"txn {app_id} is {_shown(after)}, the commits say {_shown(before)}")
            if len(found) >= DIFFERENCES_MAX:
                break
    return [*found, *_file_differences(replayed.files, stated.files)][:DIFFERENCES_MAX]


def _file_differences(replayed: pa.Table, stated: pa.Table) -> list[str]:
    found = []
    before, after = replayed.column("path"), stated.column("path")
    repeated = len(after) - pc.count_distinct(after).as_py()
    if repeated:
        found.append(f"it names {repeated} files twice")
    places = pc.index_in(before, after)
    lost = before.filter(pc.is_null(places))
    if len(lost):
        found.append(f"it lacks {len(lost)} live files, for example {lost[0].as_py()}")
    extra = after.filter(pc.invert(pc.is_in(after, before)))
    if len(extra):
        found.append(
            f"it names {len(extra)} files that are not live, for example {extra[0].as_py()}"
        )
    there = pc.is_valid(places)
    taken = places.drop_null()
    for name in replayed.column_names:
        if name not in stated.column_names:
            found.append(f"it has no column {name}")
            continue
        # Column by column: copies of all of them would double the memory.
        column = replayed.column(name) if not len(lost) else replayed.column(name).filter(there)
        differ = pc.invert(_equal(column, stated.column(name).take(taken)))
        count = pc.sum(differ).as_py() or 0
        if count:
            paths = before if not len(lost) else before.filter(there)
            example = paths[pc.index(differ, True).as_py()].as_py()
            found.append(f"{name} of {count} files differs, for example of {example}")
    return found


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null equals null."""
    same = pc.fill_null(pc.equal(left, right), False)
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def _table(columns: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
    arrays = {}
    for name in (*FILE_COLUMNS, *names):
        kind = _TYPES.get(name, pa.string()) if name in FILE_COLUMNS else pa.string()
        column = columns[name]
        arrays[name] = column if isinstance(column, pa.Array) else pa.array(column, kind)
        if arrays[name].type != kind:
            arrays[name] = arrays[name].cast(kind)
    arrays["stats"] = pc.fill_null(arrays["stats"], "")
    return pa.table(arrays)


def _shown(entry: tuple[int, int | None] | None) -> str:
    return "missing" if entry is None else f"{entry[0]} of {entry[1]}"
