"""The seal of a record batch file: checksums of all its bytes, for damage Parquet does not notice.

Parquet has no checksum of its footer nor of page headers. A flipped bit there can make a reader
skip a page without a word, or end the process (pyarrow 26 crashes on some damaged statistics). So
our writer puts a block between the last row group and the footer, where every Parquet reader
looks at nothing:

    per row group   end of its bytes in the file (8 bytes), CRC-32 of them (4 bytes)
    last            number of row groups (4), CRC-32 of the above and the footer (4), MAGIC (8)

Numbers are little-endian; the first row group begins at byte 0. Files of other writers have none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

MAGIC = b"TXNLSEAL"
PARQUET_MAGIC = b"PAR1"
TAIL_BYTES = 64 << 10

_SPAN = struct.Struct("<QI")
_COUNT = struct.Struct("<I")
_END = struct.Struct("<I8s")


class Span(NamedTuple):
    """A row group's bytes: from the end of the one before up to `end`, exclusively."""

    end: int
    checksum: int


class SealBrokenError(ValueError):
    """The bytes are not those that were written; the message says which."""


def split_footer(data: bytes | memoryview) -> int:
    """Where the footer begins in the last bytes of a file. Raises SealBrokenError."""
    if len(data) < 12 or data[-4:] != PARQUET_MAGIC:
        raise SealBrokenError("it does not end as a Parquet file does")
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def make_seal(spans: Sequence[Span], footer: bytes | memoryview) -> bytes:
    """The block to put in front of `footer`, which is everything up to the end of the file."""
    body = b"".join(_SPAN.pack(*span) for span in spans) + _COUNT.pack(len(spans))
    return body + _END.pack(crc32(footer, crc32(body)), MAGIC)


def read_seal(read_at: Callable[[int, int], bytes], size_bytes: int) -> tuple[Span, ...] | None:
    """The checked seal of a file of `size_bytes`; None for a file of another writer.

    `read_at(start, end)` gives bytes of the file. Raises SealBrokenError when the footer or the
    seal is damaged.
    """
    tail = read_at(max(0, size_bytes - TAIL_BYTES), size_bytes)
    footer_at = split_footer(tail)
    if footer_at < 0:
        wanted = TAIL_BYTES - footer_at + TAIL_BYTES
        if wanted > 2 * size_bytes:
            raise SealBrokenError("its footer is said to be longer than the file")
        tail = read_at(max(0, size_bytes - wanted), size_bytes)
        footer_at = split_footer(tail)
    sealed = tail[: max(footer_at, 0)]
    if not sealed.endswith(MAGIC):
        if MAGIC in tail:
            raise SealBrokenError("its footer is not where its seal says")
        return None
    body_end = len(sealed) - _END.size
    checksum, _ = _END.unpack_from(sealed, body_end)
    (count,) = _COUNT.unpack_from(sealed, body_end - _COUNT.size)
    body_at = body_end - _COUNT.size - count * _SPAN.size
    if body_at < 0 or crc32(tail[footer_at:], crc32(sealed[body_at:body_end])) != checksum:
        raise SealBrokenError("its footer or seal does not have the checksum it was written with")
    return tuple(Span(*span) for span in _SPAN.iter_unpack(sealed[body_at : body_end - 4]))


def check_span(read_at: Callable[[int, int], bytes], spans: Sequence[Span], index: int) -> None:
    """Raise SealBrokenError unless row group `index` has the bytes it was written with."""
    start = spans[index - 1].end if index else 0
    if crc32(read_at(start, spans[index].end)) != spans[index].checksum:
        raise SealBrokenError(
            f"row group {index}, bytes {start} to {spans[index].end}, does not have the checksum "
            "it was written with"
        )
