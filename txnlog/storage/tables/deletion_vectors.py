"""Deletion vectors of Delta tables: which rows of a file are deleted.

A vector is a 64-bit Roaring bitmap of row numbers in the portable format, in the log itself or in a
file below the table. See the Delta protocol, "Deletion Vector Format", and the Roaring format.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from txnlog.protocol.enlisted.actions import DeletionVector, base85, file_name
from txnlog.storage.store.objects import ObjectStore

Rows = npt.NDArray[np.uint64]

_MAGIC = 1681511377
_COOKIE, _COOKIE_OF_RUNS = 12346, 12347
_OFFSETS_FROM = 4
"""A bitmap with runs has offsets of containers from so many containers on."""
_ARRAY_MAX = 4096


def deleted_rows(store: ObjectStore, vector: DeletionVector) -> Rows:
    """The numbers of the deleted rows of a file, sorted.

    Raises ValueError for a vector that cannot be read, ObjectNotFoundError.
    """
    try:
        return _decoded(_bytes(store, vector), vector.cardinality)
    except (struct.error, ValueError) as error:
        raise ValueError(f"its deletion vector cannot be read: {error}") from error


def _bytes(store: ObjectStore, vector: DeletionVector) -> bytes:
    text = vector.path_or_inline_dv
    if vector.storage_type == "i":
        return base85(text)[: vector.size_in_bytes]
    if not vector.path:
        raise ValueError(f"it is outside of the table, at {text!r}")
    data = store.get(vector.path)
    start = (vector.offset or 0) + 4
    end = start + vector.size_in_bytes
    found = data[start:end]
    size_bytes, checksum = struct.unpack(">I", data[start - 4 : start]), data[end : end + 4]
    if size_bytes != (vector.size_in_bytes,) or struct.unpack(">I", checksum) != (
        zlib.crc32(found),
    ):
        raise ValueError(f"{file_name(vector.path)} is damaged")
    return found


def _decoded(data: bytes, cardinality: int) -> Rows:
    magic, count = struct.unpack_from("<IQ", data)
    if magic != _MAGIC:
        raise ValueError(f"unknown format {magic}")
    at, left, parts = 12, cardinality, [np.zeros(0, np.uint64)]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _bitmap(data, at + 4, left)
        left -= len(low)
        parts.append(low + (np.uint64(high) << np.uint64(32)))
    if left:
        raise ValueError(f"it has {cardinality - left} rows, the log says {cardinality}")
    return np.concatenate(parts)


def _bitmap(data: bytes, at: int, rows_max: int) -> tuple[Rows, int]:
    """A 32-bit Roaring bitmap of so many rows at most, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _COOKIE_OF_RUNS:
        size = (cookie >> 16) + 1
        runs = data[at : at + (size + 7) // 8]
        at += len(runs)
    elif cookie == _COOKIE:
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"unknown bitmap {cookie}")
    header = np.frombuffer(data, "<u2", 2 * size, at).astype(np.uint64).reshape(size, 2)
    if int(header[:, 1].sum()) + size > rows_max:
        raise ValueError("it has more rows than the log says")
    at += 4 * size
    if not runs or size >= _OFFSETS_FROM:
        at += 4 * size
    parts = [np.zeros(0, np.uint64)]
    for number, (key, last) in enumerate(header):
        if runs and runs[number // 8] >> number % 8 & 1:
            (length,) = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(data, "<u2", 2 * length, at + 2).astype(np.uint64)
            if int(pairs[1::2].sum()) + length != int(last) + 1:
                raise ValueError("its runs do not fit their number of rows")
            spans = [
                np.arange(start, start + more + np.uint64(1), dtype=np.uint64)
                for start, more in pairs.reshape(length, 2)
            ]
            low, at = np.concatenate([*spans, parts[0]]), at + 2 + 4 * length
        elif last < _ARRAY_MAX:
            low = np.frombuffer(data, "<u2", int(last) + 1, at).astype(np.uint64)
            at += 2 * (int(last) + 1)
        else:
            bits = np.frombuffer(data, np.uint8, 8192, at)
            low = np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.uint64)
            at += 8192
        parts.append(low + (key << np.uint64(16)))
    return np.concatenate(parts), at
