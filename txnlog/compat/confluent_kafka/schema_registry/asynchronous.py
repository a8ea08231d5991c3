"""A schema registry for asyncio: the same client and serializers, called in worker threads.

As in confluent-kafka a serializer is awaited when it is made, and when it is called:

    serialize = await AsyncAvroSerializer(AsyncSchemaRegistryClient({"url": root}), schema)
    data = await serialize(value, SerializationContext(topic, MessageField.VALUE))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import wraps
from typing import Any, ClassVar, TypeVar

from txnlog.compat.confluent_kafka.schema_registry.client import SchemaRegistryClient
from txnlog.compat.confluent_kafka.serialization import SerializationContext
from txnlog.process.closing import AwaitedAtTheEnd

T = TypeVar("T")
S = TypeVar("S", bound="AsyncSerde")


def _in_a_thread(call: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """A method of SchemaRegistryClient, as one of AsyncSchemaRegistryClient."""

    @wraps(call)
    async def called(self: AsyncSchemaRegistryClient, *args: Any, **named: Any) -> T:
        return await asyncio.to_thread(call, self.client, *args, **named)

    return called


class AsyncSchemaRegistryClient(AwaitedAtTheEnd):
    """SchemaRegistryClient, with coroutines."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.client = SchemaRegistryClient(conf)

    register_schema = _in_a_thread(SchemaRegistryClient.register_schema)
    register_schema_full_response = _in_a_thread(SchemaRegistryClient.register_schema_full_response)
    get_schema = _in_a_thread(SchemaRegistryClient.get_schema)
    lookup_schema = _in_a_thread(SchemaRegistryClient.lookup_schema)
    get_latest_version = _in_a_thread(SchemaRegistryClient.get_latest_version)
    get_version = _in_a_thread(SchemaRegistryClient.get_version)
    get_versions = _in_a_thread(SchemaRegistryClient.get_versions)
    get_subjects = _in_a_thread(SchemaRegistryClient.get_subjects)
    close = _in_a_thread(SchemaRegistryClient.close)


class AsyncSerde:
    """A serializer or deserializer, made with the same arguments, whose call is a coroutine."""

    made_by: ClassVar[Callable[..., Callable[..., Any]]]

    def __init__(self, *args: Any, **named: Any) -> None:
        given = {name: _blocking(value) for name, value in named.items()}
        self._serde = self.made_by(*map(_blocking, args), **given)

    def __await__(self: S) -> Generator[None, None, S]:
        """Itself: nothing is waited for before the first call."""
        yield from ()
        return self

    async def __call__(self, value: Any, ctx: SerializationContext | None = None) -> Any:
        """As the call of the one that it wraps. Raises SerializationError, SchemaRegistryError."""
        return await asyncio.to_thread(self._serde, value, ctx)


def _blocking(given: Any) -> Any:
    return given.client if isinstance(given, AsyncSchemaRegistryClient) else given
