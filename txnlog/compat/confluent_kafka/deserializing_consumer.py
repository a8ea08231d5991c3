"""confluent_kafka.DeserializingConsumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from txnlog.compat.confluent_kafka.consumer import Consumer
from txnlog.compat.confluent_kafka.error import ConsumeError
from txnlog.compat.confluent_kafka.serialization import (
    KeyDeserializationError,
    MessageField,
    SerializationContext,
    ValueDeserializationError,
)
from txnlog.messages import Message


class DeserializingConsumer(Consumer):
    """A Consumer whose settings `key.deserializer` and `value.deserializer` decode its records."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        config = dict(conf)
        self._key_deserializer = config.pop("key.deserializer", None)
        self._value_deserializer = config.pop("value.deserializer", None)
        super().__init__(config)

    def poll(self, timeout: float | None = -1) -> Message | None:
        """The next message, its key and value decoded.

        Raises KeyDeserializationError, ValueDeserializationError with the raw message, ConsumeError
        for a message with an error.
        """
        message = super().poll(timeout)
        if message is None:
            return None
        failed: Any = message.error()
        if failed is not None:
            raise ConsumeError(failed, kafka_message=message)
        key, value = message.key(), message.value()
        # The key first: its deserializer may keep what the value's needs.
        ctx = SerializationContext(message.topic(), MessageField.KEY, message.headers())
        if self._key_deserializer is not None:
            try:
                key = self._key_deserializer(key, ctx)
            except Exception as error:
                raise KeyDeserializationError(error, message) from error
        ctx.field = MessageField.VALUE
        if self._value_deserializer is not None:
            try:
                value = self._value_deserializer(value, ctx)
            except Exception as error:
                raise ValueDeserializationError(error, message) from error
        message.set_key(key)
        message.set_value(value)
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> NoReturn:
        """Not supported, as in confluent-kafka: use poll()."""
        raise NotImplementedError("A DeserializingConsumer has no consume(): use poll().")
