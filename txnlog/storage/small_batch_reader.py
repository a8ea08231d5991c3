"""Reads what txnlog.storage.small_batch has written: pyarrow's reader takes 0.5 ms before a value.

Only that form is understood, recognised by how its footer begins; whatever is not exactly so is
left to pyarrow. Callers have checked the file's seal, so its bytes are those that were written.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.storage.records import BARE_SCHEMA
from txnlog.storage.small_batch import DELTAS, footer_begin

Bytes = npt.NDArray[np.uint8]

_VARINT = rb"([\x80-\xff]*[\x00-\x7f])"
# As small_batch has it: uncompressed_page_size, compressed_page_size, num_values.
_PAGE_HEADER = re.compile(
    rb"\x15\x00\x15"
    + _VARINT
    + rb"\x15"
    + _VARINT
    + rb"\x2c\x15"
    + _VARINT
    + rb"\x15\x00\x15\x06\x15\x06\x00\x00",
    re.DOTALL,
)


class _UnknownFormError(ValueError):
    """Not as `small_batch` writes it."""


def decode(data: bytes, pages_end: int, footer_at: int) -> pa.RecordBatch | None:
    """The records of a whole file, numbered from 0, with BARE_SCHEMA; None: of another form."""
    try:
        rows, codec = _describe(data, footer_at)
        pages = _Pages(data, 4, rows, codec)
        arrays = [
            _deltas(pages, rows),
            _instants(pages.next(), rows),
            _binaries(pages.next(), rows),
            _binaries(pages.next(), rows),
        ]
        if pages.end != pages_end:
            raise _UnknownFormError
    except (_UnknownFormError, IndexError, ValueError, pa.ArrowException):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=BARE_SCHEMA)


def _describe(data: bytes, footer_at: int) -> tuple[int, str]:
    """Number of rows, and codec, by the beginning of the footer."""
    for codec in ("snappy", "none"):
        before, after = footer_begin(codec)
        if data.startswith(before, footer_at):
            rows, at = _number(data, footer_at + len(before))
            if data.startswith(after, at):
                return rows, codec
    raise _UnknownFormError


class _Pages:
    """The pages of a file, one after the other."""

    def __init__(self, data: bytes, at: int, rows: int, codec: str) -> None:
        self._data = data
        self.end = at
        self._rows = rows
        self._codec = pa.Codec("snappy") if codec == "snappy" else None

    def next(self) -> bytes:
        header = _PAGE_HEADER.match(self._data, self.end)
        if header is None:
            raise _UnknownFormError
        raw_bytes, page_bytes, rows = (_number(number, 0)[0] for number in header.groups())
        at = header.end()
        self.end = at + page_bytes
        page = self._data[at : self.end]
        if rows != self._rows or len(page) != page_bytes:
            raise _UnknownFormError
        if self._codec is None:
            return page
        found: bytes = self._codec.decompress(page, decompressed_size=raw_bytes, asbytes=True)
        return found


class _Values(NamedTuple):
    """A page's values after its levels. `bits` say which rows have one; None: all or, without
    `values`, none."""

    values: Bytes
    bits: bytes | None
    present: int


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint that is not negative, and where it ends."""
    found, at = _varint(data, at)
    return found >> 1, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7


def _levelled(page: bytes, rows: int) -> _Values:
    levels_end = 4 + int.from_bytes(page[:4], "little")
    runs, at = _varint(page, 4)
    values = np.frombuffer(page, np.uint8, offset=levels_end)
    if runs & 1:
        bits = page[at:levels_end]
        if 8 * len(bits) < rows:
            raise _UnknownFormError
        return _Values(values, bits, int(_is_present(bits, rows).sum()))
    if runs >> 1 != rows:
        raise _UnknownFormError
    return _Values(values, None, rows if page[at] else 0)


def _is_present(bits: bytes, rows: int) -> npt.NDArray[np.bool_]:
    found = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:rows]
    return found.view(np.bool_)


def _deltas(pages: _Pages, rows: int) -> pa.Array:
    values = DELTAS[:rows]
    if pages.next() != values.tobytes():
        raise _UnknownFormError
    return pa.array(values)


def _instants(page: bytes, rows: int) -> pa.Array:
    kind = BARE_SCHEMA.field(1).type
    values, bits, present = _levelled(page, rows)
    if not present:
        return pa.nulls(rows, kind)
    # A copy, as Arrow wants numbers where they can be loaded at once.
    found = np.frombuffer(values.tobytes(), "<i8")
    if len(found) != present:
        raise _UnknownFormError
    if bits is None:
        return _array(kind, rows, [None, found], 0)
    spread = np.zeros(rows, "<i8")
    spread[_is_present(bits, rows)] = found
    return _array(kind, rows, [bits, spread], rows - present)


def _binaries(page: bytes, rows: int) -> pa.Array:
    values, bits, present = _levelled(page, rows)
    if not present:
        return pa.nulls(rows, pa.binary())
    lengths, data = _split(values, present)
    if bits is not None:
        spread = np.zeros(rows, np.int32)
        spread[_is_present(bits, rows)] = lengths
        lengths = spread
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return _array(pa.binary(), rows, [bits, ends, data], rows - present)


def _split(values: Bytes, count: int) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Lengths, and the bytes of all values after each other."""
    first = int.from_bytes(values[:4].tobytes(), "little")
    if len(values) == count * (4 + first):
        table = values.reshape(count, 4 + first)
        if (table[:, :4] == table[0, :4]).all():
            return np.full(count, first, np.int32), np.ascontiguousarray(table[:, 4:]).ravel()
    # Where a value begins is known from the one before only.
    whole = values.tobytes()
    starts, at = [], 0
    for _ in range(count):
        starts.append(at)
        at += 4 + int.from_bytes(whole[at : at + 4], "little")
    if at != len(whole):
        raise _UnknownFormError
    begins = np.array([*starts, at])
    is_data = np.ones(len(values), np.bool_)
    is_data[(begins[:-1, None] + np.arange(4)).ravel()] = False
    return (np.diff(begins) - 4).astype(np.int32), values[is_data]


def _array(kind: pa.DataType, rows: int, buffers: list[Any], null_count: int) -> pa.Array:
    owned = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, owned, null_count)
