"""Parsers of the values of settings, one per type.

A parser takes the setting's name and its text; its ConfigError names the setting.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from txnlog.errors import ConfigError
from txnlog.protocol.cooperation import COOPERATIVE, is_cooperative
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

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS: Final = {
    "range": "range",
    "sticky": "sticky",
    "cooperative-sticky": "cooperative-sticky",
    "roundrobin": "sticky",
}
"""The names that Kafka's clients know, and the assignor that does their work."""


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
            f"Option {name} is {safe}: it takes a str, a number or a bool.", option=name
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
    return choice("true", "false")(name, value) == "true"


def whole(least: int, most: int) -> Callable[[str, str], int]:
    """A parser for an integer from `least` to `most`, inclusive."""

    def parse(name: str, value: str) -> int:
        number = _whole(name, value)
        if number < least:
            raise refused(name, number, f"{least} or more")
        if number > most:
            raise refused(name, number, f"{most} or less")
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
            raise refused(name, value, " or ".join(allowed))
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
        raise refused(
            name,
            value,
            f"a whole number with one of the units {', '.join(_UNITS_US)}, as in 15m or 10s; the "
            "default unit is ms",
        )
    return _whole(name, match["number"]) * _UNITS_US[match["unit"] or "ms"] // 1000


def timestamp_ms(name: str, value: str) -> int:
    """A time in milliseconds since 1970, UTC. Raises ConfigError."""
    try:
        time_ms = int(value.strip())
    except ValueError:
        time_ms = -1
    if not 0 <= time_ms <= INT64_MAX:
        raise refused(name, value, "milliseconds since 1970-01-01 UTC, as in 1700000000000")
    return time_ms


def unlimited(name: str, value: str) -> int:
    """An integer of 0 or more, or -1 for no limit. Raises ConfigError."""
    return -1 if value.strip() == "-1" else not_negative(name, value)


def ratio(name: str, value: str) -> float:
    """A number from 0 to 1. Raises ConfigError."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise refused(name, value, "a number from 0 to 1")
    return number


def policies(name: str, value: str) -> str:
    """delete, compact, or both. Raises ConfigError."""
    found = sorted({part.strip().lower() for part in value.split(",")})
    if not set(found) <= {"compact", "delete"}:
        raise refused(name, value, "delete, compact or compact,delete")
    return ",".join(found)


def names(name: str, value: str) -> tuple[str, ...]:
    """Any names, separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def assignors(name: str, value: str) -> tuple[str, ...]:
    """Names of assignors in order of preference, separated by commas. Raises ConfigError."""
    found = names(name, value.lower())
    if not found or not set(found) <= set(ASSIGNORS):
        wanted = f"{', '.join(ASSIGNORS)}, or several of them, separated by commas"
        raise refused(name, value, wanted)
    taken = tuple(dict.fromkeys(ASSIGNORS[part] for part in found))
    if is_cooperative(taken) and len(taken) > 1:
        raise ConfigError(
            f"Option {name} is {shown(value)}: {COOPERATIVE} goes with no other, since its "
            "members keep partitions that the others give up. To change a group over, stop all of "
            "its members first.",
            option=name,
        )
    return taken


def callback(name: str, value: object) -> Callable[..., Any]:
    """A function. Raises ConfigError."""
    if not callable(value):
        raise refused(name, value, "a function")
    return value


def logger(name: str, value: object) -> logging.Logger:
    """A logger. Raises ConfigError."""
    if not isinstance(value, logging.Logger):
        raise refused(name, value, "a logging.Logger")
    return value


OBJECTS: Final = (callback, logger)
"""Parsers of values that are no text."""


def refused(name: str, value: object, wanted: str) -> ConfigError:
    """The error for a value that is none of those that are wanted."""
    return ConfigError(f"Option {name} is {shown(value)}: it takes {wanted}.", option=name)


def _whole(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise refused(name, value, "a whole number") from None
