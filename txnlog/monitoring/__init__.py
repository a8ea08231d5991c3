"""Metrics for Prometheus, of a root and of this process's clients; needs `txnlog[prometheus]`."""

from txnlog.monitoring.clients import ClientCollector
from txnlog.monitoring.exporter import RootCollector
from txnlog.process.client_metrics import Metric

__all__ = ["ClientCollector", "Metric", "RootCollector"]
