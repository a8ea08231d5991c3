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
NODES_MAX: Final = 1_000
DEPTH_MAX: Final = 50
"""Of an Avro schema in which each type stands wherever it is used."""
PARTS_MAX: Final = 4_000_000
"""Of an Avro value, by its schema and its bytes."""
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
        if _parts_of_byte(schema) * len(data) > PARTS_MAX:
            return None
        rest = io.BytesIO(data[_HEAD:])
        value = fastavro.schemaless_reader(rest, schema, None)
        return None if rest.read(1) else ("Avro", _pretty(value))
    except Exception:  # Whatever the bytes do to the library: then they are shown as they are.
        return None


def _parts_of_byte(schema: Any) -> int:
    """How many parts of a value one byte of it makes at most. Raises ValueError without a bound.

    The library has none: an array of nulls is as long as it says, types that name each other double
    at each step, and a recursive one ends the process when its stack is used up.
    """
    named: dict[str, Any] = {}
    nodes = 0

    def least_bytes(one: Any, depth: int) -> int:
        nonlocal nodes
        nodes += 1
        if nodes > NODES_MAX or depth > DEPTH_MAX:
            raise ValueError("This schema is too large, or recursive.")
        if isinstance(one, str):
            one = named.get(one, {"type": one})
        if isinstance(one, list):
            for each in one:
                least_bytes(each, depth + 1)
            return 1
        if "name" in one:
            named[one["name"]] = one
        match one["type"]:
            case "record" | "error":
                return sum(least_bytes(field["type"], depth + 1) for field in one["fields"])
            case "array":
                if not least_bytes(one["items"], depth + 1):
                    raise ValueError("The items of this array take no bytes.")
            case "map":
                least_bytes(one["values"], depth + 1)
            case "null":
                return 0
            case "fixed":
                return int(one["size"])
            case "boolean" | "int" | "long" | "float" | "double" | "bytes" | "string" | "enum":
                pass
            case other:
                return least_bytes(other, depth + 1)
        return 1

    least_bytes(schema, 0)
    return nodes


def _pretty(value: Any) -> str:
    """On one line where it fits there; of a long one little more than what is shown."""
    text = _json_head(value, None, LINE_MAX)
    if len(text) > LINE_MAX:
        text = _json_head(value, 2, SHOWN_BYTES)
    return "\n".join(printable(line) for line in text.split("\n"))


def _json_head(value: Any, indent: int | None, length: int) -> str:
    """Indents may be many times as long as the value."""
    found: list[str] = []
    encoder = json.JSONEncoder(ensure_ascii=False, default=str, indent=indent)
    for part in encoder.iterencode(value):
        found.append(part)
        length -= len(part)
        if length < 0:
            break
    return "".join(found)
