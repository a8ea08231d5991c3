"""Exports the listener's reports as Prometheus metrics; prometheus-client is an optional extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_sink.reports import QueryReport
from txnlog.monitoring.prometheus import MetricsServer, prometheus_client

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

COMMIT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class PrometheusMetrics:
    """Metrics of all queries, by label `query`: a query's name, else its id.

    They are registered in `registry`, else in a new one; with `port` (0: any free port) a server
    at `address` exposes it. Raises ConfigError without prometheus-client, and for an address that
    cannot be listened at.
    """

    def __init__(self, registry: CollectorRegistry | None, port: int | None, address: str) -> None:
        client = prometheus_client()
        registry = client.CollectorRegistry() if registry is None else registry
        query = ["query"]
        self._lag = client.Gauge(
            "txnlog_lag_records",
            "Records in the topic that the query has not read yet",
            ["query", "topic", "partition"],
            registry=registry,
        )
        self._rate = client.Gauge(
            "txnlog_processed_rows_per_second",
            "Rows per second of the newest micro-batch",
            query,
            registry=registry,
        )
        self._phase = client.Gauge(
            "txnlog_commit_phase_seconds",
            "Time of each phase of the newest commit that is measured",
            ["query", "phase"],
            registry=registry,
        )
        self._rows = client.Counter(
            "txnlog_input_rows", "Rows read by the query", query, registry=registry
        )
        self._transactions = client.Counter(
            "txnlog_transactions", "Transactions committed by the query", query, registry=registry
        )
        self._commit = client.Histogram(
            "txnlog_commit_seconds",
            "Time of a commit in the driver",
            query,
            buckets=COMMIT_SECONDS,
            registry=registry,
        )
        self._server = None if port is None else MetricsServer(registry, address, port)

    @property
    def port(self) -> int | None:
        """The port of the server; None without one."""
        return None if self._server is None else self._server.port

    def update(self, report: QueryReport, *, transactions: int, is_new: bool) -> None:
        """Update from a report; `transactions` were added, `is_new`: it has a new transaction."""
        query = report.label
        for topic, partitions in report.lag.items():
            for partition, records in partitions.items():
                self._lag.labels(query, topic, str(partition)).set(records)
        self._rate.labels(query).set(report.processed_rows_per_second)
        self._rows.labels(query).inc(report.input_rows)
        self._transactions.labels(query).inc(max(0, transactions))
        if report.transaction is not None and is_new:
            phases_ms = report.transaction.phases_ms
            for phase, duration_ms in phases_ms.items():
                self._phase.labels(query, phase).set(duration_ms / 1000)
            if "total" in phases_ms:
                self._commit.labels(query).observe(phases_ms["total"] / 1000)

    def forget(self, report: QueryReport) -> None:
        """Remove the gauges of a query that ended, which would never change; counters remain."""
        for gauge in (self._lag, self._rate, self._phase):
            gauge.remove_by_labels({"query": report.label})

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.close()
