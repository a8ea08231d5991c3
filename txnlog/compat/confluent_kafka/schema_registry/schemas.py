"""Schemas, the names they are registered under, and the wire format that refers to them.

Wire format, Confluent's: a zero byte, the schema's id as four bytes, big-endian, and the data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from txnlog.compat.confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    SerializationError,
)
from txnlog.text import printable

MAGIC = 0
_HEADER = struct.Struct(">bI")


class SchemaRegistryError(Exception):
    """A registry refused a request; the codes are those of Confluent's registry."""

    UNKNOWN = -1

    def __init__(self, http_status_code: int, error_code: int, error_message: str) -> None:
        status = f"(HTTP status code {http_status_code}, {error_code})"
        super().__init__(f"{printable(error_message)} {status}")
        self.http_status_code = http_status_code
        self.error_code = error_code
        self.error_message = error_message


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses by a name."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text; `schema_type` is AVRO or JSON."""

    schema_str: str | None
    schema_type: str = "AVRO"
    references: Sequence[SchemaReference] = field(default=())

    def comparable(self) -> str:
        """The same text for schemas that differ in white space only."""
        text = self.schema_str or ""
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), separators=(",", ":"))
        used = [(each.name, each.subject, each.version) for each in self.references]
        return json.dumps([self.schema_type, text, used])


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its subject, its version there, and its id."""

    schema_id: int
    schema: Schema
    subject: str
    version: int


class Registry(Protocol):
    """Where schemas are stored."""

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """The schema's id and version; it is added to the subject unless it is there."""

    def by_id(self, schema_id: int) -> Schema:
        """Raises SchemaRegistryError."""

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """The schemas of a subject, oldest first. Raises SchemaRegistryError."""

    def subjects(self) -> list[str]:
        """All subjects, sorted."""

    def close(self) -> None:
        """Free what is open."""


def topic_subject_name_strategy(
    ctx: SerializationContext, record_name: str | None, *rest: object
) -> str:
    """`<topic>-key` or `<topic>-value`."""
    return f"{ctx.topic}-{ctx.field}"


def record_subject_name_strategy(
    ctx: SerializationContext, record_name: str | None, *rest: object
) -> str:
    """The record's name. Raises SerializationError."""
    if record_name is None:
        raise SerializationError("record_subject_name_strategy needs a schema with a name.")
    return record_name


def topic_record_subject_name_strategy(
    ctx: SerializationContext, record_name: str | None, *rest: object
) -> str:
    """`<topic>-<record's name>`. Raises SerializationError."""
    return f"{ctx.topic}-{record_subject_name_strategy(ctx, record_name)}"


def framed(schema_id: int, data: bytes) -> bytes:
    """Data with the header that names its schema."""
    return _HEADER.pack(MAGIC, schema_id) + data


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's id, and the data. Raises SerializationError."""
    if len(value) < _HEADER.size:
        raise SerializationError(
            f"{len(value)} bytes are too few for a record of a schema registry, which begins with "
            "a zero byte and four bytes of its schema's id."
        )
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != MAGIC:
        raise SerializationError(
            f"The first byte is {magic}, not 0: this was not written by a serializer of a schema "
            "registry."
        )
    return schema_id, value[_HEADER.size :]


def checked_conf(
    given: Mapping[str, Any] | None, defaults: Mapping[str, Any], ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of a serializer. Raises ValueError for unknown names."""
    conf = {**defaults, **(given or {})}
    unknown = sorted(conf.keys() - defaults.keys() - set(ignored))
    if unknown:
        raise ValueError(
            f"Unknown settings {', '.join(unknown)}: there are {', '.join(sorted(defaults))}."
        )
    if conf.get("auto.register.schemas") and conf.get("use.latest.version"):
        raise ValueError("auto.register.schemas and use.latest.version exclude each other.")
    return conf


def context(ctx: SerializationContext | None) -> SerializationContext:
    """The given context, or one without a topic."""
    return ctx or SerializationContext(None, MessageField.VALUE)
