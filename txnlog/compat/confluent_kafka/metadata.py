"""Metadata with KafkaErrors in the place of txnlog's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txnlog.compat.confluent_kafka.error import kafka_error
from txnlog.messages import ClusterMetadata, TopicMetadata


def cluster_metadata(found: ClusterMetadata) -> ClusterMetadata:
    """The same topics; `error` of one that cannot be described is a KafkaError."""
    topics = {
        name: topic if topic.error is None else _with_error(topic, topic.error)
        for name, topic in found.topics.items()
    }
    return replace(found, topics=topics)


def _with_error(topic: TopicMetadata, error: Exception) -> TopicMetadata:
    failed: Any = kafka_error(error)
    return replace(topic, error=failed)
