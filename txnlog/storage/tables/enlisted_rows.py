"""The rows of an enlisted Delta table as one Arrow table, with a filter that skips files.

Values of partition columns are those of the log, in the table's types; null and "" are the same
there. Columns are found by their physical names, deleted rows are left out. Statistics of other
writers are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from txnlog.errors import (
    CorruptLogError,
    ObjectNotFoundError,
    StorageError,
    TableFeatureError,
    TxnLogError,
)
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.enlisted.actions import Definition, LiveFile
from txnlog.protocol.enlisted.features import unknown_features
from txnlog.protocol.enlisted.parts import is_outside
from txnlog.protocol.enlisted.schemas import partition_fields, schema_of
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, open_foreign
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.deletion_vectors import Rows, deleted_rows
from txnlog.storage.tables.enlisted_columns import FileField, fit
from txnlog.storage.tables.enlisted_reader import EnlistedReader
from txnlog.storage.tables.skipping import check_columns, check_filter, matching

if TYPE_CHECKING:
    import pyarrow.compute as pc


class _Column(NamedTuple):
    """A column to read of the table at `url`; `partition` is its physical name if its values are in
    the log.
    """

    url: str
    name: str
    field: FileField
    partition: str | None


def read_table(
    log: EnlistedReader, *, columns: Sequence[str] | None, filter: pc.Expression | None
) -> pa.Table:
    """The rows of a table as of the last `refresh_files`, in no order.

    `columns`, all by default, are the table's; `filter` may use others, too. Files of partitions
    that it rules out are not read. Raises ConfigError for another column, TableFeatureError for
    what cannot be read here, CorruptLogError, ObjectNotFoundError.
    """
    url, definition = log.store.url, log.state.definition
    _check_features(url, definition)
    all_names = [field.name for field in schema_of(definition).fields]
    names = check_columns(columns, all_names)
    known = {column.name: column for column in _columns(url, definition)}
    if unknown := [name for name in names if name not in known]:
        raise _refused(url, f"the column {unknown[0]!r} has a type that only engines can read")
    schema = pa.schema([(name, column.field.arrow.type) for name, column in known.items()])
    used = {*names, *check_filter(filter, schema)}
    wanted = [column for name, column in known.items() if name in used]
    files = sorted((log.state.files or {}).items())
    partitions = [column for column in known.values() if column.partition is not None]
    left = matching(
        [live for _, live in files], schema, filter, partial(_bounds, columns=partitions)
    )
    found = [schema.empty_table().select(names)]
    for part in _read(log.store, left, wanted):
        found.append((part if filter is None else part.filter(filter)).select(names))
    return pa.concat_tables(found)


def read_staged(
    store: ObjectStore, definition: Definition, files: Iterable[LiveFile]
) -> Iterator[pa.Table]:
    """The rows of files that were staged under a definition, a table per row group.

    Raises as `read_table`.
    """
    _check_features(store.url, definition)
    columns = list(_columns(store.url, definition))
    known = {column.name for column in columns}
    for field in schema_of(definition).fields:
        if field.name not in known:
            raise _refused(store.url, f"the column {field.name!r} has a type for engines only")
    yield from _read(store, files, columns)


def _check_features(url: str, definition: Definition) -> None:
    if unknown := unknown_features(definition):
        raise _refused(url, f"it needs {unknown[0]!r}")
    if definition.column_mapping == "id":
        raise _refused(url, "its columns are mapped by id")


def _refused(url: str, why: str) -> TableFeatureError:
    return TableFeatureError(
        f"{url}: its rows cannot be read here: {why}. Only an engine can, such as Spark.",
        url=url,
        abortable=False,
    )


def _columns(url: str, definition: Definition) -> Iterator[_Column]:
    """Those whose type is known here."""
    partitions = {field.name: name for name, field in partition_fields(definition).items()}
    for field in schema_of(definition).fields:
        if field.name in partitions and field.type == "binary":
            # Engines disagree on how to write these.
            continue
        with suppress(ValueError):
            found = FileField.to_read(field, definition.column_mapping)
            yield _Column(url, field.name, found, partitions.get(field.name))


def _bounds(live: LiveFile, columns: Iterable[_Column]) -> Any:
    """What the log says of each row of a file."""
    import pyarrow.compute as pc

    known = pc.scalar(True)
    for column in columns:
        value = _value(live, column)
        name = pc.field(column.name)
        if not value.is_valid:
            known &= name.is_null()
        elif not pa.types.is_floating(value.type):
            known &= name == value
    return known


def _value(live: LiveFile, column: _Column) -> pa.Scalar:
    """The value of a partition column in a file. Raises CorruptLogError."""
    kind, text = column.field.arrow.type, live.partition_values.get(column.partition or "")
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            # Those without a zone are in UTC.
            naive = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us"))
            return naive.cast(kind)
        return pa.scalar(text).cast(kind)
    except pa.ArrowException as error:
        raise CorruptLogError(
            f"{column.url}: the log of this Delta table has the value {text!r} in the partition "
            f"column {column.name!r}, which is no {kind}: {error}. Another tool wrote it. Look at "
            "it with the tool that writes the table.",
            url=column.url,
            fatal=False,
        ) from error


def _read(
    store: ObjectStore, files: Iterable[LiveFile], columns: Sequence[_Column]
) -> Iterator[pa.Table]:
    """The rows of each row group."""

    def span(live: LiveFile) -> FileSpan:
        path = unquote(live.path)
        if is_outside(path):
            raise _refused(store.url, f"the file {path} is not below it, as in a shallow clone")
        return FileSpan(path, size_bytes=live.size)

    for live, data in read_ahead(store, files, span):
        path = unquote(live.path)
        with _named(store, path):
            yield from _read_file(store, span(live), live, columns, data)


def _read_file(
    store: ObjectStore,
    span: FileSpan,
    live: LiveFile,
    columns: Sequence[_Column],
    data: bytes | None,
) -> Iterator[pa.Table]:
    deleted = None
    if live.deletion_vector is not None:
        deleted = deleted_rows(store, live.deletion_vector)
    names = [column.field.name for column in columns if column.partition is None]
    file, stored = open_foreign(store, span, names, data=data)
    absent = {name.lower() for name in names if name not in stored}
    if others := [name for name in file.schema_arrow.names if name.lower() in absent]:
        raise ValueError(f"it has a column {others[0]!r}, spelled as in no schema of the table")
    start = 0
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group, columns=stored, use_threads=False)
        arrays = [
            pa.repeat(_value(live, c), rows.num_rows)
            if c.partition is not None
            else _fitted(rows, c)
            for c in columns
        ]
        schema = pa.schema([(c.name, c.field.arrow.type) for c in columns])
        table = pa.table(arrays, schema=schema)
        end = start + rows.num_rows
        yield table if deleted is None else table.filter(_left(deleted, start, end))
        start = end
    if deleted is not None and len(deleted) and deleted[-1] >= start:
        raise ValueError(f"it has {start} rows, and row {deleted[-1]} is deleted")


def _fitted(rows: pa.Table, column: _Column) -> pa.ChunkedArray:
    """The values of a column in the table's type; null where the file does not have it."""
    kind = column.field.arrow.type
    if column.field.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, kind)])
    chunks = rows.column(column.field.name).chunks
    return pa.chunked_array([fit(chunk, column.field, len(chunk)) for chunk in chunks], kind)


def _left(deleted: Rows, start: int, end: int) -> pa.Array:
    """Which of the rows from `start` to `end` are not deleted."""
    left = np.ones(end - start, np.uint8)
    low, high = np.searchsorted(deleted, [start, end])
    left[deleted[low:high] - np.uint64(start)] = 0
    return number_array(left).cast(pa.bool_())


@contextmanager
def _named(store: ObjectStore, path: str) -> Iterator[None]:
    """Errors of pyarrow on a file name it."""
    try:
        yield
    except TxnLogError:
        raise
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"{store.url}/{path} is not there.", file=path) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"{store.url}/{path}", path) from error
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{store.url}/{path} could not be read: {error}") from error
        raise CorruptLogError(
            f"{store.url}/{path}: this file of the table cannot be read: {error}. Look at it with "
            "the tool that writes the table.",
            file=f"{store.url}/{path}",
            fatal=False,
        ) from error
