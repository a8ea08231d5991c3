"""The arguments of produce() as the fields of a record: text, bytes, headers, timestamp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txnlog.errors import InvalidRecordError
from txnlog.settings import arguments
from txnlog.storage.batches.records import HEADER_OVERHEAD_BYTES

HeadersArgument = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None


TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""Data files have 64 bits of microseconds."""


def to_timestamp_ms(value: Any) -> int:
    """Milliseconds since 1970; None is 0. Raises TypeError, InvalidRecordError."""
    if value is None:
        return 0
    return arguments.integer(
        "timestamp, in milliseconds since 1970,",
        value,
        least=0,
        most=TIMESTAMP_MS_MAX,
        refusal=InvalidRecordError,
    )


def to_place(topic: Any, partition: Any) -> tuple[str, int]:
    """Topic and partition, of which only the form is checked.

    Raises TypeError, InvalidTopicError, InvalidRecordError.
    """
    number = arguments.integer("partition", partition, refusal=InvalidRecordError)
    return arguments.topic("topic", topic), number


def to_bytes(value: Any, name: str) -> bytes:
    """Bytes of a value; of a str, its UTF-8. Raises TypeError, InvalidRecordError."""
    if isinstance(value, str):
        return arguments.utf8(name, value, refusal=InvalidRecordError)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be str, bytes or None, not {type(value).__name__}.")


def to_headers(given: HeadersArgument) -> tuple[list[tuple[str, bytes | None]], int]:
    """(name, value) pairs, and their size in bytes.

    Raises TypeError, InvalidRecordError.
    """
    pairs = _pairs(given.items() if isinstance(given, Mapping) else given)
    named: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"A header's name must be str, not {type(name).__name__}.")
        label = f"header {arguments.shown(name)}"
        data = None if value is None else to_bytes(value, label)
        name_bytes = arguments.utf8(label, name, refusal=InvalidRecordError)
        named.append((str.__str__(name), data))
        size_bytes += HEADER_OVERHEAD_BYTES + len(name_bytes) + len(data or b"")
    return named, size_bytes


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    try:
        if isinstance(given, (str, bytes)):
            raise TypeError
        return [(name, value) for name, value in given]
    except Exception:
        raise TypeError(
            f"headers must be a dict, or a list of (name, value), not {arguments.shown(given)}."
        ) from None
