"""The seal of a Parquet file of txnlog: checksums of all its bytes and of its name.

Parquet has no checksum of its footer nor of page headers. A flipped bit there can make a reader
skip a page silently, or crash the process (pyarrow 26 crashes on some damaged statistics). So the
writer puts a block between the last row group and the footer, which Parquet readers ignore:

    per row group   end of its bytes in the file (8 bytes), CRC-32 of them (4 bytes)
    note            bytes chosen by the writer; in a checkpoint, the digest of its commit
    last            length of the note (4), number of row groups (4), CRC-32 of the above and the
                    footer (4), the same CRC-32 continued over the file's name (4), MAGIC (8)

Numbers are little-endian; the first row group begins at byte 0. An intact file under another
file's name has the first CRC-32 and not the second: names of data files are random, and a
checkpoint's note is a digest, so no other file of any cluster fits. Files of other writers have no
seal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

MAGIC = b"TXNLSEA2"
PARQUET_MAGIC = b"PAR1"
TAIL_BYTES = 64 << 10

_SPAN = struct.Struct("<QI")
_END = struct.Struct("<IIII8s")


class Span(NamedTuple):
    """A row group's bytes: from the end of the previous one to `end`, exclusive."""

    end: int
    checksum: int


class Seal(NamedTuple):
    """A file's row groups, and the writer's note."""

    spans: tuple[Span, ...]
    note: bytes


class SealBrokenError(ValueError):
    """Bytes of the file have changed; the message says which."""


def split_footer(data: bytes | memoryview) -> int:
    """Position of the footer in the last bytes of a file. Raises SealBrokenError."""
    if len(data) < 12 or data[-4:] != PARQUET_MAGIC:
        raise SealBrokenError("it does not end as a Parquet file does")
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def make_seal(
    spans: Sequence[Span], footer: bytes | memoryview, *, name: str, note: bytes = b""
) -> bytes:
    """The block to write before `footer`, which is the rest of the file.

    `name` is the file's name without folders.
    """
    body = b"".join(_SPAN.pack(*span) for span in spans) + note
    counts = struct.pack("<II", len(note), len(spans))
    checksum = crc32(footer, crc32(body + counts))
    return body + _END.pack(len(note), len(spans), checksum, crc32(name.encode(), checksum), MAGIC)


def read_seal(read_at: Callable[[int, int], bytes], size_bytes: int, *, name: str) -> Seal | None:
    """The checked seal of a file of `size_bytes`; None for a file of another writer.

    `read_at(start, end)` reads bytes of the file, `name` is the file's name. Raises SealBrokenError
    if the footer or the seal is damaged, or the file was written under another name.
    """
    tail = read_at(max(0, size_bytes - TAIL_BYTES), size_bytes)
    footer_at = split_footer(tail)
    if footer_at < 0:
        wanted = TAIL_BYTES - footer_at + TAIL_BYTES
        if wanted > 2 * size_bytes:
            raise SealBrokenError("its footer claims to be longer than the file")
        tail = read_at(max(0, size_bytes - wanted), size_bytes)
        footer_at = split_footer(tail)
    sealed, footer = tail[: max(footer_at, 0)], tail[max(footer_at, 0) :]
    if sealed.endswith(MAGIC):
        return _read(sealed, footer, name)
    if MAGIC in tail:
        raise SealBrokenError("its footer is not where its seal says")
    return None


def _read(sealed: bytes, footer: bytes, name: str) -> Seal:
    end = len(sealed) - _END.size
    if end < 0:
        raise _broken()
    note_bytes, count, checksum, named, _ = _END.unpack_from(sealed, end)
    note_at = end - note_bytes
    spans_at = note_at - count * _SPAN.size
    if spans_at < 0 or crc32(footer, crc32(sealed[spans_at : end + 8])) != checksum:
        raise _broken()
    if crc32(name.encode(), checksum) != named:
        raise SealBrokenError(
            "it is intact, but was written under another name: another file was copied or restored "
            "here"
        )
    spans = tuple(Span(*span) for span in _SPAN.iter_unpack(sealed[spans_at:note_at]))
    return Seal(spans, bytes(sealed[note_at:end]))


def _broken() -> SealBrokenError:
    return SealBrokenError("its footer or seal does not have the checksum it was written with")


def check_span(read_at: Callable[[int, int], bytes], spans: Sequence[Span], index: int) -> None:
    """Raise SealBrokenError unless row group `index` has its original bytes."""
    start = spans[index - 1].end if index else 0
    if crc32(read_at(start, spans[index].end)) != spans[index].checksum:
        raise SealBrokenError(
            f"row group {index}, bytes {start} to {spans[index].end}, does not have the checksum "
            "it was written with"
        )
