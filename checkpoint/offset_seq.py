"""Parses one file of a query's offset log, as Spark's OffsetSeqLog writes it; no I/O.

Version 1 has the line ``v1``, a line of metadata JSON, then one line per source in the order of
the plan, ``-`` for a source without an offset yet. Version 2 has ``<source id>:<offset>`` lines in
any order and omits sources without an offset; ids are numbers, or names under source evolution.
The last line has no line feed, so a file that ends with one is truncated.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from txnlog.errors import CheckpointError
from txnlog.protocol.decoding import decode

__all__ = ["OffsetSeq", "damaged", "log_version", "parse_offset_seq"]

OFFSET_LOG_VERSION_MAX = 2
VOID_OFFSET = "-"
_VERSION_DIGITS_MAX = 9
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY = msgspec.json.Decoder()


class OffsetSeq(msgspec.Struct, frozen=True, kw_only=True):
    """The end offsets of one micro-batch.

    ``sources`` are the offsets verbatim, None for a source without one; ``source_ids`` are their
    ids: "0", "1", ... in version 1. ``digest`` is the SHA-256 of the file's bytes, in hex.
    """

    version: int
    metadata: dict[str, Any]
    sources: tuple[str | None, ...]
    source_ids: tuple[str, ...]
    digest: str


def parse_offset_seq(data: bytes, *, file: str) -> OffsetSeq:
    """Parse one file of the offset log; ``file`` is its name in messages.

    Raises:
        CheckpointError: unknown version, truncated or corrupt; names the file.
    """
    lines = _lines(data, file)
    version = log_version(lines[0], OFFSET_LOG_VERSION_MAX, file)
    if len(lines) < 3:
        raise damaged(file, f"it ends after line {len(lines)}, before the first source's offset")
    metadata = _metadata(lines[1], file) if lines[1].strip() or version > 1 else {}
    if version == 1:
        ids = tuple(str(number) for number in range(len(lines) - 2))
        offsets = lines[2:]
    else:
        ids, offsets = _split_ids(lines[2:], file)
    return OffsetSeq(
        version=version,
        metadata=metadata,
        sources=tuple(
            _offset(offset, number, file) for number, offset in enumerate(offsets, start=3)
        ),
        source_ids=ids,
        digest=hashlib.sha256(data).hexdigest(),
    )


def log_version(line: str, version_max: int, file: str) -> int:
    """Parse the version line of one of Spark's metadata logs.

    Raises:
        CheckpointError: no version line, or a version above ``version_max``.
    """
    number = line[1:]
    is_number = number.isascii() and number.isdigit() and len(number) <= _VERSION_DIGITS_MAX
    if not line.startswith("v") or not is_number or int(number) < 1:
        raise damaged(file, f"its first line is {line[:20]!r}, not a version such as 'v1'")
    if int(number) > version_max:
        raise CheckpointError(
            f"{file} has version {line}, and this txnlog supports up to v{version_max}: a newer "
            "Spark wrote it. Upgrade txnlog, or run the query with its former Spark version.",
            file=file,
        )
    return int(number)


def damaged(file: str, what: str) -> CheckpointError:
    """The error for a file that Spark cannot have written in this form."""
    return CheckpointError(
        f"{file} is damaged: {what}. Restore the checkpoint from a copy, or start a new query with "
        "a new checkpointLocation, the same group.id and startingOffsets=committed.",
        file=file,
    )


def _lines(data: bytes, file: str) -> list[str]:
    if not data:
        raise damaged(file, "it is empty")
    try:
        # Not splitlines(): JSON may contain other characters that it treats as line ends.
        return data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise damaged(file, f"byte {error.start} is not UTF-8") from error


def _metadata(line: str, file: str) -> dict[str, Any]:
    try:
        return decode(_OBJECT, line)
    except ValueError as error:
        raise damaged(file, f"line 2, the metadata, is not a JSON object ({error})") from error


def _split_ids(lines: list[str], file: str) -> tuple[tuple[str, ...], list[str]]:
    offsets: dict[str, str] = {}
    for number, line in enumerate(lines, start=3):
        source_id, colon, offset = line.partition(":")
        if not colon or not source_id or source_id in offsets:
            raise damaged(file, f"line {number} is not one source's '<source id>:<offset>'")
        offsets[source_id] = offset
    return tuple(offsets), list(offsets.values())


def _offset(offset: str, number: int, file: str) -> str | None:
    if offset == VOID_OFFSET:
        return None
    if not offset.strip():
        raise damaged(file, f"line {number} has no offset")
    if offset.startswith("{"):
        try:
            decode(_ANY, offset)
        except ValueError as error:
            raise damaged(file, f"line {number} is not complete JSON ({error})") from error
    return offset
