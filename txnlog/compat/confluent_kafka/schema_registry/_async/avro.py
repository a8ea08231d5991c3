"""AsyncAvroSerializer and AsyncAvroDeserializer; `schema_registry.avro` has them, too."""

from txnlog.compat.confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
)

__all__ = ["AsyncAvroDeserializer", "AsyncAvroSerializer"]
