"""Parsers of `storage.*` values. No error shows a value: it may be a secret (R67).

A parser takes the option's name, as the user wrote it, and its text without blanks around it; it
returns the text that the store library reads. The library itself ends a request, or its opening,
by a panic for a header with a line break or an endpoint that is no URL, so both are refused here.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from txnlog.errors import ConfigError

Parser = Callable[[str, str], str]

_FLAGS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "on"), "true"),
    **dict.fromkeys(("false", "0", "no", "n", "off"), "false"),
}
_UNITS_MS: Final = {
    **dict.fromkeys(("ms", "msec", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hr", "hour"), 3_600_000),
}
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([a-z]+)")
_PEM: Final = re.compile(r"\s*-----BEGIN ")


def refused(name: str, takes: str) -> ConfigError:
    """The error for a value that `name` cannot have; `takes` says what it takes."""
    return ConfigError(f"Option {name} takes {takes}. (Its value is not shown.)", option=name)


def header(name: str, value: str) -> str:
    """Text that may stand in an HTTP header: visible ASCII and blanks."""
    if not value or not value.isascii() or not value.isprintable():
        raise refused(name, "visible ASCII characters, without line breaks")
    return value


def path(name: str, value: str) -> str:
    """A path on each host; `~` is not expanded."""
    if not value.startswith("/") or not value.isprintable():
        raise refused(name, "an absolute path, which exists on every host")
    return value


def flag(name: str, value: str) -> str:
    """true or false."""
    found = _FLAGS.get(value.lower())
    if found is None:
        raise refused(name, "true or false")
    return found


def switch(name: str, value: str) -> str:
    """true or false, and no other word."""
    if value.lower() not in ("true", "false"):
        raise refused(name, "true or false")
    return value.lower()


def url(name: str, value: str) -> str:
    """An http or https URL with a host, without '/' at the end."""
    takes = "a URL with a host, as in https://host:port"
    header(name, value)
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise refused(name, takes) from None
    is_whole = parts.scheme in ("http", "https") and parts.hostname
    if not is_whole or re.search(r"[\s<>\"{}|\\^`]", value):
        raise refused(name, takes)
    return value.rstrip("/")


def endpoint(name: str, value: str) -> str:
    """The URL of a service: without user, password, query and fragment."""
    found = url(name, value)
    parts = urlsplit(found)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise refused(name, "a URL without user, password, query and fragment")
    return found


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
    by_lowered = {word.lower(): word for word in allowed}

    def parse(name: str, value: str) -> str:
        found = by_lowered.get(value.lower())
        if found is None:
            raise refused(name, " or ".join(allowed))
        return found

    return parse


def base64_key(name: str, value: str) -> str:
    """A key in base64."""
    try:
        size_bytes = len(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        size_bytes = 0
    if not size_bytes:
        raise refused(name, "a key in base64")
    return value


def sas_token(name: str, value: str) -> str:
    """A shared access signature, as the portal shows it: name=value pairs with `sig`."""
    found = header(name, value).removeprefix("?")
    pairs = [pair.partition("=") for pair in found.split("&")]
    signed = any(key == "sig" and text for key, _, text in pairs)
    if not signed or not all(key and between for key, between, _ in pairs):
        raise refused(name, "a shared access signature: sv=...&sig=...")
    return found


def json_object(name: str, value: str) -> str:
    """A JSON object, as in a service account's key file."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise refused(name, "a JSON object")
    return value


def headers(name: str, value: str) -> str:
    """A JSON object of header names and values."""
    found = json.loads(json_object(name, value))
    for key, text in found.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_|~-]+", key) or not isinstance(text, str):
            raise refused(name, 'a JSON object of headers: {"name": "value"}')
        header(name, text)
    return value


def certificates(name: str, value: str) -> str:
    """Certificates in PEM form, or the path of a file with them."""
    return value if _PEM.match(value) else path(name, value)


def is_pem(value: str) -> bool:
    """Whether a value of `certificates` holds them, and is no path."""
    return _PEM.match(value) is not None
