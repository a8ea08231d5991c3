"""A producer's settings, and the cluster that they name."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import Config, parse_config


def parse_producer_config(config: Mapping[str, object]) -> Config:
    """Raises ConfigError for unknown settings, wrong values, and settings that contradict."""
    parsed = parse_config(config, "producer")
    if parsed.get("transactional.id") and not parsed.get("enable.idempotence"):
        raise ConfigError(
            "enable.idempotence=false and transactional.id contradict each other: leave the "
            "former out.",
            option="enable.idempotence",
        )
    return parsed


def open_cluster(config: Config) -> Cluster:
    return Cluster.open(
        config.root,
        config.storage,
        create=config.get("auto.create.topics.enable"),
        shards=config.get("transaction.state.log.num.partitions"),
        offsets_shards=config.get("offsets.topic.num.partitions"),
    )


def is_deferred(config: Config) -> bool:
    """Whether records stay out of their topics until their transaction commits."""
    is_transactional = config.get("transactional.id") is not None
    return is_transactional and config.get("transaction.publish") == "deferred"
