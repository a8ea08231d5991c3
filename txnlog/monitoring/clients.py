"""The metrics of this process's producers and consumers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from txnlog.monitoring.prometheus import PREFIX, label, prometheus_client
from txnlog.process.client_metrics import Metric

_PARTS = ("-bucket", "-sum", "-count")


class Measured(Protocol):
    """A producer or a consumer, txnlog's own or a compatible one."""

    def metrics(self) -> list[Metric]: ...


class ClientCollector:
    """The metrics of clients, to be registered; asks them when it is asked, and only then.

    A client that nobody else refers to is forgotten. Of clients with one client.id the later ones
    are told apart by a number. Any thread may ask. Raises ConfigError without prometheus-client.
    """

    def __init__(self, *clients: Measured) -> None:
        self._client = prometheus_client()
        self._clients: list[weakref.ref[Any]] = []
        for one in clients:
            self.add(one)

    def add(self, client: Measured) -> None:
        """One more."""
        self._clients = [ref for ref in self._clients if ref() is not None]
        self._clients.append(weakref.ref(client))

    def describe(self) -> list[Any]:
        """Nothing: which metrics there are depends on the clients."""
        return []

    def collect(self) -> Iterator[Any]:
        """Counters, gauges and histograms of prometheus-client."""
        families: dict[str, Any] = {}
        seen: dict[tuple[str, str], int] = {}
        for ref in self._clients.copy():
            client = ref()
            found = [] if client is None else client.metrics()
            if found:
                name = found[0].group, found[0].tags["client-id"]
                seen[name] = seen.get(name, 0) + 1
            for metric in found:
                self._add(families, metric, seen[name])
        yield from families.values()

    def _add(self, families: dict[str, Any], metric: Metric, number: int) -> None:
        sample = name_of(metric)
        part = next((part for part in _PARTS if metric.name.endswith(part)), "")
        kind = "histogram" if part else "counter" if sample.endswith("_total") else "gauge"
        name = sample[: len(sample) - len(part)].removesuffix("_total")
        family = families.get(name)
        if family is None:
            text = "docs/monitoring.md"
            family = families[name] = self._client.Metric(name, text, kind)
        labels = {key.replace("-", "_"): label(value) for key, value in metric.tags.items()}
        if number > 1:
            labels["client_id"] += f"-{number}"
        family.add_sample(sample, labels, metric.value)


def name_of(metric: Metric) -> str:
    """txnlog_producer_record_send_total for record-send-total of producer-metrics."""
    return f"{PREFIX}{metric.group.removesuffix('-metrics')}_{metric.name}".replace("-", "_")
