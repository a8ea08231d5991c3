"""Expiry of producers: remove the markers and sequences that a table no longer needs.

Each run decides on the newest state, may stop anywhere, and two may run at once. A table that fails
stops no other: its error is raised at the end.
"""

from __future__ import annotations

import logging
from functools import partial

from txnlog.cluster import Cluster
from txnlog.housekeeping.vacuum import some_at_a_time, topic_logs
from txnlog.process.failures import Failures
from txnlog.protocol.expiry import (
    PRODUCER_ID_EXPIRATION_MS_DEFAULT,
    check_producer_id_expiration,
)
from txnlog.protocol.producer_expiry import MARKER_AGE_MS_MIN, ExpiryLimits, prepare_expiry
from txnlog.protocol.topics import TopicState
from txnlog.protocol.txn_memory import TXN_PREFIX, VACUUM_AGE_MS_DEFAULT
from txnlog.protocol.vacuum import Deletable
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.delta_log import Outcome
from txnlog.storage.delta.transact import transact
from txnlog.storage.tables.row_log import OffsetsLog
from txnlog.storage.tables.topic_log import TopicLog

EXPIRED_MARKER = "marker of a producer id that has no row"
EXPIRED_SEQUENCE = "sequence of an idle producer"


class ProducerExpiry:
    """Expires the producers of one cluster. The constructor does no I/O.

    Markers stay for `vacuum_age_ms` and a week, whichever is longer. Raises ConfigError for a
    `producer_id_expiration_ms` that is too short.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        vacuum_age_ms: int = VACUUM_AGE_MS_DEFAULT,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS_DEFAULT,
    ) -> None:
        check_producer_id_expiration(producer_id_expiration_ms)
        self._cluster = cluster
        self._store = cluster.store
        self._limits = ExpiryLimits(
            marker_age_ms=max(MARKER_AGE_MS_MIN, vacuum_age_ms),
            producer_id_expiration_ms=producer_id_expiration_ms,
        )

    def run(self) -> int:
        """Expire idle producers; returns the number of markers and sequences removed."""
        # Before the rows: a marker of an id that gets a row later is younger.
        now_ms = self._store.now_ms()
        living = self._living()
        failures = Failures("Expiry of producers", logging.DEBUG)
        expired = 0
        for some in some_at_a_time(self._tables(failures)):
            parts = [(log.path, partial(self._expire, log, living, now_ms)) for log in some]
            expired += sum(failures.together(self._store.together, parts))
        failures.check()
        return expired

    def find(self) -> list[Deletable]:
        """What is old enough to expire; writes nothing. Tables that cannot be read are logged."""
        now_ms = self._store.now_ms()
        found: list[Deletable] = []
        # A dry run returns a list: errors are logged, and none is raised at the end.
        failures = Failures("Dry run")
        with failures.of("producers"):
            living = self._living()
            for log in self._tables(failures):
                with failures.of(log.path):
                    found += self._expired(log, living, now_ms)
        return found

    def _tables(self, failures: Failures) -> list[TopicLog | OffsetsLog]:
        return [*self._cluster.offsets_handles(), *topic_logs(self._cluster, failures)]

    def _living(self) -> set[int]:
        """Producer ids that have a row in any shard.

        Raises CorruptLogError for a row whose producer id cannot be read: it could be any id.
        """
        living: set[int] = set()
        for shard in self._cluster.existing_shards():
            living.update(row.producer_id for row in shard.view.rows.values())
            for row in shard.view.rows.unreadable.values():
                text = row.values.get("producer_id", "")
                if not text.isdigit():
                    raise row.error
                living.add(int(text))
        return living

    def _expire(self, handle: TopicLog | OffsetsLog, living: set[int], now_ms: int) -> int:
        log = handle.log
        before = 0

        def decide() -> dict[str, int] | None:
            nonlocal before
            txns = handle.view.txns
            before = len(txns.markers) + len(txns.sequences)
            return prepare_expiry(
                txns,
                living=living | _open_ids(handle),
                now_ms=now_ms,
                limits=self._limits,
            )

        def commit(txns: dict[str, int] | None) -> Outcome | None:
            if txns is None:
                return None
            at_ms = self._store.now_ms()
            actions = [Txn(app_id, version, at_ms) for app_id, version in txns.items()]
            return log.commit(actions, operation="EXPIRE PRODUCERS")

        if transact(log, decide, commit) is None:
            return 0
        return before - len(handle.view.markers) - len(handle.view.txns.sequences)

    def _expired(
        self, handle: TopicLog | OffsetsLog, living: set[int], now_ms: int
    ) -> list[Deletable]:
        """What is old enough to expire, whether or not it has been announced."""
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
            Deletable(f"{handle.path}: {TXN_PREFIX}{name}", reason, now_ms - at_ms, 0)
            for name, reason, at_ms in found
        ]


def _open_ids(handle: TopicLog | OffsetsLog) -> set[int]:
    """Ids of producers with an open transaction in a topic, which never expire."""
    view = handle.view
    if not isinstance(view, TopicState):
        return set()
    return {b.producer_id for state in view.partitions for b in state.ongoing.values()}
