"""JSON values of rows and properties: the format they are of, and limits for what is decoded.

Content that txnlog never writes must end in an error, in little time and memory. A field that this
version does not know is an error, too: to drop it would undo what its writer promised (R38).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from txnlog.errors import RESTORE_ALL, CorruptLogError

T = TypeVar("T")

FORMAT = 5
"""Of a root. Every change of what is on disk raises it, a new field of a JSON value as well."""
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
PARTITIONS_MAX = 100_000
"""Maximum partitions of a topic: each is an object in memory of every process."""
NESTING_MAX = 200
"""Maximum levels of lists and objects; txnlog writes fewer than ten."""

TABLE_NAME = r"\A[a-zA-Z0-9_][a-zA-Z0-9._-]{0,248}\Z"
"""Of a Delta table of others: as a topic's, but no option of a command."""

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
TableName = Annotated[str, msgspec.Meta(pattern=TABLE_NAME)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class JsonObject(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A JSON object in a row or a property."""


class Codec(Generic[T]):
    """Reads and writes values of one type as JSON text."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: str) -> T:
        """Raises msgspec.MsgspecError, ValueError, TypeError for invalid text."""
        return decode(self._decoder, text)

    def encode(self, value: T) -> str:
        return msgspec.json.encode(value).decode()


def check_columns(values: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raise ValueError for a row with others than the `known` columns."""
    if unknown := sorted(values.keys() - known.keys()):
        raise ValueError(f"unknown columns {unknown}")


def unreadable(what: str, error: Exception, *, source: str) -> CorruptLogError:
    """The error for a row or a property, at `source`, whose decoding has raised `error`."""
    return CorruptLogError(
        f"{source}: {what} cannot be read ({type(error).__name__}: {error}). It was written by a "
        f"newer txnlog than this one, which reads format {FORMAT}, or is damaged. Upgrade. Else: "
        f"{RESTORE_ALL}",
        file=source,
    )


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
