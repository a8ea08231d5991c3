"""A checkpoint as a Parquet file: its columns, and the rows of each kind of action.

A table whose small files are merged all day has many tombstones. They are in row groups of their
own, so that readers of the table do not decode them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.process.arrow_arrays import number_array, places_where
from txnlog.storage.store.parquet_claims import ClaimError, check_pages, check_schema, footer_bytes

_MAP = pa.map_(pa.string(), pa.string())
_STRINGS = pa.list_(pa.string())

SCHEMA = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _STRINGS,
                "writerFeatures": _STRINGS,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(),
                "partitionColumns": _STRINGS,
                "configuration": _MAP,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}
        ),
    }
)
"""The columns of our checkpoints: one for each kind of action, null in the rows of the others."""

REQUIRED = {
    "protocol": "protocol.minReaderVersion",
    "metaData": "metaData.id",
    "txn": "txn.appId",
    "add": "add.path",
    "remove": "remove.path",
}
"""Kind of action -> a field that is never null; its statistics count the actions of row groups."""

TOMBSTONES = pa.schema([("path", pa.string()), ("deletionTimestamp", pa.int64())])
"""Path and time of a removed file, in milliseconds; null where the action has no time."""

UNDECODABLE = (
    pa.ArrowException,
    msgspec.MsgspecError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
)
"""What decoding the bytes of a damaged checkpoint raises; see also `is_out_of_memory`."""

_ROWS_FREE = 10_000
"""Number of rows that a checkpoint of any size may claim."""


def leaf_paths(fields: Iterable[pa.Field], folder: str = "") -> list[str]:
    """The paths of Parquet's columns."""
    found: list[str] = []
    for field in fields:
        path = folder + field.name
        if pa.types.is_struct(field.type):
            found += leaf_paths(field.type, f"{path}.")
        elif pa.types.is_map(field.type):
            found += [f"{path}.key_value.key", f"{path}.key_value.value"]
        elif pa.types.is_list(field.type):
            found.append(f"{path}.list.element")
        else:
            found.append(path)
    return found


def open_checkpoint(parquet: bytes) -> pq.ParquetFile:
    """A checkpoint's Parquet file. Raises ArrowInvalid if it is none, ClaimError (a ValueError) if
    it claims more rows or larger pages than its bytes can hold.
    """

    def read_at(start: int, end: int) -> bytes:
        return parquet[max(0, start) : max(0, end)]

    check_schema(read_at, len(parquet))
    limit = max(1, footer_bytes(read_at, len(parquet)))
    file = pq.ParquetFile(pa.BufferReader(parquet), thrift_container_size_limit=limit)
    found = file.metadata
    groups = range(found.num_row_groups)
    rows = [found.row_group(group).num_rows for group in groups]
    if min(rows, default=0) < 0 or sum(rows) != found.num_rows:
        raise ClaimError(f"its row groups have {rows[:5]}... of {found.num_rows} rows")
    # Each row has its own path or id.
    if found.num_rows > len(parquet) + _ROWS_FREE:
        raise ClaimError(f"it has {len(parquet)} bytes, and says that it has {found.num_rows} rows")
    check_pages(read_at, found, groups, file.schema_arrow.names)
    return file


def live_groups(metadata: pq.FileMetaData) -> list[int]:
    """The row groups that may hold more than tombstones."""
    counts = _counts_by_group(metadata, "remove")
    return [
        group
        for group, count in enumerate(counts)
        if count is None or count < metadata.row_group(group).num_rows
    ]


def groups_with(metadata: pq.FileMetaData, kind: str) -> list[int]:
    """The row groups that may hold actions of a kind."""
    counts = _counts_by_group(metadata, kind)
    return [group for group, count in enumerate(counts) if count != 0]


def read_actions(
    file: pq.ParquetFile, kind: str, groups: list[int] | None = None
) -> pa.StructArray:
    """The actions of a kind in some row groups, by default in all, in the form of SCHEMA."""
    wanted = SCHEMA.field(kind).type
    if groups is None:
        groups = groups_with(file.metadata, kind)
    if not groups:
        return pa.nulls(0, wanted)
    columns = [f"{kind}.{field.name}" for field in wanted]
    found = file.read_row_groups(groups, columns=columns, use_threads=False)
    return _in_form(present(found, kind), wanted)


def read_tombstones(file: pq.ParquetFile) -> pa.Table:
    """All tombstones of a checkpoint, with the columns of TOMBSTONES."""
    groups = groups_with(file.metadata, "remove")
    if not groups:
        return pa.Table.from_batches([], TOMBSTONES)
    columns = [f"remove.{name}" for name in TOMBSTONES.names]
    rows = file.read_row_groups(groups, columns=columns, use_threads=False)
    tables = []
    for chunk in rows.column("remove").chunks:
        removes = chunk.drop_null()
        arrays = [removes.field(name) for name in TOMBSTONES.names]
        tables.append(pa.Table.from_arrays(arrays, TOMBSTONES.names).cast(TOMBSTONES))
    return pa.concat_tables(tables)


def present(table: pa.Table, kind: str) -> pa.StructArray:
    """The rows of a checkpoint that hold this kind of action."""
    if kind not in table.column_names:
        return pa.nulls(0, pa.struct([("path", pa.string())]))
    column = table.column(kind).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    places = places_where(column.is_valid())
    if len(places) and places[-1] - places[0] + 1 == len(places):
        # One kind after the other, as delta-rs and our writer do: nothing is copied.
        return column.slice(places[0], len(places))
    return column.take(number_array(places))


def _counts_by_group(metadata: pq.FileMetaData, kind: str) -> list[int | None]:
    """Number of actions of a kind in each row group, by the footer; None: it has no statistics."""
    counts: list[int | None] = []
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        columns = (found.column(number) for number in range(found.num_columns))
        paths = [column for column in columns if column.path_in_schema == REQUIRED[kind]]
        if not paths:
            counts.append(0)
        elif paths[0].statistics is None or not paths[0].statistics.has_null_count:
            counts.append(None)
        else:
            counts.append(found.num_rows - paths[0].statistics.null_count)
    return counts


def _in_form(rows: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    """The rows with these fields and types; fields that the file does not have are null."""
    arrays: list[Any] = []
    for field in wanted:
        if rows.type.get_field_index(field.name) < 0:
            arrays.append(pa.nulls(len(rows), field.type))
        elif pa.types.is_struct(field.type):
            arrays.append(_in_form(rows.field(field.name), field.type))
        else:
            arrays.append(rows.field(field.name).cast(field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=rows.is_null())
