"""confluent_kafka.schema_registry.avro, with fastavro (`pip install 'txnlog[avro]'`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from txnlog.compat.confluent_kafka.schema_registry.asynchronous import AsyncSerde
from txnlog.compat.confluent_kafka.schema_registry.client import SchemaRegistryClient
from txnlog.compat.confluent_kafka.schema_registry.framing import (
    DEFAULTS,
    Convert,
    FramingDeserializer,
    FramingSerializer,
)
from txnlog.compat.confluent_kafka.schema_registry.schemas import Schema, checked_conf
from txnlog.compat.confluent_kafka.serialization import SerializationError
from txnlog.errors import ConfigError

__all__ = ["AsyncAvroDeserializer", "AsyncAvroSerializer", "AvroDeserializer", "AvroSerializer"]


class AvroSerializer(FramingSerializer):
    """Objects to Avro in the registry's wire format; `to_dict(obj, ctx)` makes them dicts."""

    schema_type = "AVRO"

    def __init__(
        self,
        schema_registry_client: SchemaRegistryClient,
        schema_str: str | Schema | None = None,
        to_dict: Convert | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self._avro = _fastavro()
        self._parsed: dict[str, Any] = {}
        super().__init__(schema_registry_client, schema_str, to_dict, conf)

    def _encode(self, value: Any, schema: Schema) -> bytes:
        data = BytesIO()
        try:
            parsed = _parsed(self._avro, self._registry, self._parsed, schema)
            self._avro.schemaless_writer(data, parsed, value)
        except Exception as error:
            raise SerializationError(f"The value does not fit its Avro schema: {error}") from error
        return data.getvalue()

    def _record_name(self, schema: Schema) -> str | None:
        text = (schema.schema_str or "").strip()
        loaded = json.loads(text) if text.startswith("{") else {}
        name, namespace = loaded.get("name"), loaded.get("namespace")
        return f"{namespace}.{name}" if name and namespace else name


class AvroDeserializer(FramingDeserializer):
    """Avro in the registry's wire format to dicts, or what `from_dict(dict, ctx)` makes of them.

    With `schema_str` records of other schemas are read as that one, as far as Avro allows it.
    """

    schema_type = "AVRO"

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
        self._return_record_name = return_record_name
        self._parsed: dict[str, Any] = {}
        checked_conf(conf, DEFAULTS)
        super().__init__(schema_str, from_dict)

    def _decode(self, schema_id: int, data: bytes) -> Any:
        writer = self._parse(self._registry.get_schema(schema_id))
        reader = None if self._schema is None else self._parse(self._schema)
        try:
            return self._avro.schemaless_reader(
                BytesIO(data), writer, reader, self._return_record_name
            )
        except Exception as error:
            raise SerializationError(
                f"The record is not Avro of schema {schema_id}, or does not fit the reader's "
                f"schema: {type(error).__name__}: {error}"
            ) from error

    def _parse(self, schema: Schema) -> Any:
        return _parsed(self._avro, self._registry, self._parsed, schema)


class AsyncAvroSerializer(AsyncSerde):
    """AvroSerializer for asyncio."""

    made_by = AvroSerializer


class AsyncAvroDeserializer(AsyncSerde):
    """AvroDeserializer for asyncio."""

    made_by = AvroDeserializer


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
