"""Limits for decoded JSON: ranges of numbers, and depth of nesting.

Content that txnlog never writes must end in an error, in little time and memory.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T")

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
PARTITIONS_MAX = 100_000
"""Maximum partitions of a topic: each is an object in memory of every process."""
NESTING_MAX = 200
"""Maximum levels of lists and objects; txnlog writes fewer than ten."""

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class NestingError(ValueError):
    """JSON nested deeper than NESTING_MAX levels."""


def decode(decoder: msgspec.json.Decoder[T], text: str | bytes) -> T:
    """Decode a value. Raises ValueError if it is invalid."""
    try:
        return decoder.decode(text)
    except RecursionError as error:
        data = text.encode() if isinstance(text, str) else text
        raise nesting_error(data, error) from error


def nesting_error(data: bytes, error: RecursionError) -> NestingError:
    """The error for a decoder's RecursionError; raises `error` if the data nests less deeply.

    A caller that is itself deep in a recursion may have too little stack left for valid data.
    """
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(data):
        sign = found[0][:1]
        depth += 1 if sign in b"[{" else -1 if sign in b"]}" else 0
        if depth > NESTING_MAX:
            return NestingError(f"it nests deeper than {NESTING_MAX} levels")
    raise error


def to_int64(text: str) -> int:
    """A whole number in decimal digits. Raises ValueError for any other, TypeError for no text."""
    if len(text) < 19:
        return int(text)
    if len(text) > 20:
        raise ValueError(f"{text[:40]!r}... is no 64-bit number")
    number = int(text)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{text} is no 64-bit number")
    return number


def check_partition_number(number: int) -> int:
    """Raises ValueError for a number that no partition can have."""
    if not 0 <= number < PARTITIONS_MAX:
        raise ValueError(f"partition {number} is not one of 0 to {PARTITIONS_MAX - 1}")
    return number
