"""Numbers, sizes, times and names as people read them."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timezone
from typing import Final

from txnlog.text import printable

UNKNOWN: Final = "unknown"
NAME_LENGTH: Final = 40
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DIGITS_MAX: Final = 19
_OF_DAY: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_BEFORE: Final = re.compile(r"[-\u2212] ?(?P<count>[0-9]{1,9}) ?(?P<unit>d|h|min|m|s)")
_UNITS_MS: Final = {**{unit: size for size, unit in _UNITS}, "m": 60_000}
_PLAIN: Final = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+")


def short(text: str, length: int = NAME_LENGTH) -> str:
    """A name on one line; of a long one the middle is left out."""
    shown = printable(text)
    if len(shown) <= length:
        return shown
    tail = (length - 1) // 2
    return f"{shown[: length - 1 - tail]}…{shown[-tail:]}"


def number(value: float) -> str:
    """1,234; whole where it is."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def rate(value: float) -> str:
    """Records per second, with a digit after the point where it matters."""
    if value and value < 0.05:
        return "<0.1/s"
    return f"{value:,.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


def size(size_bytes: float) -> str:
    """Bytes with a binary unit."""
    value, unit = float(size_bytes), 0
    while value >= 1000 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_SIZES[unit]}" if unit and value < 10 else f"{value:.0f} {_SIZES[unit]}"


def duration(duration_ms: float) -> str:
    """The two largest units: 3 min 20 s; below ten seconds with a fraction."""
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 10_000:
        return f"{duration_ms / 1_000:.1f} s"
    left = int(duration_ms)
    parts: list[tuple[int, str]] = []
    for unit_ms, unit in _UNITS:
        count, left = divmod(left, unit_ms)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def ago(time_ms: int, now_ms: int) -> str:
    """A time relative to another."""
    if time_ms < 0:
        return UNKNOWN
    apart = abs(now_ms - time_ms)
    if apart < 1_000:
        return "now"
    # One unit will do: the exact time is its title.
    told = duration(apart // 1_000 * 1_000).split()
    near = f"{told[0].removesuffix('.0')} {told[1]}"
    return f"{near} ago" if time_ms < now_ms else f"in {near}"


def utc(time_ms: int) -> str:
    """2026-11-27 09:00:00.123 UTC."""
    return _moment(time_ms, "%Y-%m-%d %H:%M:%S.%f", " UTC", cut=3)


def iso(time_ms: int) -> str:
    """For the attribute `datetime`, without its zone."""
    return _moment(time_ms, "%Y-%m-%dT%H:%M:%S", "")


def field(time_ms: int) -> str:
    """For a field of a form, which `parsed_time_ms` reads."""
    return _moment(time_ms, "%Y-%m-%d %H:%M:%S", "")


def clock(time_ms: int) -> str:
    """09:00:00, of a day that is known."""
    return _moment(time_ms, "%H:%M:%S", "")


def _moment(time_ms: int, form: str, zone: str, cut: int = 0) -> str:
    if time_ms < 0:
        return UNKNOWN
    try:
        at = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Timestamps may be any 64-bit number; Python's datetime ends at the year 9999.
        return f"{time_ms} ms"
    text = at.strftime(form)
    return f"{text[:-cut] if cut else text}{zone}"


def parsed_time_ms(text: str, now_ms: int) -> int | None:
    """A time as ISO 8601 (UTC by default), milliseconds since 1970, 09:00, the last before now, or
    -2 min. None if it is none of these.
    """
    text = text.strip()
    before = _BEFORE.fullmatch(text)
    if before is not None:
        return now_ms - int(before["count"]) * _UNITS_MS[before["unit"]]
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    if _OF_DAY.fullmatch(text):
        today = parsed_time_ms(f"{iso(now_ms)[:10]} {text:0>{8 if len(text) > 5 else 5}}", now_ms)
        return today if today is None or today <= now_ms else today - 86_400_000
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return round(at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def parsed_integer(text: str | None) -> int | None:
    """A number without a sign that fits a log; None if it is none."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)


def slug(name: str) -> str:
    """A name as one step of a path or an anchor: any text can be one, dots and slashes too."""
    if _PLAIN.fullmatch(name):
        return name
    data = name.encode(errors="surrogatepass")
    return "~" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def unslug(text: str) -> str | None:
    """The name of a slug; None if it is none."""
    if not text.startswith("~"):
        return text
    try:
        data = base64.urlsafe_b64decode(text[1:] + "=" * (-len(text[1:]) % 4))
        return data.decode(errors="surrogatepass")
    except (binascii.Error, ValueError):
        return None
