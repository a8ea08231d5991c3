"""confluent-kafka's names on a txnlog root: change the import, give the root as bootstrap.servers.

    from txnlog.compat.confluent_kafka import Consumer, KafkaException, Producer

Settings, calls, callbacks and errors are those of confluent-kafka 2; docs/clients.md says what
differs. A transactional producer publishes eagerly unless `transaction.publish` says otherwise, so
that records are delivered before their transaction ends, as in Kafka.
"""

from txnlog.admin import ConsumerGroupState, ConsumerGroupTopicPartitions, IsolationLevel
from txnlog.compat.confluent_kafka.consumer import Consumer
from txnlog.compat.confluent_kafka.deserializing_consumer import DeserializingConsumer
from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException
from txnlog.compat.confluent_kafka.model import (
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupType,
    Node,
    TopicCollection,
    TopicPartitionInfo,
    libversion,
    version,
)
from txnlog.compat.confluent_kafka.producer import Producer
from txnlog.compat.confluent_kafka.security import ElectionType
from txnlog.compat.confluent_kafka.serializing_producer import SerializingProducer
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
