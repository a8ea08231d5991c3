"""Parsers of the `storage.*` values that the store library does not read. No error shows a value:
it may be a secret (R67).

A parser takes the option's name, as the user wrote it, and its text without blanks around it; it
returns the text in its one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from txnlog.errors import ConfigError

Parser = Callable[[str, str], str]

ON: Final = frozenset({"true", "1", "yes", "y", "on"})
"""How the store library writes true, in lower case."""
_UNITS_MS: Final = {
    **dict.fromkeys(("ms", "msec", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hr", "hour"), 3_600_000),
}
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([a-z]+)")


def refused(name: str, takes: str) -> ConfigError:
    """The error for a value that `name` cannot have; `takes` says what it takes."""
    return ConfigError(f"Option {name} takes {takes}. (Its value is not shown.)", option=name)


def unparsed(name: str, value: str) -> str:
    """Any text: the store library, or a cloud's own, reads it."""
    return value


def path(name: str, value: str) -> str:
    """A path on each host; `~` is not expanded."""
    if not value.startswith("/") or not value.isprintable():
        raise refused(name, "an absolute path, which exists on every host")
    return value


def switch(name: str, value: str) -> str:
    """true or false, and no other word."""
    if value.lower() not in ("true", "false"):
        raise refused(name, "true or false")
    return value.lower()


def duration(least_ms: int, most_ms: int) -> Parser:
    """A whole number with a unit, as in 500ms, 30s, 5 minutes."""

    def parse(name: str, value: str) -> str:
        found = _DURATION.fullmatch(value.lower())
        unit = found[2] if found else ""
        scale = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
        if found is None or scale is None:
            raise refused(name, "a whole number with a unit, as in 500ms, 30s, 5m or 1h")
        length_ms = int(found[1]) * scale
        if not least_ms <= length_ms <= most_ms:
            raise refused(name, f"{least_ms}ms to {most_ms // 1000}s")
        return f"{length_ms}ms"

    return parse


def whole(least: int, most: int) -> Parser:
    """An integer in a range."""

    def parse(name: str, value: str) -> str:
        if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
            raise refused(name, f"a whole number from {least} to {most}")
        return str(int(value))

    return parse


def ratio(least: float, most: float) -> Parser:
    """A decimal number in a range."""

    def parse(name: str, value: str) -> str:
        found = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", value)
        if found is None or not least <= float(value) <= most:
            raise refused(name, f"a number from {least} to {most}")
        return str(float(value))

    return parse


def choice(*allowed: str) -> Parser:
    """One of the words, in any case."""

    def parse(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise refused(name, " or ".join(allowed))
        return value.lower()

    return parse
