"""confluent_kafka.schema_registry.SchemaRegistryClient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txnlog.compat.confluent_kafka.schema_registry.http_registry import TIMEOUT_S, HttpRegistry
from txnlog.compat.confluent_kafka.schema_registry.schemas import (
    RegisteredSchema,
    Registry,
    Schema,
    SchemaRegistryError,
)
from txnlog.compat.confluent_kafka.schema_registry.topic_registry import (
    SCHEMA_NOT_FOUND,
    TopicRegistry,
)
from txnlog.process.closing import ClosedAtTheEnd
from txnlog.settings.options import checked_root
from txnlog.settings.storage_options import STORAGE_PREFIX, StoreSettings, checked_settings


class SchemaRegistryClient(ClosedAtTheEnd):
    """Schemas by subject and by id.

    `url` is a root, then they are in its topic `_schemas`, with `storage.<key>` for its store; or
    http:// or https:// and a server of Confluent's, with `basic.auth.user.info` and `timeout`.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        config = dict(conf)
        url = str(config.pop("url", ""))
        if not url:
            raise ValueError("A SchemaRegistryClient needs url: a root, or http(s)://host:port.")
        storage = StoreSettings()
        for name in [name for name in config if name.startswith(STORAGE_PREFIX)]:
            storage[name[len(STORAGE_PREFIX) :]] = config.pop(name)
        user_info = config.pop("basic.auth.user.info", None)
        timeout_s = float(config.pop("timeout", TIMEOUT_S))
        if config:
            raise ValueError(
                f"Unknown settings {', '.join(sorted(config))}: there are url, storage.<key>, "
                "basic.auth.user.info and timeout."
            )
        self._registry: Registry
        if url.startswith(("http://", "https://")):
            self._registry = HttpRegistry(url, user_info, timeout_s)
        else:
            root = checked_root(url)
            self._registry = TopicRegistry(root, checked_settings(root, storage))

    def register_schema(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> int:
        """The schema's id; it is added to the subject unless it is there."""
        return self._registry.register(subject_name, schema).schema_id

    def register_schema_full_response(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> RegisteredSchema:
        """As `register_schema`, with subject and version."""
        return self._registry.register(subject_name, schema)

    def get_schema(self, schema_id: int, *rest: object, **ignored: object) -> Schema:
        """The schema of an id. Raises SchemaRegistryError."""
        return self._registry.by_id(schema_id)

    def lookup_schema(
        self, subject_name: str, schema: Schema, *rest: object, **ignored: object
    ) -> RegisteredSchema:
        """The registration of a schema. Raises SchemaRegistryError."""
        for found in self._registry.versions(subject_name):
            if found.schema.comparable() == schema.comparable():
                return found
        raise SchemaRegistryError(
            404, SCHEMA_NOT_FOUND, f"Subject {subject_name!r} does not have this schema."
        )

    def get_latest_version(self, subject_name: str, *rest: object) -> RegisteredSchema:
        """The newest registration of a subject. Raises SchemaRegistryError."""
        return self._registry.versions(subject_name)[-1]

    def get_version(self, subject_name: str, version: int, *rest: object) -> RegisteredSchema:
        """A registration of a subject. Raises SchemaRegistryError."""
        for found in self._registry.versions(subject_name):
            if found.version == version:
                return found
        raise SchemaRegistryError(404, 40402, f"Subject {subject_name!r} has no version {version}.")

    def get_versions(self, subject_name: str) -> list[int]:
        """The versions of a subject. Raises SchemaRegistryError."""
        return [found.version for found in self._registry.versions(subject_name)]

    def get_subjects(self) -> list[str]:
        """All subjects."""
        return self._registry.subjects()

    def close(self) -> None:
        """Free what is open; a later call opens it again."""
        self._registry.close()
