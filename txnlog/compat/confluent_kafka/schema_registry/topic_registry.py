"""A schema registry in the topic `_schemas` of a root (D114).

A record is one registration: its key the subject, its value the schema as JSON. The topic has one
partition and is read whole, so all clients agree: a schema's id is the offset of its first record
plus one, and its version in a subject is the number of different schemas there up to it. Two
clients that register the same schema at once add it twice, and both find the first.
"""

from __future__ import annotations

import json
import threading

from txnlog.cluster import Cluster
from txnlog.compat.confluent_kafka.schema_registry.schemas import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryError,
)
from txnlog.consumer import Consumer
from txnlog.errors import UnknownTopicOrPartitionError
from txnlog.messages import OFFSET_BEGINNING, Message, TopicPartition
from txnlog.producer import Producer
from txnlog.settings.storage_options import StoreSettings

TOPIC = "_schemas"
CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
SUBJECT_NOT_FOUND = 40401
SCHEMA_NOT_FOUND = 40403


class TopicRegistry:
    """The registry of one root. Any thread may call it."""

    def __init__(self, root: str, storage: StoreSettings) -> None:
        self._settings: dict[str, object] = {"txnlog.root": root}
        self._settings.update({f"storage.{name}": value for name, value in storage.items()})
        self._root, self._storage = root, storage
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._read = 0
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, Schema] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """See Registry.register."""
        with self._lock:
            found = self._find(subject, schema)
            if found is None:
                self._create()
                self._refresh()
                found = self._find(subject, schema)
            if found is None:
                self._append(subject, schema)
                self._refresh()
                found = self._find(subject, schema)
            assert found is not None
            return found

    def by_id(self, schema_id: int) -> Schema:
        """See Registry.by_id."""
        with self._lock:
            if schema_id not in self._schemas:
                self._refresh()
            if schema_id not in self._schemas:
                raise SchemaRegistryError(
                    404, SCHEMA_NOT_FOUND, f"Schema {schema_id} is not in topic {TOPIC!r}."
                )
            return self._schemas[schema_id]

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """See Registry.versions."""
        with self._lock:
            self._refresh()
            if subject not in self._subjects:
                raise SchemaRegistryError(
                    404, SUBJECT_NOT_FOUND, f"Subject {subject!r} is not in topic {TOPIC!r}."
                )
            return [
                RegisteredSchema(schema_id, self._schemas[schema_id], subject, number)
                for number, schema_id in enumerate(self._subjects[subject], start=1)
            ]

    def subjects(self) -> list[str]:
        """See Registry.subjects."""
        with self._lock:
            self._refresh()
            return sorted(self._subjects)

    def close(self) -> None:
        """See Registry.close."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
                self._read = 0

    def _find(self, subject: str, schema: Schema) -> RegisteredSchema | None:
        schema_id = self._ids.get(schema.comparable())
        there = self._subjects.get(subject, [])
        if schema_id is None or schema_id not in there:
            return None
        version = there.index(schema_id) + 1
        return RegisteredSchema(schema_id, self._schemas[schema_id], subject, version)

    def _create(self) -> None:
        """Create the topic, and the cluster, unless they are there."""
        if self._consumer is None:
            cluster = Cluster.open(self._root, self._storage, create=True)
            cluster.create_topic(TOPIC, partitions=1, config=CONFIG, exist_ok=True)

    def _append(self, subject: str, schema: Schema) -> None:
        references = [(each.name, each.subject, each.version) for each in schema.references]
        value = json.dumps(
            {
                "schema": schema.schema_str,
                "schemaType": schema.schema_type,
                "references": references,
            }
        )
        failures: list[Exception] = []

        def report(error: Exception | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        with Producer(self._settings) as producer:
            producer.produce(TOPIC, value, subject, on_delivery=report)
            producer.flush()
        if failures:
            raise failures[0]

    def _refresh(self) -> None:
        """Read the registrations that were added since the last call."""
        consumer = self._consumer
        partition = TopicPartition(TOPIC, 0, OFFSET_BEGINNING)
        if consumer is None:
            consumer = Consumer(self._settings)
            try:
                consumer.assign([partition])
            except UnknownTopicOrPartitionError:
                consumer.close()
                return
            self._consumer = consumer
        _, end = consumer.get_watermark_offsets(partition)
        while self._read < end:
            message = consumer.poll(10)
            if message is not None:
                self._apply(message)

    def _apply(self, message: Message) -> None:
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None
        assert key is not None
        stored = json.loads(value or b"")
        references = tuple(SchemaReference(*each) for each in stored["references"])
        schema = Schema(stored["schema"], stored["schemaType"], references)
        schema_id = self._ids.setdefault(schema.comparable(), offset + 1)
        self._schemas.setdefault(schema_id, schema)
        there = self._subjects.setdefault(key.decode(), [])
        if schema_id not in there:
            there.append(schema_id)
        self._read = offset + 1
