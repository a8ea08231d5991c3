"""confluent_kafka.schema_registry: a schema registry in a topic, or Confluent's server."""

from txnlog.compat.confluent_kafka.schema_registry.asynchronous import AsyncSchemaRegistryClient
from txnlog.compat.confluent_kafka.schema_registry.client import SchemaRegistryClient
from txnlog.compat.confluent_kafka.schema_registry.schemas import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryError,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)

__all__ = [
    "AsyncSchemaRegistryClient",
    "RegisteredSchema",
    "Schema",
    "SchemaReference",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "record_subject_name_strategy",
    "topic_record_subject_name_strategy",
    "topic_subject_name_strategy",
]
