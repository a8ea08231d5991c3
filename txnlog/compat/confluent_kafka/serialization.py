"""confluent_kafka.serialization: strings, 32-bit integers and doubles, in Kafka's formats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Any

from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException
from txnlog.compat.confluent_kafka.error_codes import CODES
from txnlog.settings.arguments import shown

__all__ = [
    "Deserializer",
    "DoubleDeserializer",
    "DoubleSerializer",
    "IntegerDeserializer",
    "IntegerSerializer",
    "MessageField",
    "SerializationContext",
    "SerializationError",
    "Serializer",
    "StringDeserializer",
    "StringSerializer",
]


class MessageField(str, Enum):
    """Which part of a record is serialized."""

    NONE = "none"
    KEY = "key"
    VALUE = "value"

    def __str__(self) -> str:
        return str(self.value)


class SerializationContext:
    """What a serializer may want to know: the topic, the part of the record, its headers."""

    def __init__(
        self,
        topic: str | None,
        field: MessageField | str,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


class SerializationError(KafkaException):
    """A value that its serializer does not take, or bytes that its deserializer does not read."""

    def __init__(self, reason: object) -> None:
        super().__init__(KafkaError(CODES["_INVALID_TYPE"], str(reason)))

    def __str__(self) -> str:
        return str(self.args[0].str())


class Serializer:
    """A callable from an object and its SerializationContext to bytes."""

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The bytes of an object; None for None. Raises SerializationError."""
        raise NotImplementedError


class Deserializer:
    """A callable from bytes and their SerializationContext to an object."""

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The object of bytes; None for None. Raises SerializationError."""
        raise NotImplementedError


class StringSerializer(Serializer):
    """Text in a codec."""

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    def __call__(self, obj: str | None, ctx: SerializationContext | None = None) -> bytes | None:
        try:
            return None if obj is None else obj.encode(self.codec)
        except (AttributeError, UnicodeError) as error:
            raise SerializationError(f"{shown(obj)} is no text in {self.codec}: {error}") from error


class StringDeserializer(Deserializer):
    """Text in a codec."""

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> str | None:
        try:
            return None if value is None else value.decode(self.codec)
        except UnicodeError as error:
            raise SerializationError(
                f"{shown(value)} is no text in {self.codec}: {error}"
            ) from error


class _Number:
    """A number in a format of struct."""

    _format = ">i"
    _what = "a 32-bit integer"

    def _pack(self, number: Any) -> bytes | None:
        try:
            return None if number is None else struct.pack(self._format, number)
        except struct.error as error:
            raise SerializationError(f"{shown(number)} is not {self._what}: {error}") from error

    def _unpack(self, data: bytes | None) -> Any:
        try:
            return None if data is None else struct.unpack(self._format, data)[0]
        except struct.error as error:
            raise SerializationError(
                f"{len(data or b'')} bytes are not {self._what}: {error}"
            ) from error


class IntegerSerializer(_Number, Serializer):
    """A 32-bit integer, big-endian."""

    def __call__(self, obj: int | None, ctx: SerializationContext | None = None) -> bytes | None:
        return self._pack(obj)


class IntegerDeserializer(_Number, Deserializer):
    """A 32-bit integer, big-endian."""

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> int | None:
        found: int | None = self._unpack(value)
        return found


class DoubleSerializer(_Number, Serializer):
    """A 64-bit floating-point number, big-endian."""

    _format, _what = ">d", "a 64-bit float"

    def __call__(self, obj: float | None, ctx: SerializationContext | None = None) -> bytes | None:
        return self._pack(obj)


class DoubleDeserializer(_Number, Deserializer):
    """A 64-bit floating-point number, big-endian."""

    _format, _what = ">d", "a 64-bit float"

    def __call__(
        self, value: bytes | None, ctx: SerializationContext | None = None
    ) -> float | None:
        found: float | None = self._unpack(value)
        return found
