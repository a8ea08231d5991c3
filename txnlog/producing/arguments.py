"""What users give produce(): texts, bytes and headers, as the bytes of a record."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from txnlog.errors import InvalidRecordError
from txnlog.storage.records import HEADER_OVERHEAD_BYTES

HeadersArgument = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None


# What fits into 64 bits of microseconds.
TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


def to_timestamp_ms(value: Any) -> int:
    """A whole number of milliseconds since 1970. Raises TypeError, InvalidRecordError."""
    try:
        timestamp_ms = operator.index(value)
    except TypeError:
        found = type(value).__name__
        raise TypeError(f"timestamp must be milliseconds as an int, not {found}.") from None
    if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise InvalidRecordError(
            f"timestamp {timestamp_ms} is no time of a record: give milliseconds since "
            "1970-01-01T00:00:00Z, or 0 for now. The record was not taken.",
            timestamp=timestamp_ms,
        )
    return timestamp_ms


def to_bytes(value: Any, name: str) -> bytes:
    """UTF-8 for a text. Raises TypeError naming the argument."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be str, bytes or None, not {type(value).__name__}.")


def to_headers(given: HeadersArgument) -> tuple[list[tuple[str, bytes | None]], int]:
    """(name, value) pairs, and their bytes as the producer counts them."""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    named: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"A header's name must be str, not {type(name).__name__}.")
        data = None if value is None else to_bytes(value, f"header {name!r}")
        named.append((name, data))
        size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(data or b"")
    return named, size_bytes
