"""Times and durations as arguments, and times as they are printed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import datetime, timezone

import typer

SECONDS_MIN, SECONDS_MAX = 10**9, 10**10
"""Numbers that are seconds of the years 2001 to 2286, and else milliseconds of early 1970."""
PAUSE_S_MAX = 86_400
UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_N = r"\d{1,9}"
_DURATIONS = (
    re.compile(
        rf"P(?:(?P<d>{_N})D)?(?:T(?=\d)(?:(?P<h>{_N})H)?(?:(?P<m>{_N})M)?"
        rf"(?:(?P<s>{_N}(?:\.{_N})?)S)?)?\Z"
    ),
    re.compile(
        rf"(?:(?P<d>{_N})d)?(?:(?P<h>{_N})h)?(?:(?P<m>{_N})m(?!s))?"
        rf"(?:(?P<s>{_N}(?:\.{_N})?)s)?(?:(?P<ms>{_N})ms)?\Z"
    ),
)


def parse_duration_ms(option: str, value: str) -> int:
    """A duration as in PT1H30M (ISO 8601) or 1h30m. Raises BadParameter."""
    duration_ms = _duration_ms(value)
    if duration_ms is None:
        raise typer.BadParameter(
            f"{option} takes a duration as in PT1H30M, P7D, 90s or 1h30m, not {value!r}."
        )
    return duration_ms


def pause_s(least_s: float) -> Callable[[str], float]:
    """The parser of an option: seconds between two looks at the root, up to a day."""

    def seconds(value: str) -> float:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not least_s <= found <= PAUSE_S_MAX:
            raise typer.BadParameter(
                f"{value!r} is not a number of seconds from {least_s} to {PAUSE_S_MAX:,}."
            )
        return found

    return seconds


def parse_since_ms(option: str, value: str) -> int:
    """A time as `parse_time_ms` reads it, or a duration before now. Raises BadParameter."""
    duration_ms = _duration_ms(value)
    if duration_ms is None:
        return parse_time_ms(option, value, "a duration before now as in 15m, ")
    return max(0, time.time_ns() // 1_000_000 - duration_ms)


def _duration_ms(value: str) -> int | None:
    for form in _DURATIONS:
        found = form.match(value)
        parts = {} if found is None else {u: n for u, n in found.groupdict().items() if n}
        if parts:
            return round(sum(float(number) * UNITS_MS[unit] for unit, number in parts.items()))
    return None


def parse_time_ms(option: str, value: str, others: str = "") -> int:
    """A time: milliseconds since 1970, or ISO 8601 (UTC by default).

    Raises BadParameter, which names `others` that the option takes.
    """
    if value.isascii() and value.isdigit():
        from txnlog.settings.values import timestamp_ms

        time_ms = timestamp_ms(option, value)
        if SECONDS_MIN <= time_ms < SECONDS_MAX:
            raise typer.BadParameter(
                f"{option} takes milliseconds since 1970; {value} looks like seconds: that is "
                f"{value}000 ms."
            )
        return time_ms
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise typer.BadParameter(
            f"{option} takes {others}a time as in 2026-01-31T12:00:00, or ms since 1970, "
            f"not {value!r}."
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return round(at.timestamp() * 1000)


def format_time(time_ms: int) -> str:
    """A time as ISO 8601, UTC; "-" if it is unknown (negative)."""
    if time_ms < 0:
        return "-"
    try:
        at = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Timestamps may be any 64-bit number; Python's datetime ends at the year 9999.
        return f"{time_ms}ms"
    return at.isoformat("T", "milliseconds").replace("+00:00", "Z")


def format_age(age_ms: int) -> str:
    """A length of time, roughly: 120 ms, 4.2 s, 3 min, 5 h, 2 d."""
    if age_ms < 1_000:
        return f"{max(0, age_ms)} ms"
    for unit, name, limit in ((1_000, "s", 120), (60_000, "min", 120), (3_600_000, "h", 48)):
        if age_ms < limit * unit:
            count = age_ms / unit
            return f"{count:.1f} {name}" if count < 10 else f"{count:.0f} {name}"
    return f"{age_ms / 86_400_000:.0f} d"
