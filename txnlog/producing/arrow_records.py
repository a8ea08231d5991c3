"""Arrow tables as records: columns value, and optionally key, headers, partition, timestamp.

These are the columns of the Spark sink. A timestamp without a time zone is refused: it names no
point in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txnlog.errors import InvalidRecordError
from txnlog.process import arrow_compute as pc
from txnlog.producing.destinations import Destination, check_record
from txnlog.storage.batches.records import (
    HEADERS_TYPE,
    RECORD_SCHEMA,
    record_sizes,
    row_without_name,
    to_headers,
)

SLICE_BYTES_MAX = 16 << 20
COLUMNS = ("value", "key", "headers", "partition", "timestamp")
TIMESTAMP_TYPE = RECORD_SCHEMA.field("timestamp").type
_TEXTS_AND_BYTES = frozenset(
    {
        pa.string(), pa.large_string(), pa.string_view(),
        pa.binary(), pa.large_binary(), pa.binary_view(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableSlice:
    """A slice of a table as records of RECORD_SCHEMA. `partitions` is int32, null where the key
    decides; `size_bytes` is the sum of the records' sizes, `size_bytes_max` the largest size."""

    records: pa.RecordBatch
    partitions: pa.Array | None
    size_bytes: int
    size_bytes_max: int


def to_slices(table: pa.Table | pa.RecordBatch, now_ms: int) -> Iterator[TableSlice]:
    """The table in slices of up to SLICE_BYTES_MAX; `now_ms` is the timestamp of rows without one.

    Raises InvalidRecordError naming the column.
    """
    _check(table)
    names = table.schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names or unknown or len(set(names)) < len(names):
        raise InvalidRecordError(
            f"The table has columns {names}; it needs value, and may have key, headers, partition "
            "and timestamp, once each. Rename or drop the others."
        )
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    for batch in batches:
        for part in _sliced(batch):
            if part.num_rows:
                yield _records_of(part, now_ms)


def check_records(part: TableSlice, to: Destination) -> None:
    """Raises as `check_record`, for a row that the topic does not accept."""
    keys, partitions = part.records.column("key"), part.partitions
    rows: list[int] = []
    if part.size_bytes_max > to.record_bytes_max:
        rows.append(int(np.argmax(record_sizes(part.records) > to.record_bytes_max)))
    if partitions is not None and partitions.null_count < len(partitions):
        bounds = pc.min_max(partitions).values()
        bad = [bound for bound in bounds if not -1 <= bound.as_py() < to.partitions]
        rows += [pc.index(partitions, bound).as_py() for bound in bad]
    if to.needs_key and keys.null_count:
        rows.append(pc.index(keys.is_null(), True).as_py())
    for row in rows:
        partition = None if partitions is None else partitions[row].as_py()
        size_bytes = int(record_sizes(part.records.slice(row, 1))[0])
        check_record(to, keys[row].as_py(), -1 if partition is None else partition, size_bytes, row)


def to_table(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """Rows for a table of others. Raises TypeError."""
    _check(rows)
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def _check(table: object) -> None:
    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        raise TypeError(f"Rows are a pyarrow.Table or RecordBatch, not {type(table)}.")


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows < 2 or batch.nbytes <= SLICE_BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _sliced(batch.slice(0, half))
    yield from _sliced(batch.slice(half))


def _records_of(batch: pa.RecordBatch, now_ms: int) -> TableSlice:
    records = pa.RecordBatch.from_arrays(
        [
            _timestamps(batch, now_ms),
            _column(batch, "key", lambda column: column.cast(pa.binary())),
            _column(batch, "value", lambda column: column.cast(pa.binary())),
            _column(batch, "headers", _to_headers),
        ],
        schema=RECORD_SCHEMA,
    )
    partitions = None
    if "partition" in batch.schema.names:
        partitions = _cast(batch, "partition", _to_partitions)
    sizes = record_sizes(records)
    return TableSlice(records, partitions, int(sizes.sum()), int(sizes.max()))


def _to_partitions(column: pa.Array) -> pa.Array:
    # Arrow would cast True, 1.0 and "1" to 1.
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise TypeError("it takes integers")
    return column.cast(pa.int32())


def _to_timestamps(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        column = pc.multiply_checked(column.cast(pa.int64()), 1000)
    elif not pa.types.is_timestamp(column.type) and not pa.types.is_null(column.type):
        raise TypeError("it takes timestamps with a zone, or milliseconds as integers")
    elif pa.types.is_timestamp(column.type) and column.type.tz is None:
        raise TypeError(
            "without a time zone it names no point in time; cast it to a timestamp with a time "
            "zone, or give milliseconds since 1970 as int64"
        )
    # Nanoseconds are truncated; a value out of range is an error.
    is_truncated = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(TIMESTAMP_TYPE, safe=not is_truncated)


def _to_headers(column: pa.Array) -> pa.Array:
    # Arrow does not check that the strings of an array are UTF-8.
    column.validate(full=True)
    if column.type != HEADERS_TYPE:
        _check_fields(column.type.value_type)
        column = to_headers(column)
    row = row_without_name(column)
    if row is not None:
        raise TypeError(f"row {row} has a header without a key; add a key, or omit the header")
    return column


def _check_fields(kind: pa.DataType) -> None:
    """Raises TypeError for fields that would be dropped, or become text that produce() refuses."""
    fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    if kind.num_fields != 2 or set(fields) != {"key", "value"}:
        raise TypeError("each header has the fields key and value")
    for name, found in fields.items():
        plain = found.value_type if pa.types.is_dictionary(found) else found
        if plain not in _TEXTS_AND_BYTES and not pa.types.is_null(plain):
            raise TypeError(f"the {name} of a header is text or bytes, not {found}")


def _column(batch: pa.RecordBatch, name: str, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    target = RECORD_SCHEMA.field(name).type
    if name not in batch.schema.names or pa.types.is_null(batch.column(name).type):
        return pa.nulls(batch.num_rows, target)
    column = batch.column(name)
    if column.type == target and name != "headers":
        return column
    return _cast(batch, name, convert)


def _timestamps(batch: pa.RecordBatch, now_ms: int) -> pa.Array:
    now = pa.scalar(now_ms * 1000, pa.int64()).cast(TIMESTAMP_TYPE)
    if "timestamp" not in batch.schema.names:
        return pa.repeat(now, batch.num_rows)
    times = _cast(batch, "timestamp", _to_timestamps)
    lowest = pc.min(times.cast(pa.int64())).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidRecordError(
            "Column timestamp has times before 1970-01-01T00:00:00Z; a record cannot have them.",
            column="timestamp",
        )
    return times.fill_null(now) if times.null_count else times


def _cast(batch: pa.RecordBatch, name: str, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    column = batch.column(name)
    targets = {"partition": pa.int32(), "headers": HEADERS_TYPE, "timestamp": TIMESTAMP_TYPE}
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return convert(column)
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"Column {name} of type {column.type} cannot become {targets.get(name, pa.binary())}: "
            f"{error}",
            column=name,
        ) from error
