"""Names of Kafka's that have no effect here, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txnlog.settings.table import CLIENTS, SINK_STREAM, SOURCE_STREAM, SPARK, TOPIC, Scope

_OF_CLIENTS: Final = frozenset(
    {
        "acks", "allow.auto.create.topics", "check.crcs",
        "client.dns.lookup", "client.rack", "fetch.error.backoff.ms",
        "fetch.max.wait.ms", "fetch.message.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms",
        "group.protocol", "log_cb", "log_level", "max.in.flight",
        "max.in.flight.requests.per.connection", "max.partition.fetch.bytes",
        "message.send.max.retries", "oauth_cb", "plugin.library.paths",
        "queued.max.messages.kbytes", "queued.min.messages", "receive.message.max.bytes",
        "request.required.acks", "request.timeout.ms", "retries", "retry.backoff.max.ms",
        "retry.backoff.ms", "throttle_cb", "enable.metrics.push", "delivery.report.only.error",
        "enable.random.seed", "log.connection.close", "log.queue", "log.thread.name",
        "message.copy.max.bytes", "coordinator.query.interval.ms",
        "batch.num.messages", "enable.gapless.guarantee",
        "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes",
        "queue.buffering.max.messages", "sticky.partitioning.linger.ms", "builtin.features",
        "connections.max.idle.ms", "enabled_events", "fetch.queue.backoff.ms",
        "internal.termination.signal", "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.sparse",
        "api.version.", "bootstrap.", "broker.", "enable.sasl.", "enable.ssl.", "https.ca.",
        "metadata.broker.", "metadata.recovery.", "reconnect.", "sasl.", "security.", "socket.",
        "ssl.", "topic.metadata.refresh.fast.",
    }
)  # fmt: skip
_OF_TOPICS: Final = frozenset(
    {
        "compression.gzip.level", "compression.lz4.level", "compression.type",
        "compression.zstd.level", "file.delete.delay.ms", "flush.messages", "flush.ms",
        "follower.replication.throttled.replicas", "index.interval.bytes",
        "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
        "message.downconversion.enable", "message.format.version",
        "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms", "message.timestamp.type",
        "min.insync.replicas", "preallocate", "remote.storage.enable", "segment.index.bytes",
        "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
    }
)  # fmt: skip
WITHOUT_EFFECT: Final[Mapping[Scope, frozenset[str]]] = {
    **dict.fromkeys(
        SPARK, frozenset({"acks", "replication.factor", "fetchoffset.", "kafkaconsumer."})
    ),
    **dict.fromkeys(CLIENTS, _OF_CLIENTS),
    **dict.fromkeys(TOPIC, _OF_TOPICS),
}
"""What configures brokers, or the connection to them, in lower case; with a dot at its end, what
names begin with."""
ONLY_DEFAULTS: Final[Mapping[str, str]] = {
    "auto.commit.enable": "true",
    "background_event_cb": "",
    "closesocket_cb": "",
    "compression.codec": "inherit",
    "compression.level": "-1",
    "connect_cb": "",
    "consume.callback.max.messages": "0",
    "consume_cb": "",
    "default_topic_conf": "",
    "dr_cb": "",
    "dr_msg_cb": "",
    "group.protocol.type": "consumer",
    "group.remote.assignor": "",
    "interceptors": "",
    "msg_order_cmp": "",
    "oauthbearer_token_refresh_cb": "",
    "offset.store.method": "broker",
    "offset.store.path": ".",
    "offset.store.sync.interval.ms": "-1",
    "offset_commit_cb": "",
    "opaque": "",
    "open_cb": "",
    "partitioner": "consistent_random",
    "partitioner_cb": "",
    "produce.offset.report": "false",
    "queuing.strategy": "fifo",
    "rebalance_cb": "",
    "resolve_cb": "",
    "share.acknowledgement.mode": "implicit",
    "socket_cb": "",
    "ssl_ca": "",
    "ssl_certificate": "",
    "ssl_engine_callback_data": "",
    "ssl_key": "",
    "topic.blacklist": "",
}
"""Names of librdkafka with the default that is accepted, "" for none, and changes nothing here.

Other values are refused, or are those of a setting that has the same name here. The default of
`partitioner` gives keys other partitions there than here: see docs/confluent-kafka.md.
"""
_ABOUT_PARTITIONS: Final = (
    "Pass the number of partitions to create_topics or create_partitions (`txnlog topics alter "
    "--partitions`)."
)
REFUSED: Final[Mapping[str, tuple[frozenset[Scope], str]]] = {
    "key.deserializer": (SPARK, "Keys are binary; cast or decode the column key."),
    "value.deserializer": (SPARK, "Values are binary; cast or decode the column value."),
    "key.serializer": (SPARK, "Keys are written unchanged; encode the column key."),
    "value.serializer": (SPARK, "Values are written unchanged; encode the column value."),
    "interceptor.classes": (SPARK, "Records are never intercepted."),
    "enable.auto.commit": (
        SPARK,
        "The sink commits the offsets of its batch when both have a group.id.",
    ),
    "snapshot": (
        SOURCE_STREAM,
        "A snapshot is one state of the topics, which a batch reads: spark.read.",
    ),
    "transactional.id": (
        SINK_STREAM,
        "A query's transactional.id is its query id, and fencing by name is what group.id does.",
    ),
    "partitions": (TOPIC, _ABOUT_PARTITIONS),
    "num.partitions": (TOPIC, _ABOUT_PARTITIONS),
}
"""Names whose effect would silently be missing: for whom, and what to do instead.

Spark's Kafka connector rejects those that all of Spark has, too.
"""
