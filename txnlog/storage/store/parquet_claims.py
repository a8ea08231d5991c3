"""Checks of a Parquet file's metadata, before Arrow relies on it (D68).

Arrow allocates the size in a page header, up to 2 GiB, and recurses into a schema to any depth. A
seal proves that txnlog wrote the metadata; these checks are for files of other writers and for
checkpoints. Metadata that cannot be parsed here is left to Arrow to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.parquet as pq

ReadAt = Callable[[int, int], bytes]
"""(start, end) -> those bytes of a file."""

PAGE_BYTES_FREE = 64 << 20
"""Largest uncompressed page that is accepted whatever its compressed size."""
EXPANSION_MAX = 64
"""Maximum compression ratio of a larger page."""
SCHEMA_DEPTH_MAX = 64
_HEADER_BYTES = 1 << 10
_HEADER_BYTES_MAX = 16 << 20
_NESTING_MAX = 16

_BOOLS, _BYTE, _INTS, _DOUBLE = (1, 2), 3, (4, 5, 6), 7
_BINARY, _LISTS, _STRUCT = 8, (9, 10), 12


class ClaimError(ValueError):
    """A file's metadata claims what is impossible; the message says what."""


class _ShortError(Exception):
    """The bytes end before the value does, or are not Thrift."""


def footer_bytes(read_at: ReadAt, size_bytes: int) -> int:
    """Length of the footer at the end of a file; 0 without one. No list in it is longer."""
    if size_bytes < 12:
        return 0
    found = int.from_bytes(read_at(size_bytes - 8, size_bytes - 4), "little")
    return found if found <= size_bytes - 8 else 0


def check_schema(read_at: ReadAt, size_bytes: int) -> None:
    """Raise ClaimError for a schema so deep that recursion could crash the process."""
    length = footer_bytes(read_at, size_bytes)
    footer = read_at(size_bytes - 8 - length, size_bytes - 8)
    try:
        fields, _ = _Thrift(footer).struct(0, until=2)
    except _ShortError:
        return
    elements = fields.get(2)
    left: list[int] = []
    for element in elements if isinstance(elements, list) else ():
        while left and left[-1] == 0:
            left.pop()
        if left:
            left[-1] -= 1
        children = element.get(5) if isinstance(element, dict) else 0
        left.append(children if isinstance(children, int) else 0)
        if len(left) > SCHEMA_DEPTH_MAX:
            raise ClaimError(f"its schema nests deeper than {SCHEMA_DEPTH_MAX} levels")


def check_pages(
    read_at: ReadAt, metadata: pq.FileMetaData, groups: Iterable[int], columns: Iterable[str]
) -> None:
    """Raise ClaimError for a page that would take far more memory than the file has bytes.

    `columns` are top-level names of the schema.
    """
    wanted = frozenset(columns)
    for group in groups:
        described = metadata.row_group(group)
        for number in range(described.num_columns):
            column = described.column(number)
            if column.path_in_schema.partition(".")[0] in wanted:
                start = column.data_page_offset
                if column.dictionary_page_offset is not None:
                    start = min(start, column.dictionary_page_offset)
                _check_chunk(read_at, start, start + column.total_compressed_size)


def _check_chunk(read_at: ReadAt, at: int, end: int) -> None:
    while 0 <= at < end:
        header = _page_header(read_at, at, end)
        if header is None:
            return
        raw_bytes, page_bytes, header_bytes = header
        if raw_bytes > max(PAGE_BYTES_FREE, EXPANSION_MAX * page_bytes):
            raise ClaimError(
                f"the page at byte {at} has {page_bytes} bytes and asks for {raw_bytes} in memory"
            )
        if page_bytes < 0:
            return
        at += header_bytes + page_bytes


def _page_header(read_at: ReadAt, at: int, end: int) -> tuple[int, int, int] | None:
    """(uncompressed size, compressed size, size of the header itself); None if not a header."""
    length = _HEADER_BYTES
    while length <= _HEADER_BYTES_MAX:
        data = read_at(at, min(at + length, end))
        try:
            fields, used = _Thrift(data).struct(0)
        except _ShortError:
            if len(data) < length:
                return None
            length *= 8
            continue
        raw_bytes, page_bytes = fields.get(2), fields.get(3)
        if isinstance(raw_bytes, int) and isinstance(page_bytes, int):
            return raw_bytes, page_bytes, used
        return None
    return None


class _Thrift:
    """Reads Thrift's compact protocol: a struct is field id -> value; binaries are skipped."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def struct(self, at: int, *, until: int | None = None, depth: int = 0) -> tuple[Any, int]:
        """The fields of a struct, up to field `until`, and where it ends."""
        if depth > _NESTING_MAX:
            raise _ShortError
        fields: dict[int, Any] = {}
        field = 0
        while True:
            head = self._byte(at)
            at += 1
            if head == 0:
                return fields, at
            kind = head & 15
            if head >> 4:
                field += head >> 4
            else:
                field, at = self._int(at)
            if kind in _BOOLS:
                fields[field] = kind == 1
            else:
                fields[field], at = self._value(kind, at, depth)
            if field == until:
                return fields, at

    def _value(self, kind: int, at: int, depth: int) -> tuple[Any, int]:
        if kind in _INTS:
            return self._int(at)
        if kind in (_BYTE, *_BOOLS):
            return self._byte(at), at + 1
        if kind == _DOUBLE:
            return None, at + 8
        if kind == _BINARY:
            length, at = self._varint(at)
            return None, at + length
        if kind in _LISTS:
            return self._list(at, depth)
        if kind == _STRUCT:
            return self.struct(at, depth=depth + 1)
        # Parquet has no maps.
        raise _ShortError

    def _list(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _NESTING_MAX:
            raise _ShortError
        head = self._byte(at)
        at += 1
        count = head >> 4
        if count == 15:
            count, at = self._varint(at)
        if count > len(self._data) - at:
            raise _ShortError
        found = []
        for _ in range(count):
            value, at = self._value(head & 15, at, depth + 1)
            found.append(value)
        return found, at

    def _int(self, at: int) -> tuple[int, int]:
        found, at = self._varint(at)
        return (found >> 1) ^ -(found & 1), at

    def _varint(self, at: int) -> tuple[int, int]:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte(at)
            at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found, at
        raise _ShortError

    def _byte(self, at: int) -> int:
        if at >= len(self._data):
            raise _ShortError
        return self._data[at]
