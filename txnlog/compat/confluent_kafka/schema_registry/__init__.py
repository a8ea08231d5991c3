"""confluent_kafka.schema_registry: confluent-kafka's own, with clients that also take a root."""

from typing import Any

from txnlog.compat.confluent_kafka.confluent import load
from txnlog.compat.confluent_kafka.schema_registry.schema_registry_client import (
    AsyncSchemaRegistryClient as AsyncSchemaRegistryClient,
)
from txnlog.compat.confluent_kafka.schema_registry.schema_registry_client import (
    SchemaRegistryClient as SchemaRegistryClient,
)

_theirs = load("schema_registry")
__all__: list[str] = _theirs.__all__


def __getattr__(name: str) -> Any:
    return getattr(_theirs, name)
