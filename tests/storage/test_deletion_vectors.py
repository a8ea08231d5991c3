"""Deletion vectors of Delta tables: each form, and damaged ones."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from txnlog.protocol.enlisted.actions import DeletionVector
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.deletion_vectors import deleted_rows

ROWS = [3, 4, 7, 11, 18, 29]
# Two spellings of base 85: Python's, and that of Delta.
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# The example of Delta's protocol.
NAMED = "ab^-aqEH.-t@S}K{vb[*k^"
FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def store() -> ObjectStore:
    return ObjectStore.from_url("memory://")


def inline(data: bytes, rows: int = 6) -> DeletionVector:
    """In the log itself, padded to words."""
    text = base64.b85encode(data, pad=True).decode().translate(str.maketrans(DIGITS, Z85))
    return DeletionVector(
        storage_type="i", path_or_inline_dv=text, size_in_bytes=len(data), cardinality=rows
    )


def in_file(data: bytes, rows: int) -> tuple[ObjectStore, DeletionVector]:
    """In a file with something before it."""
    place = store()
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    place.put(FILE, b"\1" + bytes(8) + framed)
    return place, DeletionVector(
        storage_type="u",
        path_or_inline_dv=NAMED,
        offset=9,
        size_in_bytes=len(data),
        cardinality=rows,
    )


def array(*rows: int) -> tuple[int, bytes]:
    return len(rows), np.array(rows, "<u2").tobytes()


def bits(*rows: int) -> tuple[int, bytes]:
    found = np.zeros(1 << 16, np.uint8)
    found[list(rows)] = 1
    return len(rows), np.packbits(found, bitorder="little").tobytes()


def runs(*spans: tuple[int, int]) -> tuple[int, bytes]:
    """(first, number) of each."""
    pairs = [(first, number - 1) for first, number in spans]
    data = struct.pack("<H", len(spans)) + np.array(pairs, "<u2").tobytes()
    return sum(number for _, number in spans), data


def bitmap(
    containers: Sequence[tuple[int, tuple[int, bytes]]], *, has_runs: Sequence[bool]
) -> bytes:
    size = len(containers)
    head = b"".join(struct.pack("<HH", key, count - 1) for key, (count, _) in containers)
    offsets = bytes(4 * size) if not any(has_runs) or size >= 4 else b""
    if any(has_runs):
        flags = np.packbits(np.array(has_runs, np.uint8), bitorder="little").tobytes()
        start = struct.pack("<I", 12347 | (size - 1) << 16) + flags
    else:
        start = struct.pack("<II", 12346, size)
    return start + head + offsets + b"".join(data for _, (_, data) in containers)


def vector(*bitmaps: tuple[int, bytes]) -> bytes:
    parts = [struct.pack("<I", high) + data for high, data in bitmaps]
    return struct.pack("<IQ", 1681511377, len(bitmaps)) + b"".join(parts)


PLAIN = vector((0, bitmap([(0, array(*ROWS))], has_runs=[False])))


def test_vector_in_the_log_is_decoded() -> None:
    """Of a whole number of words, and of another."""
    assert inline(PLAIN).path_or_inline_dv.startswith("^Bg9^0rr91")
    assert deleted_rows(store(), inline(PLAIN)).tolist() == ROWS
    odd = vector((0, bitmap([(0, runs((1, 5)))], has_runs=[True])))
    assert len(odd) % 4
    assert deleted_rows(store(), inline(odd, 5)).tolist() == [1, 2, 3, 4, 5]


def test_vector_in_a_file_has_every_form() -> None:
    """Arrays, bits and runs, with and without offsets, and rows above 2 ** 32."""
    many = list(range(0, 10_000, 2))
    with_runs = bitmap(
        [(0, array(1, 5)), (2, runs((10, 3), (100, 2))), (3, bits(*many)), (9, array(7))],
        has_runs=[False, True, False, False],
    )
    few = bitmap([(1, runs((0, 65_536)))], has_runs=[True])
    plain = bitmap([(0, array(8)), (1, bits(*many))], has_runs=[False, False])
    expected = [1, 5, *(131_072 + n for n in (10, 11, 12, 100, 101))]
    expected += [3 * 65_536 + n for n in many] + [9 * 65_536 + 7]
    expected += [(1 << 32) + 65_536 + n for n in range(65_536)]
    expected += [(7 << 32) + 8, *((7 << 32) + 65_536 + n for n in many)]
    data = vector((0, with_runs), (1, few), (7, plain))
    assert deleted_rows(*in_file(data, len(expected))).tolist() == expected
    assert deleted_rows(*in_file(vector(), 0)).tolist() == []


def test_vector_that_is_not_what_it_says_is_refused() -> None:
    """Damaged, cut, of another number of rows, of runs that expand, or somewhere else."""
    place, described = in_file(PLAIN, 6)
    stored = place.get(FILE)
    place.put(FILE, stored[:30] + b"x" + stored[31:])
    with pytest.raises(ValueError, match="is damaged"):
        deleted_rows(place, described)
    for cut in range(len(PLAIN)):
        with pytest.raises(ValueError, match="cannot be read"):
            deleted_rows(*in_file(PLAIN[:cut], 6))
    for rows in (5, 7):
        with pytest.raises(ValueError, match="the log says"):
            deleted_rows(store(), inline(PLAIN, rows))
    bomb = runs(*[(0, 65_536)] * 1_000)[1]
    packed = vector((0, bitmap([(0, (65_536, bomb))], has_runs=[True])))
    with pytest.raises(ValueError, match="do not fit"):
        deleted_rows(*in_file(packed, 65_536))
    with pytest.raises(ValueError, match="unknown format"):
        deleted_rows(*in_file(b"x" * 40, 6))
    with pytest.raises(ValueError, match="cannot be read"):
        deleted_rows(store(), replace(inline(PLAIN), path_or_inline_dv="~" * 50))
    with pytest.raises(ValueError, match="outside of the table"):
        deleted_rows(store(), replace(inline(PLAIN), storage_type="p"))
