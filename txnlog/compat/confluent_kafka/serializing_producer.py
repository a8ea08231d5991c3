"""confluent_kafka.SerializingProducer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txnlog.compat.confluent_kafka.producer import OnDelivery, Producer
from txnlog.compat.confluent_kafka.serialization import (
    KeySerializationError,
    MessageField,
    SerializationContext,
    ValueSerializationError,
)


class SerializingProducer(Producer):
    """A Producer whose settings `key.serializer` and `value.serializer` encode its records."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        config = dict(conf)
        self._key_serializer = config.pop("key.serializer", None)
        self._value_serializer = config.pop("value.serializer", None)
        super().__init__(config)

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialize key and value, and produce them; note the order: the key comes first.

        Raises KeySerializationError, ValueSerializationError, BufferError, KafkaException.
        """
        ctx = SerializationContext(topic, MessageField.KEY, headers)
        if self._key_serializer is not None:
            try:
                key = self._key_serializer(key, ctx)
            except Exception as error:
                raise KeySerializationError(error) from error
        ctx.field = MessageField.VALUE
        if self._value_serializer is not None:
            try:
                value = self._value_serializer(value, ctx)
            except Exception as error:
                raise ValueSerializationError(error) from error
        super().produce(topic, value, key, partition, on_delivery, timestamp, headers)
