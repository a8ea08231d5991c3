"""A decoder of the small files of storage.batches.small_batch: pyarrow takes 0.5 ms per file.

Only that form is decoded, recognised by the beginning of its footer; any other file is left to
pyarrow. Callers have checked the file's seal, so its bytes are those that were written.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TypeVar, cast

import pyarrow as pa

from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.small_batch import Page, deltas, nulls
from txnlog.storage.batches.small_batch_form import (
    DELTA_BYTES,
    PAGE_HEADER,
    ROWS_MAX,
    footer_begin,
)

T = TypeVar("T")

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
# The groups are uncompressed_page_size, compressed_page_size, num_values.
_PAGE_HEADER = re.compile(_VARINT.join(map(re.escape, PAGE_HEADER)), re.DOTALL)
_LENGTH = struct.Struct("<I")


_SNAPPY = pa.Codec("snappy")
_NUMBERS_KEPT = 4096
_PAGE_BYTES_MAX = 64 << 20
_VARINT_BITS_MAX = 64


class _UnknownFormError(ValueError):
    """The file is not as `small_batch` writes it."""


def decode(data: bytes, pages_end: int, footer_at: int) -> RecordLists | None:
    """The records of a whole file, in order; None for another form."""
    try:
        rows, codec = _describe(data, footer_at)
        pages = _Pages(data, 4, rows, codec)
        # Offsets are consecutive in this form.
        if not pages.skip(deltas(rows, codec)) and pages.next() != DELTA_BYTES[: 8 * rows]:
            raise _UnknownFormError
        times_us = _instants(pages.next(), rows)
        keys: list[bytes | None] = [None] * rows
        if not pages.skip(nulls(rows, codec)):
            keys = _binaries(pages.next(), rows)
        values = _binaries(pages.next(), rows)
        if pages.end != pages_end:
            raise _UnknownFormError
    except (_UnknownFormError, IndexError, ValueError, struct.error, pa.ArrowException):
        return None
    return RecordLists(times_us, keys, values)


def _describe(data: bytes, footer_at: int) -> tuple[int, str]:
    """Number of rows, and codec, from the beginning of the footer."""
    for codec in ("snappy", "none"):
        before, after = footer_begin(codec)
        if data.startswith(before, footer_at):
            rows, at = _number(data, footer_at + len(before))
            if data.startswith(after, at) and 0 < rows <= ROWS_MAX:
                return rows, codec
    raise _UnknownFormError


class _Pages:
    """The pages of a file, one after the other."""

    def __init__(self, data: bytes, at: int, rows: int, codec: str) -> None:
        self._data = data
        self.end = at
        self._rows = rows
        self._codec = codec

    def skip(self, page: Page) -> bool:
        """Pass over the next page if it is this one."""
        is_next = self._data.startswith(page.data, self.end)
        if is_next:
            self.end += len(page.data)
        return is_next

    def next(self) -> bytes:
        """The next page, decompressed."""
        header = _PAGE_HEADER.match(self._data, self.end)
        if header is None:
            raise _UnknownFormError
        raw_bytes, page_bytes, rows = map(_number_alone, header.groups())
        at = header.end()
        self.end = at + page_bytes
        page = self._data[at : self.end]
        # Pages of so few records are smaller than the memory that this reader would allocate.
        if rows != self._rows or len(page) != page_bytes or raw_bytes > _PAGE_BYTES_MAX:
            raise _UnknownFormError
        if self._codec == "none":
            return page
        found: bytes = _SNAPPY.decompress(page, decompressed_size=raw_bytes, asbytes=True)
        return found


@lru_cache(_NUMBERS_KEPT)
def _number_alone(data: bytes) -> int:
    return _number(data, 0)[0]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint that is not negative, and its end."""
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
        if shift > _VARINT_BITS_MAX:
            raise _UnknownFormError


def _levels(page: bytes, rows: int) -> tuple[int, list[bool] | None]:
    """Position of the values, and which rows have one (None: all rows)."""
    levels_end = 4 + int.from_bytes(page[:4], "little")
    runs, at = _varint(page, 4)
    if runs & 1:
        bits = page[at:levels_end]
        if 8 * len(bits) < rows:
            raise _UnknownFormError
        found = int.from_bytes(bits, "little")
        return levels_end, [bool(found >> row & 1) for row in range(rows)]
    if runs >> 1 != rows:
        raise _UnknownFormError
    return levels_end, None if page[at] else [False] * rows


def _spread(values: list[T], rows: int, is_there: list[bool] | None) -> list[T | None]:
    """The values at their rows, None at the others."""
    if len(values) != (rows if is_there is None else sum(is_there)):
        raise _UnknownFormError
    if is_there is None:
        return cast("list[T | None]", values)
    left = iter(values)
    return [next(left) if there else None for there in is_there]


def _instants(page: bytes, rows: int) -> list[int | None]:
    at, is_there = _levels(page, rows)
    count, rest = divmod(len(page) - at, 8)
    if rest:
        raise _UnknownFormError
    return _spread(list(struct.unpack_from(f"<{count}q", page, at)), rows, is_there)


def _binaries(page: bytes, rows: int) -> list[bytes | None]:
    at, is_there = _levels(page, rows)
    values = []
    end = len(page)
    length_at = _LENGTH.unpack_from
    while at < end:
        (length,) = length_at(page, at)
        begin = at + 4
        at = begin + length
        values.append(page[begin:at])
    if at != end:
        raise _UnknownFormError
    return _spread(values, rows, is_there)
