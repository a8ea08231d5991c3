"""Reads a root when Prometheus asks for its metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from txnlog.admin.looks import RememberedLooks
from txnlog.admin.root_state import read_root
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.monitoring.prometheus import PREFIX, prometheus_client
from txnlog.monitoring.root_metrics import Family, root_families
from txnlog.process.version import VERSION
from txnlog.protocol.moments import PartitionMoment
from txnlog.protocol.panels.topics import count_partitions

READ_MS_MIN = 10_000
"""Scrapes in this time after a reading get the same metrics: the root pays for one consumer."""


class RootCollector:
    """The metrics of a root, to be registered; reads it when it is asked, and only then.

    A root that cannot be read has `txnlog_up` 0 and nothing else. Any thread may ask.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._client = prometheus_client()
        self._cluster = cluster
        self._looks = RememberedLooks(cluster)
        self._clock = cluster.store.clock
        self._lock = threading.Lock()
        self._due_ms: int | None = None
        self._families: list[Family] = []
        self._figures: dict[str, tuple[int, list[PartitionMoment]]] = {}

    def describe(self) -> list[Any]:
        """Nothing: to register a collector is no reason to read the root."""
        return []

    def collect(self) -> Iterator[Any]:
        """Gauges of prometheus-client."""
        for family in self.families():
            labels = list(family.labels)
            gauge = self._client.metrics_core.GaugeMetricFamily(
                PREFIX + family.name, family.text, labels=labels
            )
            for values, number in family.samples:
                gauge.add_metric(list(values), float(number))
            yield gauge

    def families(self) -> list[Family]:
        """The metrics, at most READ_MS_MIN old."""
        with self._lock:
            if self._due_ms is None or self._clock.boot_ms() >= self._due_ms:
                self._families = self._read()
                self._due_ms = self._clock.boot_ms() + READ_MS_MIN
            return self._families

    def _read(self) -> list[Family]:
        begun_ms = self._clock.boot_ms()
        try:
            state = read_root(self._cluster, looks=self._looks)
            there = [name for name, topic in state.topics.items() if not topic.is_deleted]
            found = list(root_families(state, {name: self._partitions(name) for name in there}))
        except TxnLogError as error:
            self._cluster.store.retries.failed(
                "metrics", "Reading the root's metrics", error, until="at the next scrape"
            )
            return [_up(False)]
        self._cluster.store.retries.worked("metrics")
        duration_ms = self._clock.boot_ms() - begun_ms
        about = [VERSION, self._cluster.cluster_id]
        return [
            _up(True),
            Family("cluster_info", "What is read", ["version", "cluster_id"], [(about, 1)]),
            Family("read_seconds", "Time of the last reading", [], [([], duration_ms / 1000)]),
            *found,
        ]

    def _partitions(self, topic: str) -> Sequence[PartitionMoment]:
        """Counted again when the topic has changed."""
        log = self._cluster.topic_log(topic)
        known = self._figures.get(topic)
        if known is None or known[0] != log.log.version:
            known = self._figures[topic] = log.log.version, count_partitions(log.view)
        return known[1]


def _up(is_up: bool) -> Family:
    return Family("up", "1 if the root could be read", [], [([], is_up)])
