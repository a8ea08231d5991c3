"""A producer's settings, and the cluster that they name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import Config, parse_config
from txnlog.settings.roots import redacted_url

logger = logging.getLogger("txnlog")


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
    """The cluster, which is created unless the settings say otherwise; then it is logged.

    Raises ConfigError when there is none, and what Cluster.open raises.
    """
    cluster = Cluster.open(
        config.root,
        config.storage,
        create=config.get("auto.create.topics.enable") and config.get("txnlog.create"),
        shards=config.get("transaction.state.log.num.partitions"),
        offsets_shards=config.get("offsets.topic.num.partitions"),
    )
    if cluster.is_new:
        logger.warning(
            "There was no cluster at %s: a new, empty one was created. If the root is a mistake, "
            "delete it; txnlog.create=false makes a missing cluster an error.",
            redacted_url(config.root),
        )
    return cluster


def is_deferred(config: Config) -> bool:
    """Whether records stay out of their topics until their transaction commits."""
    is_transactional = config.get("transactional.id") is not None
    return is_transactional and config.get("transaction.publish") == "deferred"
