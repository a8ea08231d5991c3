"""confluent_kafka.schema_registry.json_schema; values are validated with jsonschema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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

__all__ = ["AsyncJSONDeserializer", "AsyncJSONSerializer", "JSONDeserializer", "JSONSerializer"]

_DEFAULTS = {**DEFAULTS, "validate": True}


class JSONSerializer(FramingSerializer):
    """Objects to JSON in the registry's wire format; `to_dict(obj, ctx)` makes them dicts.

    They are validated against the schema unless the setting `validate` is False.
    """

    schema_type = "JSON"
    defaults = _DEFAULTS

    def __init__(
        self,
        schema_str: str | Schema | None,
        schema_registry_client: SchemaRegistryClient,
        to_dict: Convert | None = None,
        conf: Mapping[str, Any] | None = None,
        json_encode: Callable[[Any], str] | None = None,
    ) -> None:
        super().__init__(schema_registry_client, schema_str, to_dict, conf)
        self._json_encode = json_encode or json.dumps
        self._validate = _validator() if self._conf["validate"] else None

    def _encode(self, value: Any, schema: Schema) -> bytes:
        if self._validate is not None:
            self._validate(value, schema)
        return self._json_encode(value).encode()

    def _record_name(self, schema: Schema) -> str | None:
        name: str | None = json.loads(schema.schema_str or "{}").get("title")
        return name


class JSONDeserializer(FramingDeserializer):
    """JSON in the registry's wire format to dicts, or what `from_dict(dict, ctx)` makes of them.

    They are validated against `schema_str`, or without it against the schema they were written
    with, unless the setting `validate` is False.
    """

    schema_type = "JSON"

    def __init__(
        self,
        schema_str: str | Schema | None,
        from_dict: Convert | None = None,
        schema_registry_client: SchemaRegistryClient | None = None,
        conf: Mapping[str, Any] | None = None,
        json_decode: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(schema_str, from_dict)
        self._registry = schema_registry_client
        self._json_decode = json_decode or json.loads
        if self._schema is None and self._registry is None:
            raise ValueError("JSONDeserializer needs schema_str, or schema_registry_client.")
        is_validating = checked_conf(conf, _DEFAULTS)["validate"]
        self._validate = _validator() if is_validating else None

    def _decode(self, schema_id: int, data: bytes) -> Any:
        try:
            found = self._json_decode(data.decode())
        except ValueError as error:
            raise SerializationError(f"The record is not JSON: {error}") from error
        if self._validate is not None:
            schema = self._schema
            if schema is None and self._registry is not None:
                schema = self._registry.get_schema(schema_id)
            assert schema is not None
            self._validate(found, schema)
        return found


class AsyncJSONSerializer(AsyncSerde):
    """JSONSerializer for asyncio."""

    made_by = JSONSerializer


class AsyncJSONDeserializer(AsyncSerde):
    """JSONDeserializer for asyncio."""

    made_by = JSONDeserializer


def _validator() -> Callable[[Any, Schema], None]:
    """A function that raises SerializationError for a value that does not fit a schema."""
    try:
        from jsonschema import ValidationError
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise ConfigError(
            "Validating JSON needs jsonschema: pip install jsonschema, or set validate to False."
        ) from error
    validators: dict[str, Any] = {}

    def validate(value: Any, schema: Schema) -> None:
        text = schema.schema_str or "{}"
        if text not in validators:
            loaded = json.loads(text)
            validators[text] = validator_for(loaded)(loaded)
        try:
            validators[text].validate(value)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "the value"
            raise SerializationError(
                f"The value does not fit its JSON schema: {where}: {error.message}"
            ) from error

    return validate
