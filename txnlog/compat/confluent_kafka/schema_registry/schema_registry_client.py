"""confluent-kafka's clients of a schema registry, which also take a root as their `url`.

Then the registry is in a topic there (D114), and its TopicRegistry answers their requests in the
place of a server. All else is confluent-kafka's: methods, caches, errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from txnlog.compat.confluent_kafka.confluent import load
from txnlog.compat.confluent_kafka.topic_registry import topic_registry

_theirs = load("schema_registry.schema_registry_client")


class SchemaRegistryClient(_theirs.SchemaRegistryClient):  # type: ignore[misc, name-defined]
    """confluent-kafka's client of a registry server, or of the topic in a root."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._topic, others = topic_registry(conf)
        super().__init__(others)
        if self._topic is not None:
            self._conf = conf
            self._rest_client.send_request = self._topic.send_request

    def close(self) -> None:
        """Free what is open; with a root, a later call opens it again."""
        super().close()
        if self._topic is not None:
            self._topic.close()


class AsyncSchemaRegistryClient(_theirs.AsyncSchemaRegistryClient):  # type: ignore[misc, name-defined]
    """The same for asyncio; the topic is read and written in worker threads."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._topic, others = topic_registry(conf)
        super().__init__(others)
        if self._topic is not None:
            self._conf = conf
            ask: Callable[..., Any] = self._topic.send_request
            self._rest_client.send_request = partial(asyncio.to_thread, ask)

    async def aclose(self) -> None:
        """Free what is open; with a root, a later call opens it again."""
        await super().aclose()
        if self._topic is not None:
            await asyncio.to_thread(self._topic.close)


def __getattr__(name: str) -> Any:
    return getattr(_theirs, name)
