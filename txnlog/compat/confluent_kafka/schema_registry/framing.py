"""What serializers of a schema registry share: schema, its id, and the frame around the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

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
    Serializer,
)

Convert = Callable[[Any, SerializationContext], Any]

DEFAULTS: Mapping[str, Any] = {
    "auto.register.schemas": True,
    "use.latest.version": False,
    "subject.name.strategy": topic_subject_name_strategy,
}


def schema_of(given: str | Schema | None, schema_type: str) -> Schema | None:
    """The schema that a serializer was given, as text or whole."""
    return Schema(given, schema_type) if isinstance(given, str) else given


class FramingSerializer(Serializer):
    """Registers or looks up a schema once per subject, and puts its id in front of the data."""

    schema_type: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | Schema | None,
        to_dict: Convert | None,
        conf: Mapping[str, Any] | None,
    ) -> None:
        self._registry = registry
        self._to_dict = to_dict
        self._conf = checked_conf(conf, self.defaults, ignored=("normalize.schemas",))
        self._schema = schema_of(schema, self.schema_type)
        if self._schema is None and not self._conf["use.latest.version"]:
            raise ValueError(f"{type(self).__name__} needs schema_str, or use.latest.version=True.")
        self._ids: dict[str, int] = {}

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        if obj is None:
            return None
        ctx = context(ctx)
        schema, schema_id = self._registered(ctx)
        value = obj if self._to_dict is None else self._to_dict(obj, ctx)
        return framed(schema_id, self._encode(value, schema))

    @abstractmethod
    def _encode(self, value: Any, schema: Schema) -> bytes:
        """The data. Raises SerializationError if the value does not fit the schema."""

    @abstractmethod
    def _record_name(self, schema: Schema) -> str | None:
        """The name in the schema, for a subject that is named by it."""

    def _registered(self, ctx: SerializationContext) -> tuple[Schema, int]:
        """The schema to write with, and its id."""
        schema = self._schema
        name = None if schema is None else self._record_name(schema)
        subject = self._conf["subject.name.strategy"](ctx, name)
        if self._conf["use.latest.version"]:
            latest = self._registry.get_latest_version(subject)
            return latest.schema, latest.schema_id
        assert schema is not None
        if subject not in self._ids:
            if self._conf["auto.register.schemas"]:
                self._ids[subject] = self._registry.register_schema(subject, schema)
            else:
                self._ids[subject] = self._registry.lookup_schema(subject, schema).schema_id
        return schema, self._ids[subject]


class FramingDeserializer(Deserializer):
    """Takes the id of the writer's schema off, and gives the data to `from_dict`."""

    schema_type: ClassVar[str]

    def __init__(self, schema: str | Schema | None, from_dict: Convert | None) -> None:
        self._schema = schema_of(schema, self.schema_type)
        self._from_dict = from_dict

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        if value is None:
            return None
        found = self._decode(*unframed(value))
        return found if self._from_dict is None else self._from_dict(found, context(ctx))

    @abstractmethod
    def _decode(self, schema_id: int, data: bytes) -> Any:
        """The record. Raises SerializationError, SchemaRegistryError."""
