"""Finishing what processes that are gone for good left behind (R73).

Every long-lived process with write access looks at the shards and groups now and then. Ages are the
time this sweeper has watched a thing unchanged, so neither another machine's wrong clock nor a
suspend of this one ends a healthy transaction (R34).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Hashable
from contextlib import suppress

from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.groups import GroupCoordinator
from txnlog.coordinator.root import Root
from txnlog.errors import StorePermissionError, TxnLogError, UnstableOffsetCommitError
from txnlog.process.failures import Failures
from txnlog.protocol.groups import PendingOffsets
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.watching import Watch
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog

logger = logging.getLogger("txnlog")

INTERVAL_MS = 10_000
PENDING_TIMEOUT_MS = 60_000


class Sweeper:
    """Looks at most every `interval_ms`; made once per process and cluster."""

    def __init__(self, root: Root, *, interval_ms: int = INTERVAL_MS) -> None:
        self._root = root
        self._groups = GroupCoordinator(root)
        self._interval_ms = interval_ms
        self._first_seen: dict[Hashable, Watch] = {}
        self._watch: Watch | None = None
        self._swept_ms: int | None = None
        self._refused = False
        self._told: set[str] = set()
        self._name = f"the sweeper of process {os.getpid()} on {socket.gethostname()}"

    def sweep_if_due(self) -> None:
        """Sweep when the interval has passed; trouble is logged, never the caller's."""
        now_ms = self._root.store.clock.boot_ms()
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
            logger.warning("Sweeping %s failed, it will be tried again: %s", self._root, error)
        except Exception:
            # A client sweeps for others: a bug there ends no call of its own user.
            logger.exception("Sweeping %s failed, it will be tried again", self._root)

    def sweep(self) -> int:
        """One look at everything; how many transactions and entries were settled.

        A decided transaction is finished when it was there at an earlier look, an Ongoing one is
        aborted after its time-out, a pending group entry is settled after its holder's.
        """
        now_ms = self._root.store.clock.boot_ms()
        before = self._watch or Watch(now_ms)
        self._watch = before.look(now_ms=now_ms, interval_ms=self._interval_ms)
        seen: dict[Hashable, Watch] = {}
        settled = 0
        failures = Failures("Sweeping")
        rows = self._rows()
        for row in rows.values():
            with failures.of(f"transactional.id {row.transactional_id!r}"):
                settled += self._sweep_row(row, seen)
        self._tell_unreadable(failures)
        for group_id, entry in self._entries():
            if self._is_unreadable(entry.transactional_id):
                continue
            holder = rows.get(entry.transactional_id)
            timeout_ms = holder.timeout_ms if holder is not None else PENDING_TIMEOUT_MS
            key = ("group", group_id, entry.producer_id, entry.version)
            if self._watched_ms(key, seen) < timeout_ms:
                continue
            # A transaction that its client has prepared: only the client ends it.
            with failures.of(f"group {group_id!r}"), suppress(UnstableOffsetCommitError):
                self._groups.settle(group_id, entry, by=self._name)
                settled += 1
        self._first_seen = seen
        failures.check()
        return settled

    def _sweep_row(self, row: TransactionMetadata, seen: dict[Hashable, Watch]) -> int:
        is_open = row.state is TransactionState.ONGOING and not row.pending.prepared_by_client
        if not row.state.is_prepared and not is_open:
            return 0
        watched_ms = self._watched_ms(_key(row), seen)
        # Finishing early takes nothing from anyone, so any time that has passed counts.
        age_ms = self._root.store.clock.boot_ms() - seen[_key(row)].looked_ms
        if row.state.is_prepared and age_ms >= self._interval_ms:
            finish(self._root, row)
            return 1
        if is_open and watched_ms >= row.timeout_ms:
            time_out(self._root, row, by=self._name)
            return 1
        return 0

    def _tell_unreadable(self, failures: Failures) -> None:
        """Rows and groups that cannot be read: each fails one sweep of this process."""
        logs: list[TransactionLog | OffsetsLog] = [self._root.offsets_log()]
        logs += [self._root.shard(number) for number in range(self._root.shards)]
        for log in logs:
            for key, row in log.view.rows.unreadable.items():
                if f"{log.path}/{key}" not in self._told:
                    self._told.add(f"{log.path}/{key}")
                    failures.add(f"{log.path}, {key!r}", row.error)

    def _is_unreadable(self, transactional_id: str) -> bool:
        shard = self._root.shard_for(transactional_id)
        return transactional_id in shard.view.rows.unreadable

    def _rows(self) -> dict[str, TransactionMetadata]:
        found: dict[str, TransactionMetadata] = {}
        for number in range(self._root.shards):
            shard = self._root.shard(number)
            shard.refresh()
            found.update(shard.view.rows)
        return found

    def _entries(self) -> list[tuple[str, PendingOffsets]]:
        log = self._root.offsets_log()
        log.refresh()
        return [
            (group_id, entry)
            for group_id, group in log.view.rows.items()
            for entry in group.pending
        ]

    def _watched_ms(self, key: Hashable, seen: dict[Hashable, Watch]) -> int:
        """How long this sweeper has watched a thing; `seen` keeps the look that met it first."""
        assert self._watch is not None
        first = seen[key] = self._first_seen.get(key, self._watch)
        return self._watch.watched_ms - first.watched_ms


def _key(row: TransactionMetadata) -> Hashable:
    return row.transactional_id, row.producer_id, row.producer_epoch, row.txn_epoch, row.state
