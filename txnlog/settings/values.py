"""Parsers of option values, one per type.

A parser takes the option's name and its text; its ConfigError names the option.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from txnlog.errors import ConfigError
from txnlog.settings.arguments import INT32_MAX, INT64_MAX, STRING_BYTES_MAX, shown, utf8

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
    "The codec of data files. Default: snappy for files of a few records, else zstd if the values "
    "are compressible, none if not. Compaction uses zstd."
)


def setting_text(name: str, value: Any, *, is_secret: bool = False) -> str:
    """The text of a str, bool or number, as in a configuration file.

    Raises ConfigError, which does not contain the value if it `is_secret`.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    try:
        return str(int.__index__(operator.index(value)))
    except Exception:
        safe = f"a {type(value).__name__}" if is_secret else shown(value)
        raise ConfigError(
            f"Setting {name} is {safe}: it takes a str, a number or a bool.", option=name
        ) from None


def text(name: str, value: str) -> str:
    """Any non-blank text. Raises ConfigError."""
    if not value.strip():
        raise ConfigError(f"Option {name} is empty. Give it a value or omit it.", option=name)
    utf8(f"Option {name}", value)
    return value


def identifier(name: str, value: str) -> str:
    """A non-blank text that fits a string of Kafka's protocol. Raises ConfigError."""
    size_bytes = len(utf8(f"Option {name}", text(name, value)))
    if size_bytes > STRING_BYTES_MAX:
        raise ConfigError(
            f"Option {name} has {size_bytes} bytes of UTF-8: give at most {STRING_BYTES_MAX}. It "
            f"is {shown(value)}.",
            option=name,
        )
    return value


def boolean(name: str, value: str) -> bool:
    """true or false, in any case. Raises ConfigError."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"Option {name} is {shown(value)}: it takes true or false.", option=name)
    return lowered == "true"


def whole(least: int, most: int) -> Callable[[str, str], int]:
    """A parser for an integer from `least` to `most`, inclusive."""

    def parse(name: str, value: str) -> int:
        number = _whole(name, value)
        if number < least:
            raise ConfigError(
                f"Option {name} is {shown(number)}: it must be {least} or more.", option=name
            )
        if number > most:
            raise ConfigError(
                f"Option {name} is {shown(number)}: it must be {most} or less.", option=name
            )
        return number

    return parse


# Kafka's int and long.
positive_int = whole(1, INT32_MAX)
not_negative_int = whole(0, INT32_MAX)
positive = whole(1, INT64_MAX)
not_negative = whole(0, INT64_MAX)


def choice(*allowed: str) -> Callable[[str, str], str]:
    """A parser for one of the allowed words, in any case."""

    def parse(name: str, value: str) -> str:
        lowered = value.strip().lower()
        if lowered not in allowed:
            raise ConfigError(
                f"Option {name} is {shown(value)}: it takes {' or '.join(allowed)}.", option=name
            )
        return lowered

    return parse


def publication(name: str, value: str) -> str:
    """`deferred`; only producers, not sinks, support `eager`. Raises ConfigError."""
    parsed = choice("deferred", "eager")(name, value)
    if parsed == "eager":
        raise ConfigError(
            f"Option {name}=eager is not for the Spark sink: it would also publish the records of "
            "failed task attempts. Omit the option; the sink publishes at the commit.",
            option=name,
        )
    return parsed


def duration_ms(name: str, value: str) -> int:
    """A Spark duration ("15m", "10s", "1min", "500" in ms) as ms. Raises ConfigError."""
    match = _DURATION.fullmatch(value.strip().lower())
    if match is None:
        raise ConfigError(
            f"Option {name} is {shown(value)}: it takes a whole number with one of the units "
            f"{', '.join(_UNITS_US)}, as in 15m or 10s; the default unit is ms.",
            option=name,
        )
    return _whole(name, match["number"]) * _UNITS_US[match["unit"] or "ms"] // 1000


def timestamp_ms(name: str, value: str) -> int:
    """A time in milliseconds since 1970, UTC. Raises ConfigError."""
    try:
        time_ms = int(value.strip())
    except ValueError:
        time_ms = -1
    if not 0 <= time_ms <= INT64_MAX:
        raise ConfigError(
            f"Option {name} is {shown(value)}: it takes milliseconds since 1970-01-01 UTC, as in "
            "1700000000000.",
            option=name,
        )
    return time_ms


def _whole(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise ConfigError(
            f"Option {name} is {shown(value)}: it takes a whole number.", option=name
        ) from None
