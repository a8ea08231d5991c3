"""Validated copies of an AdminClient's arguments; if one is invalid, nothing is written.

A wrong type, or a value outside Kafka's types, is an error of the call. An error of one topic,
group or id in the cluster is raised by its own future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from txnlog.admin.descriptions import (
    AbortTransactionSpec,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupTopicPartitions,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from txnlog.errors import InvalidPartitionsError
from txnlog.messages import TopicPartition
from txnlog.settings import arguments
from txnlog.settings.arguments import INT32_MAX, shown
from txnlog.settings.values import setting_text

_KINDS = ("earliest", "latest", "timestamp")


def new_topic(name: str, value: Any) -> NewTopic:
    """Raises TypeError, InvalidPartitionsError, ConfigError."""
    given = arguments.one_of(name, value, NewTopic)
    count = arguments.integer(
        f"{name}.num_partitions",
        given.num_partitions,
        most=INT32_MAX,
        refusal=InvalidPartitionsError,
    )
    arguments.integer(f"{name}.replication_factor", given.replication_factor)
    config = arguments.one_of(f"{name}.config", given.config, Mapping)
    texts: dict[str, object] = {
        arguments.text(f"{name}.config", key): setting_text(key, item)
        for key, item in config.items()
        if item is not None
    }
    return NewTopic(arguments.text(f"{name}.topic", given.topic), count, config=texts)


def new_count(name: str, value: Any) -> NewPartitions:
    """Raises TypeError, InvalidPartitionsError."""
    given = arguments.one_of(name, value, NewPartitions)
    count = arguments.integer(
        f"{name}.new_total_count",
        given.new_total_count,
        most=INT32_MAX,
        refusal=InvalidPartitionsError,
    )
    return NewPartitions(arguments.text(f"{name}.topic", given.topic), count)


def config_resource(name: str, value: Any) -> ConfigResource:
    """Raises TypeError, ConfigError."""
    given = arguments.one_of(name, value, ConfigResource)
    restype = arguments.one_of(f"{name}.restype", given.restype, ResourceType)
    is_root = restype is ResourceType.BROKER
    return ConfigResource(
        restype,
        arguments.text(f"{name}.name", given.name, may_be_blank=is_root),
        arguments.each(f"{name}.incremental_configs", given.incremental_configs, _config_entry),
    )


def _config_entry(name: str, value: Any) -> ConfigEntry:
    given = arguments.one_of(name, value, ConfigEntry)
    key = arguments.text(f"{name}.name", given.name)
    text = None if given.value is None else setting_text(key, given.value)
    operation = arguments.one_of(
        f"{name}.incremental_operation", given.incremental_operation, AlterConfigOpType
    )
    return ConfigEntry(key, text, operation)


def offset_specs(name: str, given: Any) -> dict[TopicPartition, OffsetSpec]:
    """Raises TypeError, InvalidTopicError, ConfigError."""
    specs = arguments.one_of(name, given, Mapping)
    checked = {}
    for asked, spec in specs.items():
        where = arguments.topic_partition(name, asked)
        kind = arguments.one_of(f"{name} of {where.topic}-{where.partition}", spec, OffsetSpec)
        if kind.kind not in _KINDS:
            raise TypeError(f"An OffsetSpec is one of {', '.join(_KINDS)}, not {shown(kind.kind)}.")
        checked[where] = OffsetSpec(
            kind.kind, arguments.integer(f"{name}.timestamp_ms", kind.timestamp_ms)
        )
    return checked


def transaction_or_spec(name: str, value: Any) -> str | AbortTransactionSpec:
    """Raises TypeError, InvalidTopicError, ConfigError."""
    if isinstance(value, str):
        return arguments.identifier(name, value)
    given = arguments.one_of(name, value, AbortTransactionSpec)
    return AbortTransactionSpec(
        topic_partition=arguments.topic_partition(f"{name}.topic_partition", given.topic_partition),
        producer_id=arguments.integer(f"{name}.producer_id", given.producer_id, least=0),
        producer_epoch=arguments.integer(f"{name}.producer_epoch", given.producer_epoch, least=0),
    )


def group_partitions(name: str, value: Any) -> ConsumerGroupTopicPartitions:
    """Raises TypeError, InvalidTopicError, ConfigError."""
    given = arguments.one_of(name, value, ConsumerGroupTopicPartitions)
    partitions = given.topic_partitions
    if partitions is not None:
        partitions = arguments.topic_partitions(f"{name}.topic_partitions", partitions)
    return ConsumerGroupTopicPartitions(
        arguments.identifier(f"{name}.group_id", given.group_id), partitions
    )


def of_kind(kind: type[Enum]) -> Callable[[str, Any], Any]:
    """A check that a value is a member of an enum."""
    return lambda name, value: arguments.one_of(name, value, kind)
