"""Keys and values of records as text: JSON, Avro with a schema of a registry, UTF-8, or hex."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from txnlog.text import printable

SHOWN_BYTES: Final = 16_384
HEX_BYTES: Final = 256
LINE_MAX: Final = 120
_MAGIC: Final = b"\0"
_HEAD: Final = 5
"""The magic byte and the schema's id, in front of Avro."""

SchemaOf = Callable[[int], "str | None"]
"""The Avro schema with an id; None if there is none."""


class Shown(NamedTuple):
    """A key or value: `kind` is how it was read, `is_cut` says that there is more of it."""

    kind: str
    text: str
    size_bytes: int
    is_cut: bool


def shown(data: bytes | None, schema_of: SchemaOf) -> Shown | None:
    """None for null. A long value is cut, before anything is made of it."""
    if data is None:
        return None
    told = _avro(data, schema_of) or _json(data)
    if told is None:
        return _plain(data)
    kind, text = told
    return Shown(kind, text[:SHOWN_BYTES], len(data), len(text) > SHOWN_BYTES)


def _plain(data: bytes) -> Shown:
    head = data[:SHOWN_BYTES]
    is_cut = len(data) > len(head)
    try:
        # A character that is cut in two is left out, and no reason for hex.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not is_cut)
    except UnicodeDecodeError:
        return Shown("hex", head[:HEX_BYTES].hex(" "), len(data), len(data) > HEX_BYTES)
    # Lines stay lines; everything else that is invisible is an escape.
    return Shown("text", "\n".join(map(printable, text.split("\n"))), len(data), is_cut)


def _json(data: bytes) -> tuple[str, str] | None:
    """Objects and lists only: a bare number or word is text as well."""
    if len(data) > 64 * SHOWN_BYTES or data[:1] not in (b"{", b"["):
        return None
    try:
        return "JSON", _pretty(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _avro(data: bytes, schema_of: SchemaOf) -> tuple[str, str] | None:
    """A value in Confluent's wire format; None without fastavro, the schema, or if it is none."""
    if len(data) <= _HEAD or not data.startswith(_MAGIC):
        return None
    try:
        import fastavro

        found = schema_of(int.from_bytes(data[1:_HEAD], "big"))
        if found is None:
            return None
        schema = fastavro.parse_schema(json.loads(found))
        rest = io.BytesIO(data[_HEAD:])
        value = fastavro.schemaless_reader(rest, schema, None)
        return None if rest.read(1) else ("Avro", _pretty(value))
    except Exception:  # Whatever the bytes do to the library: then they are shown as they are.
        return None


def _pretty(value: Any) -> str:
    """On one line where it fits there."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > LINE_MAX:
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2)
    return "\n".join(printable(line) for line in text.split("\n"))
