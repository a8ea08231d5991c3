"""Log clean-up of every table: checkpoints, and the deletion of the log files they replace.

A run may stop anywhere, or two may run at once. A table that fails stops no other: its error is
raised at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from txnlog.cluster import Cluster
from txnlog.housekeeping.vacuum import some_at_a_time, topic_logs
from txnlog.process.failures import Failures
from txnlog.protocol.vacuum import Deletable
from txnlog.storage.delta.log_cleanup import checkpoint_and_clean_up, find_cleanable
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.topic_log import TopicLog

EXPIRED_LOG_FILE = "log file that a checkpoint replaces"


class LogCleanup:
    """Cleans up the logs of one cluster. The constructor does no I/O.

    `log_retention_ms` is how long log files stay (None: the cluster's setting). Raises ConfigError
    for less than an hour.
    """

    def __init__(self, cluster: Cluster, *, log_retention_ms: int | None = None) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._settings = cluster.settings
        if log_retention_ms is not None:
            self._settings = replace(cluster.settings, log_retention_ms=log_retention_ms)

    def run(self) -> int:
        """Delete expired commits and checkpoints of every table; returns the number of files."""
        now_ms = self._store.now_ms()
        failures = Failures("Log clean-up", logging.DEBUG)
        deleted = 0
        for some in some_at_a_time(self._tables(topic_logs(self._cluster, failures))):
            # What is kept must be known of now: see ClusterLog.kept_from_ms.
            self._cluster.pins()
            # Each by its own listing: no log's state is shared.
            clean = partial(checkpoint_and_clean_up, self._store, now_ms=now_ms)
            parts = [(table, partial(clean, table, self._settings)) for table in some]
            deleted += sum(failures.together(self._store.together, parts))
        failures.check()
        return deleted

    def find(self) -> list[Deletable]:
        """What `run` would delete now; writes nothing. Tables that cannot be read are logged."""
        now_ms = self._store.now_ms()
        found: list[Deletable] = []
        # A dry run returns a list: errors are logged, and none is raised at the end.
        failures = Failures("Dry run")
        for table in self._tables(topic_logs(self._cluster, failures)):
            with failures.of(table):
                found += [
                    Deletable(
                        item.path, EXPIRED_LOG_FILE, now_ms - item.last_modified_ms, item.size_bytes
                    )
                    for item in find_cleanable(self._store, table, self._settings, now_ms=now_ms)
                ]
        return found

    def _tables(self, topics: Iterable[TopicLog]) -> list[str]:
        cluster = self._cluster
        return [
            cluster_log.PATH,
            *cluster.shard_tables(),
            *(log.path for log in topics),
        ]
