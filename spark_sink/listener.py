"""TxnLogListener: lag, transactions and commit times of streaming queries, at each progress event.

It runs in the process that called `spark.streams.addListener`, reads the events' JSON and the
transaction log. It writes nothing, and its errors never affect a query.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_sink.reports import QueryReport, report_of, txnlog_sources
from txnlog.cluster import Cluster
from txnlog.coordinator.history import CommittedTransaction, CommittedTransactions
from txnlog.errors import ConfigError, TxnLogError
from txnlog.settings.roots import checked_root
from txnlog.settings.storage_options import checked_types

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger("txnlog")


@dataclass(slots=True)
class _QueryProgress:
    """One query: its transactions before the listener was added, and its newest report."""

    committed_before: int = 0
    version: int = -1
    report: QueryReport | None = None


class TxnLogListener(StreamingQueryListener):
    """Add it with `spark.streams.addListener(TxnLogListener(root))`; also over Spark Connect.

    `root` and `storage_options` are those of the sink (options `storage.<key>` without the
    prefix). Each report is passed to `on_report`, if given, logged (logger "txnlog", level INFO),
    and with `registry` or `port` (0: any free port, at `address`) exported to Prometheus, which
    requires the extra `txnlog[prometheus]`. Raises ConfigError for a root that is not absolute, for
    `registry` or `port` without prometheus-client, and for an address that cannot be listened at.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        on_report: Callable[[QueryReport], None] | None = None,
        registry: CollectorRegistry | None = None,
        port: int | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self._root = checked_root(root)
        self._storage_options = dict(checked_types(storage_options))
        self._on_report = on_report
        self._lock = threading.Lock()
        self._history: CommittedTransactions | None = None
        self._queries: dict[str, _QueryProgress] = {}
        self._warned: set[tuple[str, str]] = set()
        self._metrics = None
        if registry is not None or port is not None:
            from spark_sink.prometheus import PrometheusMetrics

            self._metrics = PrometheusMetrics(registry, port, address)

    @property
    def latest(self) -> dict[str, QueryReport]:
        """The newest report of each query since the listener was added, by query id."""
        with self._lock:
            reports = {query_id: query.report for query_id, query in self._queries.items()}
        return {query_id: report for query_id, report in reports.items() if report is not None}

    @property
    def port(self) -> int | None:
        """The port that Prometheus scrapes, None without option `port`."""
        return None if self._metrics is None else self._metrics.port

    def close(self) -> None:
        """Release the port. To remove the listener call spark.streams.removeListener."""
        if self._metrics is not None:
            self._metrics.close()

    # -- Spark's calls ---------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._guarded("onQueryStarted", lambda: self._start(str(event.id)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._guarded("onQueryProgress", lambda: self._progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No action: the last report is still valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._guarded("onQueryTerminated", lambda: self._end(str(event.id)))

    # -- inside ----------------------------------------------------------------------------------

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._warn_once(where, error)

    def _warn_once(self, where: str, error: Exception) -> None:
        """Warn once per kind of error, which would recur with every event."""
        key = where, type(error).__name__
        if key not in self._warned:
            self._warned.add(key)
            logger.warning("TxnLogListener.%s failed; logged once", where, exc_info=error)

    def _start(self, query_id: str) -> None:
        """Count from the present state: a restarted query has committed before."""
        with self._lock:
            history = self._read_history(query_id, is_starting=True)
            if history is not None:
                committed, newest = history
                version = newest.version if newest else -1
                self._queries[query_id] = _QueryProgress(committed, version)

    def _progress(self, progress: Mapping[str, Any]) -> None:
        query_id = str(progress["id"])
        with self._lock:
            history = self._read_history(query_id)
            query = self._queries.get(query_id)
            if query is None:
                # Added while the query ran: its newest transaction is the first one counted.
                query = _QueryProgress(max(0, history[0] - 1) if history is not None else 0)
                self._queries[query_id] = query
            before = query.report
            transactions = before.transactions if before is not None else 0
            transaction = before.transaction if before is not None else None
            added, is_new = 0, False
            if history is not None:
                committed, newest = history
                added = committed - query.committed_before - transactions
                if newest is not None and newest.version > query.version:
                    query.version = newest.version
                    transaction, is_new = newest, True
            if not transactions + added and not any(txnlog_sources(progress)):
                # The query uses neither the source nor the sink.
                return
            report = report_of(progress, transactions=transactions + added, transaction=transaction)
            query.report = report
        logger.info("%s", report)
        if self._metrics is not None:
            self._metrics.update(report, transactions=added, is_new=is_new)
        if self._on_report is not None:
            self._on_report(report)

    def _end(self, query_id: str) -> None:
        with self._lock:
            query = self._queries.get(query_id)
        if self._metrics is not None and query is not None and query.report is not None:
            self._metrics.forget(query.report)

    def _read_history(
        self, query_id: str, *, is_starting: bool = False
    ) -> tuple[int, CommittedTransaction | None] | None:
        """(number of committed transactions, the newest one); None if the log is unreadable."""
        try:
            if self._history is None:
                cluster = Cluster.open(self._root, self._storage_options)
                self._history = CommittedTransactions(cluster)
            return self._history.read(query_id)
        except ConfigError as error:
            if is_starting:
                # The first query of a new root creates the cluster.
                return 0, None
            self._warn_once("reading the transaction log", error)
        except TxnLogError as error:
            self._warn_once("reading the transaction log", error)
        # The lag does not depend on the log.
        return None
