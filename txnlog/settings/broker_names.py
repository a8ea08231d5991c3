"""Names that configure Kafka's brokers, or the connection to them; they have no effect here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """The names, in lower case, that one table of settings ignores with a warning."""

    names: frozenset[str]
    prefixes: tuple[str, ...] = ()

    def __contains__(self, lowered: str) -> bool:
        return lowered in self.names or lowered.startswith(self.prefixes)


BROKERS_OF_SPARK: Final = BrokerNames(
    frozenset({"acks", "replication.factor"}), prefixes=("fetchoffset.", "kafkaconsumer.")
)
BROKERS_OF_CLIENTS: Final = BrokerNames(
    frozenset(
        {
            "acks", "allow.auto.create.topics", "api.version.request", "check.crcs",
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
        }
    ),
    prefixes=(
        "api.version.", "bootstrap.", "broker.", "enable.sasl.", "enable.ssl.", "https.ca.",
        "metadata.broker.", "metadata.recovery.", "reconnect.", "sasl.", "security.", "socket.",
        "ssl.", "topic.metadata.refresh.fast.",
    ),
)  # fmt: skip
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
BROKERS_OF_TOPICS: Final = BrokerNames(
    frozenset(
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
    )
)  # fmt: skip
