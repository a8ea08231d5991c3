"""What delta-rs cannot leave out of a checkpoint, or would leave out by the wrong clock.

Rare, so that whole files may be rewritten for it: producers are forgotten now and then, and most
machines have the time of their store.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.protocol.txn_memory import is_expired


def without_expired(parquet: bytes, *, transactions_ms: int, producers_ms: int) -> bytes:
    """A checkpoint without the `txn` actions of producers that two horizons make forgotten."""
    table = _read(parquet)
    txns = table.column("txn").combine_chunks()
    kept = [
        txn is None
        or not is_expired(
            txn["appId"],
            txn["lastUpdated"],
            transactions_ms=transactions_ms,
            producers_ms=producers_ms,
        )
        for txn in txns.to_pylist()
    ]
    return _written(table.filter(pa.array(kept)))


def has_removed(parquet: bytes) -> bool:
    """Whether a checkpoint holds tombstones, by its footer alone where that says it."""
    found = pq.ParquetFile(pa.BufferReader(parquet))
    metadata = found.metadata
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(row_group.num_columns):
            chunk = row_group.column(column)
            if chunk.path_in_schema == "remove.path":
                statistics = chunk.statistics
                if statistics is None or statistics.null_count < row_group.num_rows:
                    return True
    return False


def moved_by(parquet: bytes, by_ms: int) -> bytes:
    """A checkpoint whose tombstones are later by so much."""
    table = _read(parquet)
    removes = table.column("remove").combine_chunks()
    fields = list(removes.type)
    arrays = [removes.field(number) for number in range(len(fields))]
    at = [field.name for field in fields].index("deletionTimestamp")
    arrays[at] = pc.add(arrays[at], by_ms)
    moved = pa.StructArray.from_arrays(arrays, fields=fields, mask=pc.is_null(removes))
    return _written(table.set_column(table.column_names.index("remove"), "remove", moved))


def _read(parquet: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(parquet)).read(use_threads=False)


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())
