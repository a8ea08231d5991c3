"""confluent-kafka's names on a txnlog root: change the import, give the root as bootstrap.servers.

    from txnlog.compat.confluent_kafka import Consumer, KafkaException, Producer

Settings, calls, callbacks and errors are those of confluent-kafka 2; docs/clients.md says what
differs. A transactional producer publishes eagerly unless `transaction.publish` says otherwise, so
that records are delivered before their transaction ends, as in Kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txnlog.admin import ConsumerGroupState, ConsumerGroupTopicPartitions, IsolationLevel
from txnlog.compat.confluent_kafka.consumer import Consumer
from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException
from txnlog.compat.confluent_kafka.model import (
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupType,
    ElectionType,
    Node,
    TopicCollection,
    TopicPartitionInfo,
    libversion,
    version,
)
from txnlog.compat.confluent_kafka.producer import Producer
from txnlog.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    TopicPartition,
)
from txnlog.process.version import VERSION as __version__

if TYPE_CHECKING:
    from txnlog.compat.confluent_kafka.deserializing_consumer import DeserializingConsumer
    from txnlog.compat.confluent_kafka.serializing_producer import SerializingProducer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeserializingConsumer",
    "ElectionType",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Node",
    "Producer",
    "SerializingProducer",
    "TopicCollection",
    "TopicPartition",
    "TopicPartitionInfo",
    "__version__",
    "libversion",
    "version",
]

_OF_SERIALIZERS = {
    "DeserializingConsumer": "deserializing_consumer",
    "SerializingProducer": "serializing_producer",
}


def __getattr__(name: str) -> Any:
    """They load confluent-kafka's own package, which no other client needs."""
    if name in _OF_SERIALIZERS:
        return getattr(import_module(f"{__name__}.{_OF_SERIALIZERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
