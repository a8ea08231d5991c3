"""Parquet files of a few records, encoded here: pyarrow's writer takes 0.2 ms before the first one.

A transaction writes a small file per partition, and that set-up was half of its cost. These files
are as plain as Parquet gets: one row group, one page (v1) per column, PLAIN values, RLE levels,
each page as it is or by snappy. The metadata is Thrift's compact protocol, in the order and by the
ids of parquet.thrift. What is not plain (headers, many records, other codecs) is pyarrow's.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from txnlog.storage.records import BARE_SCHEMA

ROWS_MAX = 4096
CODECS = {"none": 0, "snappy": 1}

_RECORD_SCHEMA = BARE_SCHEMA.remove(0)
DELTAS = np.arange(ROWS_MAX, dtype="<i8")
_INT64 = struct.Struct("<q")
_UINT32 = struct.Struct("<I")


class EncodedBatch(NamedTuple):
    """A Parquet file in two parts, and the range of its timestamps (0 without any)."""

    pages: bytes | memoryview
    footer: bytes | memoryview
    timestamp_min_us: int
    timestamp_max_us: int


def can_encode(records: pa.Table | pa.RecordBatch, codec: str) -> bool:
    """Whether `encode` takes these records: few, without headers, columns as in BARE_SCHEMA."""
    return (
        0 < records.num_rows <= ROWS_MAX
        and codec in CODECS
        and records.schema.equals(_RECORD_SCHEMA)
    )


def encode(records: pa.Table | pa.RecordBatch, codec: str) -> EncodedBatch:
    """Encode records in offset order, numbered from 0, as one file with BARE_SCHEMA."""
    rows = records.num_rows
    columns = (
        _Column(DELTAS[:rows].tobytes(), 0, (0, rows - 1)),
        _timestamps(_array(records, "timestamp")),
        _binaries(_array(records, "key")),
        _binaries(_array(records, "value")),
    )
    compress = pa.Codec("snappy").compress if codec == "snappy" else None
    pages = bytearray(b"PAR1")
    chunks = bytearray()
    total_bytes = 0
    for described, column in zip(_CHUNKS[codec], columns, strict=True):
        raw = column.page
        data = compress(raw, asbytes=True) if compress else raw
        header = _page_header(rows, len(raw), len(data))
        sizes = (len(header) + len(raw), len(header) + len(data))
        chunks += described + _chunk(rows, sizes, len(pages), column)
        total_bytes += sizes[0]
        pages += header
        pages += data
    footer = _footer(rows, bytes(chunks), total_bytes, len(pages) - 4)
    low, high = columns[1].extremes or (0, 0)
    return EncodedBatch(bytes(pages), footer, low, high)


# -- values ----------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A page's bytes before compression, and what its statistics say."""

    page: bytes
    null_count: int
    extremes: tuple[int, int] | None = None


def _array(records: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = records.column(name)
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _timestamps(array: pa.Array) -> _Column:
    levels = _levels(array)
    present = array.drop_null() if array.null_count else array
    values = np.frombuffer(present.buffers()[1] or b"", "<i8")[present.offset :][: len(present)]
    extremes = (int(values.min()), int(values.max())) if len(values) else None
    return _Column(levels + values.tobytes(), array.null_count, extremes)


def _binaries(array: pa.Array) -> _Column:
    """Each value after its length, 4 bytes."""
    levels = _levels(array)
    present = array.drop_null() if array.null_count else array
    count = len(present)
    if not count:
        return _Column(levels, array.null_count)
    _, ends_buffer, data_buffer = present.buffers()
    ends = np.frombuffer(ends_buffer, "<i4")[present.offset :][: count + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends).astype("<u4", copy=False)
    if (lengths == lengths[0]).all():
        rows = np.empty((count, 4 + int(lengths[0])), np.uint8)
        rows[:, :4] = lengths[:1].view(np.uint8)
        rows[:, 4:] = data.reshape(count, rows.shape[1] - 4)
        return _Column(levels + rows.tobytes(), array.null_count)
    starts = ends[:-1] - ends[0] + 4 * np.arange(count)
    encoded = np.empty(len(data) + 4 * count, np.uint8)
    is_length = np.zeros(len(encoded), np.bool_)
    is_length[(starts[:, None] + np.arange(4)).ravel()] = True
    encoded[is_length] = lengths.view(np.uint8)
    encoded[~is_length] = data
    return _Column(levels + encoded.tobytes(), array.null_count)


def _levels(array: pa.Array) -> bytes:
    """Which values there are: a run when they are all the same, else a bit for each."""
    rows, nulls = len(array), array.null_count
    if nulls in (0, rows):
        runs = _varint(rows << 1) + (b"\x00" if nulls else b"\x01")
    else:
        bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        runs = _varint(len(bits) << 1 | 1) + bits.tobytes()
    return _UINT32.pack(len(runs)) + runs


# -- metadata --------------------------------------------------------------------------------------
# Thrift's compact protocol: a field is (its id less the id before) << 4 | type, a list is
# length << 4 | type of its elements, a number is a zigzag varint, a struct ends with 0. Types:
# 1 true, 2 false, 5 i32, 6 i64, 8 binary, 9 list, 12 struct. Comments have parquet.thrift's names.


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL_NUMBERS = tuple(_varint(number << 1) for number in range(4096))


def _number(number: int) -> bytes:
    """Zigzag of a number that is not negative."""
    return _SMALL_NUMBERS[number] if number < 4096 else _varint(number << 1)


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data)) + data


def _page_header(rows: int, raw_bytes: int, page_bytes: int) -> bytes:
    return b"".join(
        (
            b"\x15\x00",  # type: DATA_PAGE
            b"\x15" + _number(raw_bytes),  # uncompressed_page_size
            b"\x15" + _number(page_bytes),  # compressed_page_size
            b"\x2c\x15" + _number(rows),  # data_page_header, num_values
            b"\x15\x00\x15\x06\x15\x06\x00\x00",  # encoding PLAIN, both levels RLE
        )
    )


def _chunk_begin(name: str, kind: int, codec: int) -> bytes:
    """What a ColumnChunk says about every file's column."""
    return b"".join(
        (
            b"\x26\x00\x1c",  # file_offset, of old; meta_data
            b"\x15" + _number(kind),  # type
            b"\x19\x25\x00\x06",  # encodings: PLAIN, RLE
            b"\x19\x18" + _text(name),  # path_in_schema
            b"\x15" + _number(codec),  # codec
        )
    )


def _chunk(rows: int, sizes: tuple[int, int], at: int, column: _Column) -> bytes:
    """The rest of a ColumnChunk; `sizes` are page and header before and after compression."""
    return b"".join(
        (
            b"\x16" + _number(rows),  # num_values
            b"\x16" + _number(sizes[0]),  # total_uncompressed_size
            b"\x16" + _number(sizes[1]),  # total_compressed_size
            b"\x26" + _number(at),  # data_page_offset
            b"\x3c\x36" + _number(column.null_count),  # statistics, null_count
            _extremes(column.extremes),
            b"\x00\x00\x00",
        )
    )


def _extremes(extremes: tuple[int, int] | None) -> bytes:
    if extremes is None:
        return b""
    low, high = extremes
    return b"\x28\x08" + _INT64.pack(high) + b"\x18\x08" + _INT64.pack(low)  # max_, min_value


def footer_begin(codec: str) -> tuple[bytes, bytes]:
    """What stands before and after the number of rows in each footer of ours with this codec."""
    return _SCHEMA + b"\x16", _ROW_GROUP + _CHUNKS[codec][0]


def _footer(rows: int, chunks: bytes, total_bytes: int, pages_bytes: int) -> bytes:
    metadata = b"".join(
        (
            _SCHEMA,
            b"\x16" + _number(rows),  # num_rows
            _ROW_GROUP + chunks,
            b"\x16" + _number(total_bytes),  # total_byte_size
            b"\x16" + _number(rows),  # num_rows
            b"\x19\x1c\x15\x00\x12\x12\x00",  # sorting_columns: the first, ascending, nulls last
            b"\x16\x08",  # file_offset
            b"\x16" + _number(pages_bytes) + b"\x00",  # total_compressed_size
            b"\x28" + _text("txnlog version 1.0.0 (build 1)"),  # created_by
            b"\x19\x4c" + 4 * b"\x1c\x00\x00" + b"\x00",  # column_orders: TYPE_ORDER
        )
    )
    return metadata + _UINT32.pack(len(metadata)) + b"PAR1"


def _element(name: str, kind: int, *, required: bool = False, rest: bytes = b"") -> bytes:
    """A SchemaElement: type, repetition_type, name, and what else there is to say."""
    repetition = b"\x25" + _number(0 if required else 1)
    return b"\x15" + _number(kind) + repetition + b"\x18" + _text(name) + rest + b"\x00"


# converted_type TIMESTAMP_MICROS; logicalType TIMESTAMP: isAdjustedToUTC, unit MICROS
_INSTANT = b"\x25\x14\x4c\x8c\x11\x1c\x2c\x00\x00\x00\x00"
_SCHEMA = b"".join(
    (
        b"\x15\x04\x19\x5c",  # version 2; schema: five elements, the root first
        b"\x48" + _text("schema") + b"\x15\x08\x00",
        _element("offset_delta", 2, required=True),
        _element("timestamp", 2, rest=_INSTANT),
        _element("key", 6),
        _element("value", 6),
    )
)
_ROW_GROUP = b"\x19\x1c\x19\x4c"  # row_groups: one of four columns
_CHUNKS = {
    codec: tuple(
        _chunk_begin(name, kind, number)
        for name, kind in (("offset_delta", 2), ("timestamp", 2), ("key", 6), ("value", 6))
    )
    for codec, number in CODECS.items()
}
