"""Limits of what is believed of decoded JSON: ranges of numbers, and depth of nesting.

A decoder that meets what no process of ours writes must end with an error, in little time and
memory, whatever the file says.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T")

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
PARTITIONS_MAX = 100_000
"""Most partitions a topic may have: each is an object in memory of every process."""
NESTING_MAX = 200
"""Levels of lists and objects; what we write has fewer than ten."""

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class NestingError(ValueError):
    """JSON of more levels than anything of ours has."""


def decode(decoder: msgspec.json.Decoder[T], text: str | bytes) -> T:
    """Decode a value. Raises ValueError for what it cannot be."""
    try:
        return decoder.decode(text)
    except RecursionError as error:
        data = text.encode() if isinstance(text, str) else text
        raise nesting_error(data, error) from error


def nesting_error(data: bytes, error: RecursionError) -> NestingError:
    """What to raise from a decoder's RecursionError; raises `error` if it is not the data's fault.

    A caller that is itself deep in a recursion has little left for data that is whole.
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
    """Raises ValueError for a partition no topic can have."""
    if not 0 <= number < PARTITIONS_MAX:
        raise ValueError(f"partition {number} is not one of 0 to {PARTITIONS_MAX - 1}")
    return number
