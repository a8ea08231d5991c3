"""Finishing what processes that are gone for good left behind (R73).

Every long-lived process with write access looks at the shards and groups now and then. Ages count
from when this sweeper itself first saw a thing unchanged, so nobody's wrong clock ends a healthy
transaction (R34).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Hashable
from weakref import WeakKeyDictionary

from txnlog.cluster import Cluster
from txnlog.errors import StorePermissionError, TxnLogError, UnstableOffsetCommitError
from txnlog.protocol.groups import PendingOffsets
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState

logger = logging.getLogger("txnlog")

INTERVAL_MS = 10_000
PENDING_TIMEOUT_MS = 60_000


class Sweeper:
    """Looks at most every `interval_ms`; made once per process and cluster."""

    def __init__(self, cluster: Cluster, *, interval_ms: int = INTERVAL_MS) -> None:
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._first_seen_ms: dict[Hashable, int] = {}
        self._swept_ms: int | None = None
        self._refused = False
        self._name = f"the sweeper of process {os.getpid()} on {socket.gethostname()}"

    def sweep_if_due(self) -> None:
        """Sweep when the interval has passed; trouble is logged, never the caller's."""
        now_ms = self._cluster.store.clock.boot_ms()
        if self._refused or (
            self._swept_ms is not None and now_ms - self._swept_ms < self._interval_ms
        ):
            return
        self._swept_ms = now_ms
        try:
            self.sweep()
        except StorePermissionError:
            # A reader without write access leaves this to others.
            self._refused = True
        except TxnLogError as error:
            logger.warning("Sweeping %s failed, it will be tried again: %s", self._cluster, error)
        except Exception:
            # A client sweeps for others: a bug there ends no call of its own user.
            logger.exception("Sweeping %s failed, it will be tried again", self._cluster)

    def sweep(self) -> int:
        """One look at everything; how many transactions and entries were settled.

        A decided transaction is finished when it was there at an earlier look, an Ongoing one is
        aborted after its time-out, a pending group entry is settled after its holder's.
        """
        seen: dict[Hashable, int] = {}
        settled = 0
        errors: list[TxnLogError] = []
        rows = self._rows()
        for row in rows.values():
            try:
                settled += self._sweep_row(row, seen)
            except TxnLogError as error:
                errors.append(error)
        for group_id, entry in self._entries():
            holder = rows.get(entry.transactional_id)
            timeout_ms = holder.timeout_ms if holder is not None else PENDING_TIMEOUT_MS
            if (
                self._age_ms(("group", group_id, entry.producer_id, entry.version), seen)
                < timeout_ms
            ):
                continue
            try:
                self._cluster.groups.settle(group_id, entry, by=self._name)
                settled += 1
            except UnstableOffsetCommitError:
                # A transaction that its client has prepared: only the client ends it.
                continue
            except TxnLogError as error:
                errors.append(error)
        self._first_seen_ms = seen
        if errors:
            raise errors[0]
        return settled

    def _sweep_row(self, row: TransactionMetadata, seen: dict[Hashable, int]) -> int:
        is_open = row.state is TransactionState.ONGOING and not row.pending.prepared_by_client
        if not row.state.is_prepared and not is_open:
            return 0
        age_ms = self._age_ms(_key(row), seen)
        if row.state.is_prepared and age_ms >= self._interval_ms:
            self._cluster.coordinator.finish(row)
            return 1
        if is_open and age_ms >= row.timeout_ms:
            self._cluster.coordinator.time_out(row, by=self._name)
            return 1
        return 0

    def _rows(self) -> dict[str, TransactionMetadata]:
        found: dict[str, TransactionMetadata] = {}
        for number in range(self._cluster.shards):
            shard = self._cluster.shard(number)
            shard.refresh()
            found.update(shard.view.rows)
        return found

    def _entries(self) -> list[tuple[str, PendingOffsets]]:
        log = self._cluster.offsets_log()
        log.refresh()
        return [
            (group_id, entry)
            for group_id, group in log.view.rows.items()
            for entry in group.pending
        ]

    def _age_ms(self, key: Hashable, seen: dict[Hashable, int]) -> int:
        now_ms = self._cluster.store.clock.boot_ms()
        seen[key] = self._first_seen_ms.get(key, now_ms)
        return now_ms - seen[key]


def _key(row: TransactionMetadata) -> Hashable:
    return row.transactional_id, row.producer_id, row.producer_epoch, row.txn_epoch, row.state


_SWEEPERS: WeakKeyDictionary[Cluster, Sweeper] = WeakKeyDictionary()


def sweep_if_due(cluster: Cluster) -> None:
    """Sweep with this process's own sweeper of the cluster, when it is time to."""
    sweeper = _SWEEPERS.get(cluster)
    if sweeper is None:
        sweeper = _SWEEPERS[cluster] = Sweeper(cluster)
    sweeper.sweep_if_due()
