"""Checks of what an application hands over: integers, texts, topics, partitions, time-outs.

Every public call checks its arguments here before anything is written, because what one process
writes every process must be able to read. A value of the wrong type is a TypeError, as in
confluent-kafka. A value of the right type that is not allowed is the error that the caller names,
ConfigError by default. Both name the argument, show its value, and say what to give.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from txnlog.errors import ConfigError, OffsetMetadataTooLargeError, TxnLogError
from txnlog.messages import PARTITION_UA, ConsumerGroupMetadata, TopicPartition
from txnlog.protocol.topics import check_topic_name

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
STRING_BYTES_MAX: Final = 2**15 - 1
"""Kafka's strings have a length of 16 bits with sign."""

_SHOWN_MAX: Final = 80

Refusal = type[TxnLogError]


def shown(value: object) -> str:
    """The value as an error message shows it: its repr, cut off where it is long."""
    try:
        told = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return told if len(told) <= _SHOWN_MAX else f"{told[:_SHOWN_MAX]}... ({len(told)} characters)"


def integer(
    name: str,
    value: Any,
    *,
    least: int = INT64_MIN,
    most: int = INT64_MAX,
    refusal: Refusal = ConfigError,
) -> int:
    """An exact int, also from numpy's integers. A bool is none. Raises TypeError, `refusal`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        # The second call makes an int of its subclasses: JSON encodes some of them differently.
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
    """An exact str of at most `bytes_max` bytes of UTF-8. Raises TypeError, `refusal`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {_kind(value)}: {shown(value)}.")
    found = str.__str__(value)
    size_bytes = len(utf8(name, found, refusal=refusal))
    if size_bytes > bytes_max:
        raise refusal(
            f"{name} has {size_bytes} bytes of UTF-8: give at most {bytes_max}. It is "
            f"{shown(found)}."
        )
    if not may_be_blank and not found.strip():
        raise refusal(f"{name} is {shown(found)}: give at least one visible character.")
    return found


def utf8(name: str, value: str, *, refusal: Refusal = ConfigError) -> bytes:
    """The UTF-8 of a str. Raises `refusal` for half of a surrogate pair, which has none."""
    try:
        return str.encode(value)
    except UnicodeEncodeError:
        raise refusal(
            f"{name} is {shown(value)}, which holds half of a surrogate pair and has no UTF-8. "
            "Give whole characters, or bytes where they are taken."
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
    """Seconds as a float, None for none; what is longer than a lock can wait becomes that.

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
    """The name of a topic. Raises TypeError, InvalidTopicError."""
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
    """A checked copy of a TopicPartition, or of an object with the same attributes.

    Its numbers fit Kafka's types and are the least ones given or more; which of OFFSET_* a call
    takes is for the call to say. Raises TypeError, InvalidTopicError, ConfigError,
    OffsetMetadataTooLargeError.
    """
    try:
        found = value.topic, value.partition, value.offset, value.metadata
    except Exception:
        raise TypeError(
            f"{name} must be a TopicPartition, not {_kind(value)}: {shown(value)}."
        ) from None
    where = topic(f"{name}.topic", found[0])
    number = integer(f"{name}.partition", found[1], least=partition_least, most=INT32_MAX)
    offset = integer(f"{name}.offset of {where}-{number}", found[2], least=offset_least)
    note = found[3]
    if note is not None:
        note = text(
            f"{name}.metadata of {where}-{number} (offset.metadata.max.bytes)",
            note,
            bytes_max=metadata_bytes_max,
            may_be_blank=True,
            refusal=OffsetMetadataTooLargeError,
        )
    return TopicPartition(where, number, offset, note)


def topic_partitions(name: str, given: Any, **limits: int) -> list[TopicPartition]:
    """Checked copies of several; `limits` are those of topic_partition."""
    return each(name, given, lambda at, value: topic_partition(at, value, **limits))


def group_metadata(name: str, value: Any) -> ConsumerGroupMetadata:
    """A checked copy of a ConsumerGroupMetadata. Raises TypeError, ConfigError."""
    try:
        found = value.group_id, value.generation, value.member_id
    except Exception:
        raise TypeError(
            f"{name} must be what Consumer.consumer_group_metadata() gives, not {_kind(value)}: "
            f"{shown(value)}."
        ) from None
    return ConsumerGroupMetadata(
        identifier(f"{name}.group_id", found[0]),
        integer(f"{name}.generation", found[1]),
        # Made of a client.id and a UUID.
        text(f"{name}.member_id", found[2], bytes_max=2 * STRING_BYTES_MAX, may_be_blank=True),
    )


def each(name: str, given: Any, check: Callable[[str, Any], Any]) -> list[Any]:
    """Every item checked, under the name `name[<index>]`. Raises TypeError for one text.

    A text is a sequence of its letters: `delete_topics("ab")` would mean topics a and b.
    """
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{name} must be a list, not {_kind(given)}: {shown(given)}.")
    return [check(f"{name}[{at}]", value) for at, value in enumerate(_items(name, given))]


def one_of(name: str, value: Any, kind: type) -> Any:
    """An instance of a class. Raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {_kind(value)}: {shown(value)}.")
    return value


def _items(name: str, given: Any) -> Iterable[Any]:
    try:
        return list(given)
    except Exception:
        raise TypeError(f"{name} must be a list, not {_kind(given)}: {shown(given)}.") from None


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
