"""Records as JSON lines: written by `consume --output json`, read by `produce --json`.

Bytes are a string if they are UTF-8, else {"base64": "..."}; null is null.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from txnlog.errors import InvalidRecordError
from txnlog.messages import Message
from txnlog.settings.arguments import shown
from txnlog.text import json_text

_PLAIN = {"topic": str, "partition": int, "timestamp": int}
FIELDS = {"offset", "key", "value", "headers", *_PLAIN}


def to_json(message: Message) -> bytes:
    """A message as one JSON line."""
    kind, timestamp_ms = message.timestamp()
    line = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,
        "key": encode(message.key()),
        "value": encode(message.value()),
        "headers": [[name, encode(value)] for name, value in message.headers() or ()],
    }
    return json_text(line).encode()


def from_json(line: bytes, number: int) -> dict[str, Any]:
    """Arguments of `Producer.produce` from the fields of the line; `offset` is ignored.

    Raises InvalidRecordError with the line number.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"{shown(fields)} is no JSON object")
        unknown = set(fields) - FIELDS
        if unknown:
            raise ValueError(f"unknown fields {sorted(unknown)}")
        record: dict[str, Any] = {
            name: decode(fields[name]) for name in ("key", "value") if name in fields
        }
        for name, kind in _PLAIN.items():
            value = fields.get(name)
            if value is not None:
                if type(value) is not kind:
                    raise ValueError(f"its {name} is {shown(value)}")
                record[name] = value
        if fields.get("headers"):
            record["headers"] = [_header(pair) for pair in fields["headers"]]
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise InvalidRecordError(
            f"Line {number} is not a record in the format of `consume --output json`: {error}.",
            line=number,
        ) from None
    return record


def _header(pair: object) -> tuple[str, bytes | None]:
    """Raises ValueError, KeyError, TypeError."""
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError(f"{shown(pair)} is no header: give [name, value]")
    return pair[0], decode(pair[1])


def encode(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def decode(value: object) -> bytes | None:
    """Bytes from JSON. Raises ValueError, KeyError, TypeError."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError(f'{value!r} is neither a string, null, nor {{"base64": ...}}')
