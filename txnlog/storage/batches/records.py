"""Records in Arrow: in a data file, to a reader, and their size as Kafka estimates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.process import arrow_compute as pc
from txnlog.process.arrow_arrays import number_array, repeated_text

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
DATA_SCHEMA = pa.schema([pa.field("offset_delta", pa.int64(), nullable=False), *RECORD_SCHEMA])
# A file whose records have no headers.
BARE_SCHEMA = pa.schema([field for field in DATA_SCHEMA if field.name != "headers"])

# The schema of readers: the columns of Spark's Kafka source, with its types and nullability.
MESSAGE_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
BARE_MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
MESSAGE_SCHEMA = BARE_MESSAGE_SCHEMA.append(pa.field("headers", MESSAGE_HEADERS_TYPE))
CREATE_TIME = 0
"""The timestampType of every record: its producer set the time."""

# Upper bound of Kafka's overhead of a single record: batch header 61, record header 21, and the
# lengths of key, value and header count, maximum 5 each (AbstractRecords.estimateSizeInBytes...).
RECORD_OVERHEAD_BYTES = 97
HEADER_OVERHEAD_BYTES = 10


def record_sizes(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Upper bound of the size in bytes of each record, as Kafka's producer estimates it.

    `records` has the columns key, value and headers of RECORD_SCHEMA, in any order.
    """
    sizes = np.full(records.num_rows, RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for name in ("key", "value"):
        column = records.column(name)
        if column.null_count < len(column):
            sizes += _lengths(pc.binary_length(column))
    headers = records.column("headers")
    if headers.null_count < len(headers):
        sizes += _header_sizes(headers)
    return sizes


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    if lengths.null_count:
        lengths = pc.fill_null(lengths, 0)
    return cast("npt.NDArray[np.int64]", lengths.to_numpy(zero_copy_only=False).astype(np.int64))


def _header_sizes(headers: pa.ListArray) -> npt.NDArray[np.int64]:
    counts = _lengths(pc.list_value_length(headers))
    flat = headers.flatten()
    sizes = np.full(len(flat), HEADER_OVERHEAD_BYTES, dtype=np.int64)
    for part in flat.flatten():
        sizes += _lengths(pc.binary_length(part))
    ends = np.cumsum(counts)
    upto = np.concatenate(([0], np.cumsum(sizes)))
    return cast("npt.NDArray[np.int64]", upto[ends] - upto[ends - counts])


def to_messages(
    records: pa.RecordBatch,
    topic: str,
    partition: int,
    offsets: pa.Array,
    names: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Records of one partition as MESSAGE_SCHEMA; as BARE_MESSAGE_SCHEMA without headers.

    Or with the columns `names` of MESSAGE_SCHEMA, in its order. `records` has columns of
    RECORD_SCHEMA, in any order, at least those that are wanted.
    """
    schema = MESSAGE_SCHEMA if "headers" in records.schema.names else BARE_MESSAGE_SCHEMA
    if names is not None:
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    rows = records.num_rows
    columns = []
    for name in schema.names:
        if name == "topic":
            column = repeated_text(topic, rows)
        elif name == "partition":
            column = number_array(np.full(rows, partition, dtype=np.int32))
        elif name == "offset":
            column = offsets
        elif name == "timestampType":
            column = number_array(np.full(rows, CREATE_TIME, dtype=np.int32))
        else:
            column = records.column(name)
        if name == "headers":
            column = with_names(column).cast(MESSAGE_HEADERS_TYPE)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_headers(column: pa.Array) -> pa.Array:
    """Headers as in RECORD_SCHEMA, from large lists, other element names, re-ordered fields."""
    lists = column.cast(pa.list_(column.type.value_type))
    flat = lists.flatten()
    parts = [flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())]
    elements = pa.StructArray.from_arrays(parts, names=["key", "value"], mask=flat.is_null())
    return _in_lists(lists, elements)


def row_without_name(column: pa.ListArray) -> int | None:
    """The first row that has a header without a key, or a null in place of a header."""
    missing = _names_missing(column)
    if missing is None:
        return None
    ends = np.cumsum(_lengths(pc.list_value_length(column)))
    return int(np.searchsorted(ends, pc.index(missing, True).as_py(), side="right"))


def with_names(column: pa.ListArray) -> pa.ListArray:
    """Headers in which a missing key is the empty string, as readers return them.

    Producers refuse headers without a key; files of other writers may have some.
    """
    if _names_missing(column) is None:
        return column
    keys, values = column.flatten().flatten()
    parts = [pc.fill_null(keys, ""), values]
    return _in_lists(column, pa.StructArray.from_arrays(parts, names=["key", "value"]))


def _names_missing(column: pa.ListArray) -> pa.Array | None:
    """Of each header, whether its key is missing; None if none is."""
    if column.null_count == len(column):
        return None
    flat = column.flatten()
    missing = pc.or_(flat.is_null(), flat.field("key").is_null())
    return missing if pc.any(missing).as_py() else None


def _in_lists(lists: pa.ListArray, elements: pa.StructArray) -> pa.ListArray:
    """The elements in place of those of `lists`, as HEADERS_TYPE."""
    ends = np.cumsum(_lengths(pc.list_value_length(lists)), dtype=np.int32)
    offsets = number_array(np.concatenate(([0], ends)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, type=HEADERS_TYPE, mask=lists.is_null())
