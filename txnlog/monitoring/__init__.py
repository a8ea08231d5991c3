"""Metrics for Prometheus, of a root and of this process's clients; needs `txnlog[prometheus]`."""

from txnlog.monitoring.clients import ClientCollector
from txnlog.monitoring.exporter import RootCollector

__all__ = ["ClientCollector", "RootCollector"]
