"""confluent_kafka.serialization: confluent-kafka's own, and the errors of clients that use it.

These are both errors of its serializers and KafkaExceptions of `txnlog.compat.confluent_kafka`. A
serializer that a program calls itself raises confluent-kafka's SerializationError alone.
"""

from __future__ import annotations

from typing import Any

from txnlog.compat.confluent_kafka.confluent import load
from txnlog.compat.confluent_kafka.error import ConsumeError, KafkaError, ProduceError
from txnlog.compat.confluent_kafka.error_codes import CODES

_theirs = load("serialization")
__all__: list[str] = _theirs.__all__


class KeyDeserializationError(ConsumeError, _theirs.SerializationError):  # type: ignore[misc, name-defined]
    """The key of `kafka_message` cannot be deserialized; `exception` says why."""

    def __init__(self, exception: Exception, kafka_message: Any) -> None:
        error = KafkaError(CODES["_KEY_DESERIALIZATION"], str(exception))
        super().__init__(error, exception, kafka_message)


class ValueDeserializationError(ConsumeError, _theirs.SerializationError):  # type: ignore[misc, name-defined]
    """The value of `kafka_message` cannot be deserialized; `exception` says why."""

    def __init__(self, exception: Exception, kafka_message: Any) -> None:
        error = KafkaError(CODES["_VALUE_DESERIALIZATION"], str(exception))
        super().__init__(error, exception, kafka_message)


class KeySerializationError(ProduceError, _theirs.SerializationError):  # type: ignore[misc, name-defined]
    """The key cannot be serialized; `exception` says why."""

    def __init__(self, exception: Exception) -> None:
        super().__init__(KafkaError(CODES["_KEY_SERIALIZATION"], str(exception)), exception)


class ValueSerializationError(ProduceError, _theirs.SerializationError):  # type: ignore[misc, name-defined]
    """The value cannot be serialized; `exception` says why."""

    def __init__(self, exception: Exception) -> None:
        super().__init__(KafkaError(CODES["_VALUE_SERIALIZATION"], str(exception)), exception)


def __getattr__(name: str) -> Any:
    return getattr(_theirs, name)
