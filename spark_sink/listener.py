"""TxnLogListener: lag, transactions and commit times of streaming queries, as they make progress.

It runs in the process that called `spark.streams.addListener`, reads the events' JSON and tails
the transaction log; it writes nothing, and whatever goes wrong in it never reaches a query.
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
from txnlog.settings.options import checked_root

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger("txnlog")


@dataclass(slots=True)
class _Watched:
    """What is known of one query: its transactions before we watched, and its newest report."""

    committed_before: int = 0
    version: int = -1
    report: QueryReport | None = None


class TxnLogListener(StreamingQueryListener):
    """Add it with `spark.streams.addListener(TxnLogListener(root))`; also over Spark Connect.

    `root` and `storage_options` are those of the sink (options `storage.<key>` without the
    prefix). `transactional_ids` maps a query's name or id to its transactional.id, for queries
    that do not use the default, their id. Each report goes to `on_report`, if given, to the log
    (logger "txnlog", level INFO), and with `registry` or `port` (0: any; on the loopback
    interface) to Prometheus, which needs the extra `txnlog[prometheus]`.
    Raises ConfigError for a root that is not absolute, and when prometheus-client is asked for and
    not there.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        transactional_ids: Mapping[str, str] | None = None,
        on_report: Callable[[QueryReport], None] | None = None,
        registry: CollectorRegistry | None = None,
        port: int | None = None,
    ) -> None:
        self._root = checked_root(root)
        self._storage_options = dict(storage_options or {})
        self._transactional_ids = dict(transactional_ids or {})
        self._on_report = on_report
        self._lock = threading.Lock()
        self._history: CommittedTransactions | None = None
        self._watched: dict[str, _Watched] = {}
        self._said: set[tuple[str, str]] = set()
        self._metrics = None
        if registry is not None or port is not None:
            from spark_sink.prometheus import PrometheusMetrics

            self._metrics = PrometheusMetrics(registry, port)

    @property
    def latest(self) -> dict[str, QueryReport]:
        """The newest report of each query that runs, or ended while we watched, by query id."""
        with self._lock:
            known = {query_id: watched.report for query_id, watched in self._watched.items()}
        return {query_id: report for query_id, report in known.items() if report is not None}

    @property
    def port(self) -> int | None:
        """Where Prometheus finds the metrics, None when no port was asked for."""
        return None if self._metrics is None else self._metrics.port

    def close(self) -> None:
        """Give the port free. The listener itself is removed with spark.streams.removeListener."""
        if self._metrics is not None:
            self._metrics.close()

    # -- Spark's calls ---------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._guarded("onQueryStarted", lambda: self._start(str(event.id), event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._guarded("onQueryProgress", lambda: self._progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: what was reported last still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._guarded("onQueryTerminated", lambda: self._end(str(event.id)))

    # -- inside ----------------------------------------------------------------------------------

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._say_once(where, error)

    def _say_once(self, where: str, error: Exception) -> None:
        """The same trouble comes with every event."""
        key = where, type(error).__name__
        if key not in self._said:
            self._said.add(key)
            logger.warning("TxnLogListener.%s failed; said once", where, exc_info=error)

    def _start(self, query_id: str, name: str | None) -> None:
        """Count from here: a query that was restarted has committed before."""
        with self._lock:
            seen = self._look(query_id, name, is_starting=True)
            if seen is not None:
                committed, newest = seen
                self._watched[query_id] = _Watched(committed, newest.version if newest else -1)

    def _progress(self, progress: Mapping[str, Any]) -> None:
        query_id = str(progress["id"])
        with self._lock:
            seen = self._look(query_id, progress.get("name"))
            watched = self._watched.get(query_id)
            if watched is None:
                # Added while the query ran: its newest transaction is the first we count.
                watched = _Watched(max(0, seen[0] - 1) if seen is not None else 0)
                self._watched[query_id] = watched
            before = watched.report
            transactions = before.transactions if before is not None else 0
            transaction = before.transaction if before is not None else None
            done, is_new = 0, False
            if seen is not None:
                done = seen[0] - watched.committed_before - transactions
                if seen[1] is not None and seen[1].version > watched.version:
                    transaction, is_new = seen[1], True
                    watched.version = seen[1].version
            if transaction is None and not any(txnlog_sources(progress)):
                # A query that has nothing to do with us.
                return
            report = report_of(progress, transactions=transactions + done, transaction=transaction)
            watched.report = report
        logger.info("%s", report)
        if self._metrics is not None:
            self._metrics.update(report, transactions=done, is_new=is_new)
        if self._on_report is not None:
            self._on_report(report)

    def _end(self, query_id: str) -> None:
        with self._lock:
            watched = self._watched.get(query_id)
        if self._metrics is not None and watched is not None and watched.report is not None:
            self._metrics.forget(watched.report)

    def _look(
        self, query_id: str, name: str | None, *, is_starting: bool = False
    ) -> tuple[int, CommittedTransaction | None] | None:
        """(committed transactions of the query, the newest); None when the log cannot be read."""
        ids = self._transactional_ids
        transactional_id = ids.get(query_id) or ids.get(name or "") or query_id
        try:
            if self._history is None:
                cluster = Cluster.open(self._root, self._storage_options)
                self._history = CommittedTransactions(cluster)
            return self._history.read(transactional_id)
        except ConfigError as error:
            if is_starting:
                # The first query of a new root makes the cluster.
                return 0, None
            self._say_once("reading the transaction log", error)
        except TxnLogError as error:
            self._say_once("reading the transaction log", error)
        # The lag is known without the log.
        return None
