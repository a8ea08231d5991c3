"""Hygiene of every table: short logs, few `txn` actions, no files that nobody wants.

Each act looks at everything anew and may be stopped anywhere, or be done twice at once. A table
that refuses stops no other: what it raised is raised at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from txnlog.cluster import Cluster
from txnlog.housekeeping.vacuum import Vacuum, topic_logs
from txnlog.process.failures import Failures
from txnlog.protocol.expiry import (
    PRODUCER_ID_EXPIRATION_MS_DEFAULT,
    check_producer_id_expiration,
)
from txnlog.protocol.producer_expiry import MARKER_AGE_MS_MIN, ExpiryLimits, prepare_expiry
from txnlog.protocol.topics import TopicState
from txnlog.protocol.txn_memory import TXN_PREFIX, VACUUM_AGE_MS_DEFAULT
from txnlog.protocol.vacuum import Doomed
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.delta_log import Outcome
from txnlog.storage.delta.log_cleanup import checkpoint_and_clean_up, find_cleanable
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.clock_watch import may_believe_ages
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.row_log import OffsetsLog
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

T = TypeVar("T")
R = TypeVar("R")

EXPIRED_LOG_FILE = "log file that a checkpoint replaces"
EXPIRED_MARKER = "marker of a producer id that has no row"
EXPIRED_SEQUENCE = "sequence of an idle producer"


class Hygiene:
    """Cleans one cluster. The constructor does no I/O.

    `log_retention_ms` is how long log files stay, `vacuum_age_ms` files that nobody names or that
    were removed. Raises ConfigError for less than an hour, and for a `producer_id_expiration_ms`
    that is too short.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        log_retention_ms: int | None = None,
        vacuum_age_ms: int = VACUUM_AGE_MS_DEFAULT,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS_DEFAULT,
    ) -> None:
        check_producer_id_expiration(producer_id_expiration_ms)
        self._cluster = cluster
        self._store = cluster.store
        self._log_settings = cluster.settings
        if log_retention_ms is not None:
            self._log_settings = replace(cluster.settings, log_retention_ms=log_retention_ms)
        self._limits = ExpiryLimits(
            marker_age_ms=max(MARKER_AGE_MS_MIN, vacuum_age_ms),
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        # Told once: the next round is as likely to wait.
        self._waits_level = logging.INFO
        self._vacuum = Vacuum(
            cluster,
            age_ms=vacuum_age_ms,
            log_retention_ms=self._log_settings.log_retention_ms,
        )

    def clean_logs(self) -> int:
        """Delete expired commits and checkpoints of every table; how many files that were."""
        if not self._may_believe_ages():
            return 0
        now_ms = self._store.now_ms()
        failures = Failures("Log clean-up")
        deleted = _each(
            {name: name for name in self._tables(topic_logs(self._cluster, failures))},
            lambda table: checkpoint_and_clean_up(
                self._store, table, self._log_settings, now_ms=now_ms
            ),
            failures,
        )
        return _total(deleted, failures)

    def expire_producers(self) -> int:
        """Forget producers that nobody hears of any more; how many entries that were."""
        living = self._living()
        failures = Failures("Expiry of producers")
        expired = _each(
            self._producer_tables(topic_logs(self._cluster, failures)),
            lambda log: self._expire(log, living),
            failures,
        )
        return _total(expired, failures)

    def vacuum(self) -> int:
        """Delete files that no table names any more; how many that were."""
        return self._vacuum.run() if self._may_believe_ages() else 0

    def _may_believe_ages(self) -> bool:
        if may_believe_ages(self._store):
            return True
        level, self._waits_level = self._waits_level, logging.DEBUG
        logger.log(
            level,
            "No file of %s is deleted for its age yet: the clock of its store was set, or has been "
            "watched from this machine for less than an hour.",
            self._store.url,
        )
        return False

    def find(self) -> list[Doomed]:
        """What all of these would remove now; writes nothing. What cannot be read is logged."""
        now_ms = self._store.now_ms()
        # A dry run's list has no end to raise them at; each is logged.
        failures = Failures("Dry run")
        topics = topic_logs(self._cluster, failures)
        producers: dict[str, TopicLog | OffsetsLog] = {}
        living: set[int] = set()
        with failures.of("producers"):
            living = self._living()
            producers = self._producer_tables(topics)
        found = [
            *_each(
                {name: name for name in self._tables(topics)},
                lambda table: self._cleanable(table, now_ms),
                failures,
            ),
            *_each(producers, lambda log: self._expired(log, living, now_ms), failures),
        ]
        return [doomed for some in found for doomed in some] + self._vacuum.find()

    # -- tables ----------------------------------------------------------------------------------

    def _tables(self, topics: Iterable[TopicLog]) -> list[str]:
        cluster = self._cluster
        return [
            cluster_log.PATH,
            cluster.offsets_log().path,
            *(cluster.shard(number).path for number in range(cluster.shards)),
            *(log.path for log in topics),
        ]

    def _producer_tables(self, topics: Iterable[TopicLog]) -> dict[str, TopicLog | OffsetsLog]:
        logs: list[TopicLog | OffsetsLog] = [self._cluster.offsets_log(), *topics]
        return {log.path: log for log in logs}

    def _cleanable(self, table: str, now_ms: int) -> list[Doomed]:
        return [
            Doomed(item.path, EXPIRED_LOG_FILE, now_ms - item.last_modified_ms, item.size_bytes)
            for item in find_cleanable(self._store, table, self._log_settings, now_ms=now_ms)
        ]

    # -- producers -------------------------------------------------------------------------------

    def _living(self) -> set[int]:
        """Producer ids that have a row; every shard must be read for that.

        Raises CorruptLogError for a row whose producer id cannot be read: it may be anybody's.
        """
        living: set[int] = set()
        for number in range(self._cluster.shards):
            shard = self._cluster.shard(number)
            shard.refresh()
            living.update(row.producer_id for row in shard.view.rows.values())
            for row in shard.view.rows.unreadable.values():
                said = row.values.get("producer_id", "")
                if not said.isdigit():
                    raise row.error
                living.add(int(said))
        return living

    def _expire(self, handle: TopicLog | OffsetsLog, living: set[int]) -> int:
        log = handle.log
        before = 0

        def decide() -> dict[str, int] | None:
            nonlocal before
            txns = handle.view.txns
            before = len(txns.markers) + len(txns.sequences)
            return prepare_expiry(
                txns,
                living=living | _open_ids(handle),
                now_ms=self._store.now_ms(),
                limits=self._limits,
            )

        def commit(txns: dict[str, int] | None) -> Outcome | None:
            if txns is None:
                return None
            now_ms = self._store.now_ms()
            actions = [Txn(app_id, version, now_ms) for app_id, version in txns.items()]
            return log.commit(actions, operation="EXPIRE PRODUCERS")

        if transact(log, decide, commit) is None:
            return 0
        return before - len(handle.view.markers) - len(handle.view.txns.sequences)

    def _expired(
        self, handle: TopicLog | OffsetsLog, living: set[int], now_ms: int
    ) -> list[Doomed]:
        """What is old enough, whether or not it has been announced."""
        handle.refresh()
        txns, limits = handle.view.txns, self._limits
        markers = txns.markers.older_than(now_ms - limits.marker_age_ms)
        sequences = txns.sequences.older_than(now_ms - limits.producer_id_expiration_ms)
        kept = living | _open_ids(handle)
        found = [
            (str(key), EXPIRED_MARKER, txns.markers.updated_ms[key])
            for key in markers
            if key not in kept
        ]
        found += [
            (f"{key[0]}-{key[1]}", EXPIRED_SEQUENCE, txns.sequences.updated_ms[key])
            for key in sequences
        ]
        return [
            Doomed(f"{handle.path}: {TXN_PREFIX}{name}", reason, now_ms - at_ms, 0)
            for name, reason, at_ms in found
        ]


def _each(tables: Mapping[str, T], act: Callable[[T], R], failures: Failures) -> Iterator[R]:
    for name, table in tables.items():
        with failures.of(name):
            yield act(table)


def _total(counts: Iterable[int], failures: Failures) -> int:
    """The sum, once all is done; raises what failed on the way."""
    total = sum(counts)
    failures.check()
    return total


def _open_ids(handle: TopicLog | OffsetsLog) -> set[int]:
    """Producers with an open transaction in a topic: they never expire."""
    view = handle.view
    if not isinstance(view, TopicState):
        return set()
    return {b.producer_id for state in view.partitions for b in state.ongoing.values()}
