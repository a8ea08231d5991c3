"""Converts the columns that Spark passes to the sink, with the rules and errors of Kafka's sink.

The columns are those of org.apache.spark.sql.kafka010.KafkaWriter: names are case-sensitive,
unknown columns are ignored, `value` is required, `topic` only without the option.
All work is on whole Arrow columns; row numbers start at 0 within the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import ConfigError, InvalidRecordError
from txnlog.process import arrow_compute as pc
from txnlog.storage.batches.records import HEADERS_TYPE, RECORD_SCHEMA, row_without_name, to_headers

NO_PARTITION = -1
SLICE_BYTES_MAX = 64 << 20
_INT32_MAX = 2**31 - 1

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_LISTS = (pa.types.is_list, pa.types.is_large_list)

# Spark's names of Arrow types, for messages; other types are shown with Arrow's name.
_SPARK_NAMES: Mapping[pa.DataType, str] = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The index of each record column in a checked schema; None: missing, or not used."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one task as records.

    `records` has RECORD_SCHEMA; `topics` is a string array, None if the option names the topic;
    `partitions` is int32 with -1 for null, None without the column; `first_row` is the row number
    within the task.
    """

    records: pa.RecordBatch
    topics: pa.Array | None
    partitions: npt.NDArray[np.int32] | None
    first_row: int


def check_columns(
    schema: pa.Schema, *, topic: str | None = None, include_headers: bool = False
) -> RowColumns:
    """Find the columns of a record in a schema and check their types.

    `topic` is the option, which overrides the column; `headers` are checked and used only with
    `include_headers`. Both the planning driver (schema from Spark's `to_arrow_schema`) and the
    tasks call this. Raises ConfigError if neither option nor column gives a topic, else
    InvalidRecordError naming the column, its type and the allowed types.
    """
    if topic is None and "topic" not in schema.names:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option "
            f"for setting a topic, or add a column topic to {schema.names}.",
            option="topic",
        )
    if "value" not in schema.names:
        raise InvalidRecordError(
            f"Required attribute 'value' not found among the columns {schema.names}. Name the "
            "column that holds the message 'value', as string or binary.",
            column="value",
        )
    return RowColumns(
        value=_checked(schema, "value", _is_text_or_bytes, "string or binary") or 0,
        key=_checked(schema, "key", _is_text_or_bytes, "string or binary"),
        headers=_checked(schema, "headers", _is_headers, "array<struct<key:string,value:binary>>")
        if include_headers
        else None,
        topic=_checked(schema, "topic", _is_text, "string") if topic is None else None,
        partition=_checked(schema, "partition", pa.types.is_int32, "int"),
        timestamp=_checked(schema, "timestamp", _is_instant, "double or timestamp"),
    )


def _checked(
    schema: pa.Schema, name: str, allowed: Callable[[pa.DataType], bool], wanted: str
) -> int | None:
    if name not in schema.names:
        return None
    index = schema.names.index(name)
    actual = schema.field(index).type
    if allowed(actual):
        return index
    hint = f"Cast it, or rename the column if it is not the record's {name}."
    if name == "timestamp" and pa.types.is_timestamp(actual):
        hint = (
            "A timestamp without time zone is not an instant: cast('timestamp') converts it in "
            "the session's time zone."
        )
    raise InvalidRecordError(
        f"{name} attribute unsupported type {_type_name(actual)}. {name} must be a(n) {wanted}. "
        f"{hint}",
        column=name,
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _STRINGS)


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (*_STRINGS, *_BINARIES))


def _is_instant(kind: pa.DataType) -> bool:
    """An instant: TIMESTAMP, or a double of seconds as in Kafka's sink; never TIMESTAMP_NTZ."""
    return pa.types.is_float64(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_headers(kind: pa.DataType) -> bool:
    if not any(test(kind) for test in _LISTS) or not pa.types.is_struct(kind.value_type):
        return False
    fields = [(field.name, field.type) for field in kind.value_type]
    return (
        len(fields) == 2
        and fields[0][0] == "key"
        and _is_text(fields[0][1])
        and fields[1][0] == "value"
        and any(test(fields[1][1]) for test in _BINARIES)
    )


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _SPARK_NAMES.get(kind, str(kind))


# -- rows to records -----------------------------------------------------------------------------


def rows_of_batch(
    batch: pa.RecordBatch, columns: RowColumns, *, first_row: int, task_us: int
) -> Rows:
    """The record columns of a batch: binary, microseconds UTC, null where absent.

    Rows without a timestamp get `task_us`. Raises InvalidRecordError naming the row.
    """
    count = batch.num_rows

    def column(index: int | None, field: str) -> pa.Array:
        return (
            pa.nulls(count, RECORD_SCHEMA.field(field).type)
            if index is None
            else _binary(batch.column(index))
        )

    headers = (
        pa.nulls(count, HEADERS_TYPE)
        if columns.headers is None
        else _headers(batch.column(columns.headers), first_row)
    )
    records = pa.RecordBatch.from_arrays(
        [
            _timestamps(batch, columns.timestamp, first_row, task_us),
            column(columns.key, "key"),
            column(columns.value, "value"),
            headers,
        ],
        schema=RECORD_SCHEMA,
    )
    return Rows(
        records=records,
        topics=None if columns.topic is None else _topics(batch.column(columns.topic), first_row),
        partitions=None
        if columns.partition is None
        else _partitions(batch.column(columns.partition), first_row),
        first_row=first_row,
    )


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of up to SLICE_BYTES_MAX, to bound 32-bit offsets and memory."""
    if batch.num_rows < 2 or batch.nbytes <= SLICE_BYTES_MAX:
        yield batch
        return
    half = batch.num_rows // 2
    yield from sliced(batch.slice(0, half))
    yield from sliced(batch.slice(half))


def _binary(column: pa.Array) -> pa.Array:
    """As binary; without a copy, except for a slice of a buffer above 2 GB."""
    if pa.types.is_binary(column.type):
        return column
    data = column.buffers()[-1]
    if data is not None and data.size > _INT32_MAX:
        column = column.take(pa.array(np.arange(len(column))))
    return column.cast(pa.binary())


def _timestamps(batch: pa.RecordBatch, index: int | None, first_row: int, task_us: int) -> pa.Array:
    wanted = RECORD_SCHEMA.field("timestamp").type
    if index is None:
        return pa.array(np.full(batch.num_rows, task_us, dtype=np.int64)).cast(wanted)
    column = batch.column(index)
    if pa.types.is_float64(column.type):
        finite = pc.if_else(pc.is_finite(column), column, None)
        column = pc.multiply(finite, 1e6).cast(pa.int64(), safe=False)
    column = column.cast(wanted, safe=False)
    early = pc.min(column.cast(pa.int64())).as_py()
    if early is not None and early < 0:
        row = _first(pc.less(column.cast(pa.int64()), 0))
        raise InvalidRecordError(
            f"Row {first_row + row} of this task: timestamp {column[row].as_py()} is before "
            "1970-01-01T00:00:00Z, which is invalid in a record. Correct it, or leave it null for "
            "the time of writing.",
            row=first_row + row,
            column="timestamp",
        )
    return column.fill_null(pa.scalar(task_us, wanted)) if column.null_count else column


def _headers(column: pa.Array, first_row: int) -> pa.Array:
    if column.type != HEADERS_TYPE:
        column = to_headers(column)
    row = row_without_name(column)
    if row is not None:
        raise InvalidRecordError(
            f"Row {first_row + row} of this task has a header without a key. Add a key, or omit "
            "the header.",
            row=first_row + row,
            column="headers",
        )
    return column


def _topics(column: pa.Array, first_row: int) -> pa.Array:
    if column.null_count:
        row = first_row + _first(column.is_null())
        raise InvalidRecordError(
            f"Row {row} of this task: null topic present in the data. Use the topic option for "
            "setting a default topic, or fill the column topic.",
            row=row,
            column="topic",
        )
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _partitions(column: pa.Array, first_row: int) -> npt.NDArray[np.int32]:
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        row = _first(pc.less(column, 0))
        raise InvalidRecordError(
            f"Row {first_row + row} of this task: partition {column[row].as_py()} is negative. "
            "Partitions start at 0; null means partitioning by key.",
            row=first_row + row,
            column="partition",
        )
    filled = column.fill_null(NO_PARTITION) if column.null_count else column
    partitions: npt.NDArray[np.int32] = filled.to_numpy(zero_copy_only=False)
    return partitions


def _first(mask: pa.Array) -> int:
    """The index of the first true value."""
    return int(pc.index(mask, True).as_py())
