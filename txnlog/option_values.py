"""What an option's text stands for: one parser per kind of value.

A parser takes the option's name and what the user wrote; its ConfigError names the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from txnlog.errors import ConfigError

_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_DURATION: Final = re.compile(rf"(?P<number>[0-9]+)(?P<unit>{'|'.join(_UNITS_US)})?")


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPRESSION_DOC = (
    "The codec of data files. By default snappy for files of a few records, zstd for values that "
    "repeat themselves, none for those that do not; compaction uses zstd."
)


def text(name: str, value: str) -> str:
    """Any text but the empty one. Raises ConfigError."""
    if not value.strip():
        raise ConfigError(f"Option {name} is empty. Give it a value or leave it out.", option=name)
    return value


def boolean(name: str, value: str) -> bool:
    """true or false, in any case. Raises ConfigError."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"Option {name} is {value!r}: it takes true or false.", option=name)
    return lowered == "true"


def positive(name: str, value: str) -> int:
    """A whole number of at least 1. Raises ConfigError."""
    number = _whole(name, value)
    if number < 1:
        raise ConfigError(f"Option {name} is {number}: it must be 1 or more.", option=name)
    return number


def not_negative(name: str, value: str) -> int:
    """A whole number of at least 0. Raises ConfigError."""
    number = _whole(name, value)
    if number < 0:
        raise ConfigError(f"Option {name} is {number}: it must be 0 or more.", option=name)
    return number


def choice(*allowed: str) -> Callable[[str, str], str]:
    """A parser for one of a few words, in any case."""

    def parse(name: str, value: str) -> str:
        lowered = value.strip().lower()
        if lowered not in allowed:
            raise ConfigError(
                f"Option {name} is {value!r}: it takes {' or '.join(allowed)}.", option=name
            )
        return lowered

    return parse


def publication(name: str, value: str) -> str:
    """`deferred`; `eager` is a producer's, not a sink's. Raises ConfigError."""
    parsed = choice("deferred", "eager")(name, value)
    if parsed == "eager":
        raise ConfigError(
            f"Option {name}=eager is not for the Spark sink: what a repeated task attempt wrote "
            "would be published, too. Leave the option out; the sink publishes at the commit.",
            option=name,
        )
    return parsed


def duration_ms(name: str, value: str) -> int:
    """A time as Spark writes it ("15m", "10s", "1min", "500" ms), in ms. Raises ConfigError."""
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise ConfigError(
            f"Option {name} is {value!r}: it takes a whole number with one of the units "
            f"{', '.join(_UNITS_US)}, as in 15m or 10s; without a unit it means ms.",
            option=name,
        )
    return int(found["number"]) * _UNITS_US[found["unit"] or "ms"] // 1000


def timestamp_ms(name: str, value: str) -> int:
    """A time in milliseconds since 1970, UTC. Raises ConfigError."""
    try:
        found = int(value.strip())
    except ValueError:
        found = -1
    if found < 0:
        raise ConfigError(
            f"Option {name} is {value!r}: it takes milliseconds since 1970-01-01 UTC, as in "
            "1700000000000.",
            option=name,
        )
    return found


def pattern(name: str, value: str) -> str:
    """A regular expression. Raises ConfigError."""
    found = text(name, value).strip()
    try:
        re.compile(found)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"Option {name} is {value!r}, which is not a regular expression: {error}.", option=name
        ) from None
    return found


def _whole(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise ConfigError(
            f"Option {name} is {value!r}: it takes a whole number.", option=name
        ) from None
