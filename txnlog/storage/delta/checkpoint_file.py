"""What delta-rs cannot leave out of a checkpoint, or would take long to put in.

Tombstones are many where small files are merged all day, and delta-rs takes microseconds for each;
here they go from one checkpoint into the next by the column. Row groups of nothing else hold
them, so that a reader of the table need not decode them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.protocol.txn_memory import is_expired
from txnlog.storage.store.parquet_claims import ClaimError, check_pages, check_schema, footer_bytes

TOMBSTONES = pa.schema([("path", pa.string()), ("deletionTimestamp", pa.int64())])
"""A file that left the table, and when, in milliseconds; null where nobody said."""

_ROWS_PER_GROUP = 65_536
_ROWS_FREE = 10_000
"""So many rows a checkpoint of any size may say that it has."""


def open_checkpoint(parquet: bytes) -> pq.ParquetFile:
    """The file, for the functions below. Raises ArrowInvalid if it is none, ClaimError (a
    ValueError) if it says of itself what its bytes cannot hold.
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
    # Each has a path or an id of its own.
    if found.num_rows > len(parquet) + _ROWS_FREE:
        raise ClaimError(f"it has {len(parquet)} bytes, and says that it has {found.num_rows} rows")
    check_pages(read_at, found, groups, file.schema_arrow.names)
    return file


def live_groups(metadata: pq.FileMetaData) -> list[int]:
    """The row groups that may hold more than tombstones."""
    counts = _tombstones_by_group(metadata)
    return [
        group
        for group, count in enumerate(counts)
        if count is None or count < metadata.row_group(group).num_rows
    ]


def read_tombstones(file: pq.ParquetFile) -> pa.Table:
    """All tombstones of a checkpoint, with the columns of TOMBSTONES."""
    counts = _tombstones_by_group(file.metadata)
    groups = [group for group, count in enumerate(counts) if count != 0]
    if not groups:
        return TOMBSTONES.empty_table()
    columns = [f"remove.{name}" for name in TOMBSTONES.names]
    rows = file.read_row_groups(groups, columns=columns, use_threads=False)
    tables = []
    for chunk in rows.column("remove").chunks:
        removes = chunk.drop_null()
        arrays = [removes.field(name) for name in TOMBSTONES.names]
        tables.append(pa.Table.from_arrays(arrays, TOMBSTONES.names).cast(TOMBSTONES))
    return pa.concat_tables(tables)


def without_tombstones(parquet: bytes) -> bytes:
    """A checkpoint of what is live."""
    file = open_checkpoint(parquet)
    if all(count == 0 for count in _tombstones_by_group(file.metadata)):
        return parquet
    table = file.read_row_groups(live_groups(file.metadata), use_threads=False)
    return _written(table.filter(pc.is_null(table.column("remove"))))


def with_tombstones(parquet: bytes, tombstones: pa.Table) -> bytes:
    """A checkpoint of what is live, and these tombstones behind it."""
    live = open_checkpoint(parquet).read(use_threads=False)
    nothing = [_nulls(column, min(len(tombstones), _ROWS_PER_GROUP)) for column in live.columns]
    rows = pa.table(nothing, schema=live.schema)
    at = live.column_names.index("remove")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, live.schema, use_dictionary=False) as writer:
        writer.write_table(live)
        for some in tombstones.to_batches(max_chunksize=_ROWS_PER_GROUP):
            removes = _removes(some, rows.column(at).chunk(0))
            writer.write_table(rows.slice(0, len(some)).set_column(at, live.field(at), removes))
    return bytes(sink.getvalue())


def without_expired(parquet: bytes, *, transactions_ms: int, producers_ms: int) -> bytes:
    """A checkpoint of what is live without the `txn` actions that two horizons make forgotten."""
    table = open_checkpoint(parquet).read(use_threads=False)
    kept = [
        txn is None
        or not is_expired(
            txn["appId"],
            txn["lastUpdated"],
            transactions_ms=transactions_ms,
            producers_ms=producers_ms,
        )
        for txn in table.column("txn").to_pylist()
    ]
    return _written(table.filter(pa.array(kept)))


def configuration(parquet: bytes) -> dict[str, str]:
    """The table's properties."""
    rows = open_checkpoint(parquet).read(["metaData.configuration"], use_threads=False)
    found: list[dict[str, Any]] = rows.column("metaData").drop_null().to_pylist()
    return dict(found[-1]["configuration"] or []) if found else {}


def _tombstones_by_group(metadata: pq.FileMetaData) -> list[int | None]:
    """How many tombstones each row group holds, by the footer; None where that does not say."""
    counts: list[int | None] = []
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        columns = (found.column(number) for number in range(found.num_columns))
        paths = [column for column in columns if column.path_in_schema == "remove.path"]
        if not paths:
            counts.append(0)
        elif paths[0].statistics is None or not paths[0].statistics.has_null_count:
            counts.append(None)
        else:
            counts.append(found.num_rows - paths[0].statistics.null_count)
    return counts


def _nulls(column: pa.ChunkedArray, count: int) -> pa.Array:
    """So many of a column's nulls; each has one, as no row of a checkpoint has two kinds of action.

    Not Arrow's nulls: those are null inside, too, where Parquet's schema says that nothing is.
    """
    at = pc.index(pc.is_null(column), True)
    return column.take(pa.repeat(at, count)).combine_chunks()


def _removes(rows: pa.RecordBatch, nulls: pa.StructArray) -> pa.StructArray:
    """Tombstones as a checkpoint's column, filled up with what its nulls are made of."""
    known = {
        "path": rows.column("path"),
        "deletionTimestamp": rows.column("deletionTimestamp"),
        "dataChange": pa.repeat(False, len(rows)),
    }
    arrays = [
        known[field.name].cast(field.type)
        if field.name in known
        else nulls.field(field.name).slice(0, len(rows))
        for field in nulls.type
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(nulls.type))


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())
