"""confluent_kafka.schema_registry.avro, with fastavro (`pip install 'txnlog[avro]'`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from txnlog.compat.confluent_kafka.schema_registry.client import SchemaRegistryClient
from txnlog.compat.confluent_kafka.schema_registry.schemas import (
    Schema,
    checked_conf,
    context,
    framed,
    topic_subject_name_strategy,
    unframed,
)
from txnlog.compat.confluent_kafka.serialization import (
    Deserializer,
    SerializationContext,
    SerializationError,
    Serializer,
)
from txnlog.errors import ConfigError

__all__ = ["AvroDeserializer", "AvroSerializer"]

Convert = Callable[[Any, SerializationContext], Any]

_DEFAULTS = {
    "auto.register.schemas": True,
    "use.latest.version": False,
    "subject.name.strategy": topic_subject_name_strategy,
}


class AvroSerializer(Serializer):
    """Objects to Avro in the registry's wire format; `to_dict(obj, ctx)` makes them dicts."""

    def __init__(
        self,
        schema_registry_client: SchemaRegistryClient,
        schema_str: str | Schema | None = None,
        to_dict: Convert | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self._avro = _fastavro()
        self._registry = schema_registry_client
        self._to_dict = to_dict
        self._conf = checked_conf(conf, _DEFAULTS, ignored=("normalize.schemas",))
        self._schema = Schema(schema_str) if isinstance(schema_str, str) else schema_str
        if self._schema is None and not self._conf["use.latest.version"]:
            raise ValueError("An AvroSerializer needs schema_str, or use.latest.version=True.")
        self._parsed: dict[str, Any] = {}
        self._ids: dict[str, int] = {}

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        if obj is None:
            return None
        ctx = context(ctx)
        schema = self._schema
        name = None if schema is None else _record_name(schema)
        subject = self._conf["subject.name.strategy"](ctx, name)
        if self._conf["use.latest.version"]:
            latest = self._registry.get_latest_version(subject)
            schema, self._ids[subject] = latest.schema, latest.schema_id
        assert schema is not None
        if subject not in self._ids:
            if self._conf["auto.register.schemas"]:
                self._ids[subject] = self._registry.register_schema(subject, schema)
            else:
                self._ids[subject] = self._registry.lookup_schema(subject, schema).schema_id
        value = obj if self._to_dict is None else self._to_dict(obj, ctx)
        data = BytesIO()
        try:
            self._avro.schemaless_writer(data, self._parse(schema), value)
        except Exception as error:
            raise SerializationError(f"The value does not fit its Avro schema: {error}") from error
        return framed(self._ids[subject], data.getvalue())

    def _parse(self, schema: Schema) -> Any:
        return _parsed(self._avro, self._registry, self._parsed, schema)


class AvroDeserializer(Deserializer):
    """Avro in the registry's wire format to dicts, or what `from_dict(dict, ctx)` makes of them.

    With `schema_str` records of other schemas are read as that one, as far as Avro allows it.
    """

    def __init__(
        self,
        schema_registry_client: SchemaRegistryClient,
        schema_str: str | Schema | None = None,
        from_dict: Convert | None = None,
        return_record_name: bool = False,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self._avro = _fastavro()
        self._registry = schema_registry_client
        self._from_dict = from_dict
        self._return_record_name = return_record_name
        checked_conf(conf, _DEFAULTS)
        self._schema = Schema(schema_str) if isinstance(schema_str, str) else schema_str
        self._parsed: dict[str, Any] = {}

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        if value is None:
            return None
        schema_id, data = unframed(value)
        schema = self._registry.get_schema(schema_id)
        parse = _parsed
        writer = parse(self._avro, self._registry, self._parsed, schema)
        reader = None
        if self._schema is not None:
            reader = parse(self._avro, self._registry, self._parsed, self._schema)
        try:
            found = self._avro.schemaless_reader(
                BytesIO(data), writer, reader, self._return_record_name
            )
        except Exception as error:
            raise SerializationError(
                f"The record is not Avro of schema {schema_id}, or does not fit the reader's "
                f"schema: {type(error).__name__}: {error}"
            ) from error
        return found if self._from_dict is None else self._from_dict(found, context(ctx))


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise ConfigError("Avro needs fastavro: pip install 'txnlog[avro]'.") from error
    return fastavro


def _parsed(
    avro: Any, registry: SchemaRegistryClient, cache: dict[str, Any], schema: Schema
) -> Any:
    """The schema as fastavro wants it, with those that it refers to."""
    key = schema.comparable()
    if key not in cache:
        named: dict[str, Any] = {}
        _parse_references(avro, registry, schema, named)
        text = (schema.schema_str or "").strip()
        # A primitive type may be written without quotes.
        loaded = json.loads(text) if text.startswith(("{", "[", '"')) else text
        cache[key] = avro.parse_schema(loaded, named_schemas=named)
    return cache[key]


def _parse_references(
    avro: Any, registry: SchemaRegistryClient, schema: Schema, named: dict[str, Any]
) -> None:
    for each in schema.references:
        used = registry.get_version(each.subject, each.version).schema
        _parse_references(avro, registry, used, named)
        avro.parse_schema(json.loads(used.schema_str or ""), named_schemas=named)


def _record_name(schema: Schema) -> str | None:
    text = (schema.schema_str or "").strip()
    loaded = json.loads(text) if text.startswith("{") else {}
    name, namespace = loaded.get("name"), loaded.get("namespace")
    return f"{namespace}.{name}" if name and namespace else name
