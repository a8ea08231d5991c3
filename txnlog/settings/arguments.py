"""Validation of arguments of public calls: integers, strings, topics, partitions, time-outs.

Every public call validates its arguments here before anything is written, because all processes
must be able to read what one writes (D64). A wrong type is a TypeError, as in confluent-kafka; an
invalid value is the error that the caller chooses, ConfigError by default. Both messages have the
name of the argument, its value, and the allowed values.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from txnlog.errors import ConfigError, OffsetMetadataTooLargeError, TxnLogError
from txnlog.messages import PARTITION_UA, ConsumerGroupMetadata, TopicPartition
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.topics import check_topic_name

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
STRING_BYTES_MAX: Final = 2**15 - 1
"""The length of a string in Kafka's protocol is a signed 16-bit integer."""

_SHOWN_MAX: Final = 80

Refusal = type[TxnLogError]


def shown(value: object) -> str:
    """The value for an error message: its repr, truncated."""
    try:
        full = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return full if len(full) <= _SHOWN_MAX else f"{full[:_SHOWN_MAX]}... ({len(full)} characters)"


def integer(
    name: str,
    value: Any,
    *,
    least: int = INT64_MIN,
    most: int = INT64_MAX,
    refusal: Refusal = ConfigError,
) -> int:
    """An exact int, also from numpy, but not from a bool. Raises TypeError, `refusal`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        # int.__index__ converts subclasses of int: JSON encodes some of them differently.
        number = int.__index__(operator.index(value))
    except Exception:
        raise TypeError(f"{name} must be an int, not {_kind(value)}: {shown(value)}.") from None
    if not least <= number <= most:
        raise refusal(f"{name} is {shown(number)}: give an integer from {least} to {most}.")
    return number


def text(
    name: str,
    value: Any,
    *,
    bytes_max: int = STRING_BYTES_MAX,
    may_be_blank: bool = False,
    refusal: Refusal = ConfigError,
) -> str:
    """An exact str of up to `bytes_max` bytes of UTF-8. Raises TypeError, `refusal`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {_kind(value)}: {shown(value)}.")
    exact = str.__str__(value)
    size_bytes = len(utf8(name, exact, refusal=refusal))
    if size_bytes > bytes_max:
        raise refusal(
            f"{name} has {size_bytes} bytes of UTF-8: give at most {bytes_max}. It is "
            f"{shown(exact)}."
        )
    if not may_be_blank and not exact.strip():
        raise refusal(f"{name} is {shown(exact)}: give at least one visible character.")
    return exact


def utf8(name: str, value: str, *, refusal: Refusal = ConfigError) -> bytes:
    """The UTF-8 of a str. Raises `refusal` for a lone surrogate, which has none."""
    try:
        return str.encode(value)
    except UnicodeEncodeError:
        raise refusal(
            f"{name} is {shown(value)}, which contains half of a surrogate pair and cannot be "
            "encoded as UTF-8. Give whole characters, or bytes where they are allowed."
        ) from None


def identifier(name: str, value: Any) -> str:
    """An id of Kafka: group.id, transactional.id, ... Raises TypeError, ConfigError."""
    return text(name, value)


def flag(name: str, value: Any) -> bool:
    """True or False. Raises TypeError."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {_kind(value)}: {shown(value)}.")
    return bool(value)


def function(name: str, value: Any) -> Any:
    """A function, or None. Raises TypeError."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, not {_kind(value)}: {shown(value)}.")
    return value


def timeout_s(name: str, value: Any) -> float | None:
    """Seconds as a float, None for no time-out; limited to threading.TIMEOUT_MAX.

    Raises TypeError, ConfigError for a NaN.
    """
    if value is None:
        return None
    try:
        if isinstance(value, (bool, np.bool_, str, bytes, bytearray)):
            raise TypeError
        seconds = float(value)
    except OverflowError:
        return threading.TIMEOUT_MAX if value > 0 else -1.0
    except Exception:
        raise TypeError(
            f"{name} must be a number of seconds or None, not {_kind(value)}: {shown(value)}."
        ) from None
    if seconds != seconds:
        raise ConfigError(f"{name} is nan: give a number of seconds, or None.")
    return min(seconds, threading.TIMEOUT_MAX)


# --- Topics and partitions ------------------------------------------------------------------------


def topic(name: str, value: Any) -> str:
    """A valid topic name. Raises TypeError, InvalidTopicError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {_kind(value)}: {shown(value)}.")
    return check_topic_name(str.__str__(value))


def topic_partition(
    name: str,
    value: Any,
    *,
    partition_least: int = PARTITION_UA,
    offset_least: int = INT64_MIN,
    metadata_bytes_max: int = INT32_MAX,
) -> TopicPartition:
    """A validated copy of a TopicPartition, or of an object with the same attributes.

    Its partition is one that a topic may have, as readers of rows demand (or -1), its offset fits
    Kafka's type, and both are not below the given minima; each call checks itself which OFFSET_*
    it allows. Raises TypeError, InvalidTopicError, ConfigError,
    OffsetMetadataTooLargeError.
    """
    try:
        fields = value.topic, value.partition, value.offset, value.metadata
    except Exception:
        raise TypeError(
            f"{name} must be a TopicPartition, not {_kind(value)}: {shown(value)}."
        ) from None
    topic_name = topic(f"{name}.topic", fields[0])
    number = integer(f"{name}.partition", fields[1], least=partition_least, most=PARTITIONS_MAX - 1)
    offset = integer(f"{name}.offset of {topic_name}-{number}", fields[2], least=offset_least)
    metadata = fields[3]
    if metadata is not None:
        metadata = text(
            f"{name}.metadata of {topic_name}-{number} (offset.metadata.max.bytes)",
            metadata,
            bytes_max=metadata_bytes_max,
            may_be_blank=True,
            refusal=OffsetMetadataTooLargeError,
        )
    return TopicPartition(topic_name, number, offset, metadata)


def partition_values(name: str, given: Any) -> list[Mapping[str, object]] | None:
    """Partitions of a table by the values of their columns; None for all of it."""
    if given is None:
        return None

    def values(where: str, one: Any) -> Mapping[str, object]:
        known = one_of(where, one, Mapping)
        return {text(f"a column of {where}", column): known[column] for column in known}

    return each(name, given, values)


def topic_partitions(name: str, given: Any, **limits: int) -> list[TopicPartition]:
    """Validated copies of TopicPartitions; `limits` are those of topic_partition."""
    return each(name, given, lambda at, value: topic_partition(at, value, **limits))


def group_metadata(name: str, value: Any) -> ConsumerGroupMetadata:
    """A validated copy of a ConsumerGroupMetadata. Raises TypeError, ConfigError."""
    try:
        fields = value.group_id, value.generation, value.member_id
    except Exception:
        raise TypeError(
            f"{name} must be a result of Consumer.consumer_group_metadata(), not {_kind(value)}: "
            f"{shown(value)}."
        ) from None
    return ConsumerGroupMetadata(
        identifier(f"{name}.group_id", fields[0]),
        integer(f"{name}.generation", fields[1]),
        # A client.id followed by a UUID.
        text(f"{name}.member_id", fields[2], bytes_max=2 * STRING_BYTES_MAX, may_be_blank=True),
    )


def each(name: str, given: Any, check: Callable[[str, Any], Any]) -> list[Any]:
    """A list of validated items, each named `name[<index>]`. Raises TypeError as `items`."""
    return [check(f"{name}[{at}]", value) for at, value in enumerate(items(name, given))]


def items(name: str, given: Any) -> list[Any]:
    """The items of a list. Raises TypeError for what cannot be iterated, and for a string.

    A string is a sequence of its letters: `delete_topics("ab")` would delete topics a and b.
    """
    if not isinstance(given, (str, bytes, bytearray)):
        with suppress(Exception):
            return list(given)
    raise TypeError(f"{name} must be a list, not {_kind(given)}: {shown(given)}.")


def one_of(name: str, value: Any, kind: type) -> Any:
    """An instance of a class. Raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {_kind(value)}: {shown(value)}.")
    return value


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
