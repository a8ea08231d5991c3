"""What every small Parquet file of storage.batches.small_batch has, for its writer and its reader.

The metadata is Thrift's compact protocol, in the order and with the ids of parquet.thrift: a field
is (its id less the id before) << 4 | type, a list is length << 4 | type of its elements, a number
is a zigzag varint, a struct ends with 0. Types: 1 true, 2 false, 5 i32, 6 i64, 8 binary, 9 list, 12
struct. Comments have parquet.thrift's names.
"""

from __future__ import annotations

from functools import cache

import numpy as np

CODECS = {"none": 0, "snappy": 1}
ROWS_MAX = 512
DELTA_BYTES = np.arange(ROWS_MAX, dtype="<i8").tobytes()
"""The page of offset_delta, of which a file has the beginning."""

PAGE_HEADER = (
    b"\x15\x00\x15",  # type: DATA_PAGE; uncompressed_page_size
    b"\x15",  # compressed_page_size
    b"\x2c\x15",  # data_page_header, num_values
    b"\x15\x00\x15\x06\x15\x06\x00\x00",  # encoding PLAIN, both levels RLE
)
"""The bytes around the three numbers of a page header."""


def varint_bytes(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL_NUMBERS = tuple(varint_bytes(number << 1) for number in range(4096))


def number_bytes(number: int) -> bytes:
    """Zigzag varint of a number that is not negative."""
    return _SMALL_NUMBERS[number] if number < 4096 else varint_bytes(number << 1)


def text_bytes(value: str) -> bytes:
    data = value.encode()
    return varint_bytes(len(data)) + data


@cache
def footer_begin(codec: str) -> tuple[bytes, bytes]:
    """The bytes before and after the number of rows in each footer with this codec."""
    return SCHEMA + b"\x16", ROW_GROUP + CHUNKS[codec][0]


def _chunk_begin(name: str, kind: int, codec: int) -> bytes:
    """The beginning of a ColumnChunk, which is the same in every file."""
    return b"".join(
        (
            b"\x26\x00\x1c",  # file_offset, deprecated; meta_data
            b"\x15" + number_bytes(kind),  # type
            b"\x19\x25\x00\x06",  # encodings: PLAIN, RLE
            b"\x19\x18" + text_bytes(name),  # path_in_schema
            b"\x15" + number_bytes(codec),  # codec
        )
    )


def _element(name: str, kind: int, *, required: bool = False, rest: bytes = b"") -> bytes:
    """A SchemaElement: type, repetition_type, name, and further fields."""
    repetition = b"\x25" + number_bytes(0 if required else 1)
    return b"\x15" + number_bytes(kind) + repetition + b"\x18" + text_bytes(name) + rest + b"\x00"


# converted_type TIMESTAMP_MICROS; logicalType TIMESTAMP: isAdjustedToUTC, unit MICROS
_INSTANT = b"\x25\x14\x4c\x8c\x11\x1c\x2c\x00\x00\x00\x00"
SCHEMA = b"".join(
    (
        b"\x15\x04\x19\x5c",  # version 2; schema: five elements, the root first
        b"\x48" + text_bytes("schema") + b"\x15\x08\x00",
        _element("offset_delta", 2, required=True),
        _element("timestamp", 2, rest=_INSTANT),
        _element("key", 6),
        _element("value", 6),
    )
)
ROW_GROUP = b"\x19\x1c\x19\x4c"  # row_groups: one of four columns
CHUNKS = {
    codec: tuple(
        _chunk_begin(name, kind, number)
        for name, kind in (("offset_delta", 2), ("timestamp", 2), ("key", 6), ("value", 6))
    )
    for codec, number in CODECS.items()
}
