"""JSON in partition values that a newer txnlog may have written, with fields unknown to this one.

A process that rewrites a row must not drop them: the newer one relies on them (R38). They are kept
with the value they belong to, at every level, and are written back beside the known fields. Most
rows have none and are read and written by msgspec alone.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple

from txnlog.protocol.decoding import decode

T = TypeVar("T")

_MARK = "*"
_ENCODER = msgspec.json.Encoder()
_PLAIN: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Extensible(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A JSON object; `unknown` holds the fields unknown to this version, as JSON text."""

    unknown: str = msgspec.field(default="", name=_MARK)


class ExtensibleArray(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A JSON array with one item per field.

    A newer version may append items; then the value is of the class that `extended` returns.
    """

    @classmethod
    def extended(cls) -> type[ExtensibleArray]:
        """A subclass of this one whose last field, `unknown`, holds "*" and more items as JSON."""
        raise NotImplementedError


class Codec(Generic[T]):
    """Reads and writes one type. Unknown fields survive reading, `replace` and writing."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: str) -> T:
        """Raises msgspec.MsgspecError, ValueError, TypeError, KeyError for invalid text."""
        try:
            if f'"{_MARK}"' not in text:
                return decode(self._decoder, text)
        except msgspec.ValidationError:
            # Unknown fields, or damage, which raises again below.
            pass
        return _built(self._kind, decode(_PLAIN, text))  # type: ignore[no-any-return]

    def encode(self, value: T) -> str:
        """The value as JSON text."""
        text = _ENCODER.encode(value).decode()
        # A topic or an id may look like the mark, which only costs time.
        return _ENCODER.encode(_plain(value)).decode() if f'"{_MARK}' in text else text


def _built(kind: Any, plain: Any) -> Any:
    """The value of a type; fields unknown to the type go to `unknown`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        known = next(one for one in inner if one is not NoneType)
        return None if plain is None else _built(known, plain)
    if origin is tuple and isinstance(plain, list):
        return tuple(_built(inner[0], item) for item in plain)
    if origin is dict and isinstance(plain, dict):
        return {
            msgspec.convert(key, inner[0], strict=False): _built(inner[1], value)
            for key, value in plain.items()
        }
    if isinstance(kind, type) and isinstance(plain, list) and issubclass(kind, ExtensibleArray):
        count = len(kind.__struct_fields__)
        value = msgspec.convert(plain[:count], kind)
        if len(plain) <= count:
            return value
        return kind.extended()(*astuple(value), _MARK + _ENCODER.encode(plain[count:]).decode())
    if isinstance(kind, type) and isinstance(plain, dict) and issubclass(kind, Extensible):
        hints = get_type_hints(kind, include_extras=True)
        known = {name: hints[name] for name in kind.__struct_fields__ if name != "unknown"}
        values = {name: _built(known[name], plain[name]) for name in plain if name in known}
        more = {name: value for name, value in plain.items() if name not in known}
        return kind(**values, unknown=_ENCODER.encode(more).decode() if more else "")
    return msgspec.convert(plain, kind)


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def _plain(value: Any) -> Any:
    """The JSON form of a value: its fields, and those in its `unknown`."""
    if isinstance(value, Extensible):
        known = {
            field.name: _plain(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if field.name != "unknown" and not _is_default(field, getattr(value, field.name))
        }
        return {**msgspec.json.decode(value.unknown or "{}"), **known}
    if isinstance(value, ExtensibleArray):
        items = list(astuple(value))
        if type(value) is not type(value).extended():
            return items
        return [*items[:-1], *msgspec.json.decode(items[-1][len(_MARK) :])]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
