"""Schemas for the tests of a registry in a topic and of the serializers on it."""

from __future__ import annotations

import json

from txnlog.compat.confluent_kafka.schema_registry import Metadata, MetadataProperties, Schema
from txnlog.compat.confluent_kafka.serialization import MessageField, SerializationContext

USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "namespace": "shop",
        "fields": [{"name": "name", "type": "string"}],
    }
)
OLDER = USER.replace('"fields": [', '"fields": [{"name": "age", "type": "int", "default": 1}, ')
CONTEXT = SerializationContext("users", MessageField.VALUE)
LATEST = {"auto.register.schemas": False, "use.latest.version": True}


def named(text: str, number: int) -> Schema:
    return Schema(text, metadata=Metadata(None, MetadataProperties({"n": str(number)}), None))
