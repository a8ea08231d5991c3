"""confluent_kafka.schema_registry.json_schema; values are validated with jsonschema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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

__all__ = ["JSONDeserializer", "JSONSerializer"]

Convert = Callable[[Any, SerializationContext], Any]

_DEFAULTS = {
    "auto.register.schemas": True,
    "use.latest.version": False,
    "subject.name.strategy": topic_subject_name_strategy,
    "validate": True,
}


class JSONSerializer(Serializer):
    """Objects to JSON in the registry's wire format; `to_dict(obj, ctx)` makes them dicts.

    They are validated against the schema unless the setting `validate` is False.
    """

    def __init__(
        self,
        schema_str: str | Schema | None,
        schema_registry_client: SchemaRegistryClient,
        to_dict: Convert | None = None,
        conf: Mapping[str, Any] | None = None,
        json_encode: Callable[[Any], str] | None = None,
    ) -> None:
        self._registry = schema_registry_client
        self._to_dict = to_dict
        self._encode = json_encode or json.dumps
        self._conf = checked_conf(conf, _DEFAULTS, ignored=("normalize.schemas",))
        self._schema = Schema(schema_str, "JSON") if isinstance(schema_str, str) else schema_str
        if self._schema is None and not self._conf["use.latest.version"]:
            raise ValueError("A JSONSerializer needs schema_str, or use.latest.version=True.")
        self._ids: dict[str, int] = {}
        self._validate = _validator() if self._conf["validate"] else None

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        if obj is None:
            return None
        ctx = context(ctx)
        schema = self._schema
        title = None if schema is None else json.loads(schema.schema_str or "{}").get("title")
        subject = self._conf["subject.name.strategy"](ctx, title)
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
        if self._validate is not None:
            self._validate(value, schema)
        encoded = self._encode(value)
        return framed(self._ids[subject], encoded.encode())


class JSONDeserializer(Deserializer):
    """JSON in the registry's wire format to dicts, or what `from_dict(dict, ctx)` makes of them.

    They are validated against `schema_str`, or without it against the schema they were written
    with, unless the setting `validate` is False.
    """

    def __init__(
        self,
        schema_str: str | Schema | None,
        from_dict: Convert | None = None,
        schema_registry_client: SchemaRegistryClient | None = None,
        conf: Mapping[str, Any] | None = None,
        json_decode: Callable[[str], Any] | None = None,
    ) -> None:
        self._registry = schema_registry_client
        self._from_dict = from_dict
        self._decode = json_decode or json.loads
        self._schema = Schema(schema_str, "JSON") if isinstance(schema_str, str) else schema_str
        if self._schema is None and self._registry is None:
            raise ValueError("A JSONDeserializer needs schema_str, or schema_registry_client.")
        is_validating = checked_conf(conf, _DEFAULTS)["validate"]
        self._validate = _validator() if is_validating else None

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        if value is None:
            return None
        schema_id, data = unframed(value)
        try:
            found = self._decode(data.decode())
        except ValueError as error:
            raise SerializationError(f"The record is not JSON: {error}") from error
        if self._validate is not None:
            schema = self._schema
            if schema is None and self._registry is not None:
                schema = self._registry.get_schema(schema_id)
            assert schema is not None
            self._validate(found, schema)
        return found if self._from_dict is None else self._from_dict(found, context(ctx))


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
