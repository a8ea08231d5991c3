"""AsyncJSONSerializer and AsyncJSONDeserializer; `schema_registry.json_schema` has them, too."""

from txnlog.compat.confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
)

__all__ = ["AsyncJSONDeserializer", "AsyncJSONSerializer"]
