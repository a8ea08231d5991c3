"""Finishing, or timing out, the transactions of processes that have died (R73).

Every long-lived process with write access checks the shards and groups periodically. Ages are the
time this sweeper has observed a row unchanged, so neither another machine's wrong clock nor a
suspend of this one ends a healthy transaction (R34).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.root import Root
from txnlog.coordinator.state_rows import describe
from txnlog.errors import (
    GroupAuthorizationError,
    StorePermissionError,
    TransactionalIdAuthorizationError,
    TxnLogError,
)
from txnlog.process.back_offs import BackOffs
from txnlog.process.failures import Failures
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import is_over, prepare_forget
from txnlog.protocol.watching import Watch
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog

logger = logging.getLogger("txnlog")

L = TypeVar("L")

INTERVAL_MS = 10_000
BACK_OFF_MS_MAX = 600_000
_SWEEPING = "Sweeping"


class Sweeper:
    """Sweeps at most every `interval_ms`; each Cluster has one."""

    def __init__(self, root: Root, *, interval_ms: int = INTERVAL_MS) -> None:
        self._root = root
        self._interval_ms = interval_ms
        self._first_seen: dict[Hashable, Watch] = {}
        self._watch: Watch | None = None
        self._swept_ms: int | None = None
        self._reported: set[str] = set()
        # Each attempt on a topic that cannot be written takes a time-out, which delays other work.
        self._back_offs = BackOffs[Hashable](
            root.store.clock, pause_ms=interval_ms, pause_ms_max=max(BACK_OFF_MS_MAX, interval_ms)
        )
        self._name = f"the sweeper of process {os.getpid()} on {socket.gethostname()}"

    def sweep_if_due(self) -> None:
        """Sweep if the interval has passed; errors are logged, not raised."""
        now_ms = self._root.store.clock.boot_ms()
        if self._swept_ms is not None and now_ms - self._swept_ms < self._interval_ms:
            return
        self._swept_ms = now_ms
        retries = self._root.store.retries
        try:
            self.sweep()
            if not self.is_backing_off:
                retries.worked(_SWEEPING)
        except StorePermissionError:
            # Left to other processes, and asked again less often: credentials are renewed.
            pass
        except TxnLogError as error:
            until = f"in {self._interval_ms / 1000:g} s, then less often, and by any other client"
            retries.failed(_SWEEPING, f"Sweeping {self._root}", error, until=until)
        except Exception:
            # A client sweeps for others: a bug there must not fail its own user's call.
            logger.exception("Sweeping %s failed and will be retried", self._root)

    @property
    def is_backing_off(self) -> bool:
        """Whether a sweep leaves alone what could not be ended."""
        return bool(self._back_offs)

    def sweep(self) -> int:
        """Check all shards and groups; returns the number of transactions and tickets settled.

        A transaction that is decided, or that a table decides, is finished if an earlier sweep saw
        it, another Ongoing one is aborted after its timeout, a group forgets the holder of a ticket
        that is refused for good. All is tried before the errors are raised: a shard that cannot be
        read stops no other.
        """
        now_ms = self._root.store.clock.boot_ms()
        before = self._watch or Watch(now_ms)
        self._watch = before.observe(now_ms=now_ms, interval_ms=self._interval_ms)
        seen: dict[Hashable, Watch] = {}
        settled = 0
        failures = Failures(_SWEEPING, logging.DEBUG)
        tails = dict(self._root.shard_tails())
        logs = failures.together(
            self._root.store.together,
            [
                (table, partial(self._allowed, table, tail))
                for table, tail in tails.items()
                if self._back_offs.error_of(table) is None
            ],
        )
        shards = [log for log in logs if isinstance(log, TransactionLog)]
        offsets = [log for log in logs if isinstance(log, OffsetsLog)]
        numbers = {shard.number for shard in shards}
        rows = {name: row for shard in shards for name, row in shard.view.rows.items()}
        for row in [row for shard in shards for row in shard.view.rows.active.values()]:
            with failures.of(f"transactional.id {row.transactional_id!r}"):
                settled += self._sweep_row(row, seen)
        for table in [log.path for log in offsets] + [log.path for log in shards]:
            with failures.of(table):
                self._root.confirm_shard(table)
        self._report_unreadable([*offsets, *shards], failures)
        holders = [
            (group_id, holder)
            for log in offsets
            for group_id, group in log.view.rows.items()
            for holder in group.tickets.holders
            if self._root.shard_of(holder.transactional_id) in numbers
        ]
        for group_id, holder in holders:
            with failures.of(f"group {group_id!r}"):
                settled += self._sweep_holder(group_id, holder, rows, seen)
        self._first_seen = seen
        self._back_offs.keep_if((seen.keys() | tails.keys()).__contains__)
        failures.check()
        return settled

    def _allowed(self, table: str, tail: Callable[[], L]) -> L | None:
        """None: this process may not read offsets, and leaves their groups to others."""
        try:
            with self._back_offs.after_failure(table, _is_refused):
                return tail()
        except GroupAuthorizationError:
            return None

    def _sweep_row(self, row: TransactionMetadata, seen: dict[Hashable, Watch]) -> int:
        is_open = row.state is TransactionState.ONGOING and not row.pending.prepared_by_client
        if not row.is_ending and not is_open:
            return 0
        watched_ms = self._watched_ms(_key(row), seen)
        # Finishing early harms no one, so time asleep counts, too.
        age_ms = self._root.store.clock.boot_ms() - seen[_key(row)].observed_ms
        is_due = age_ms >= self._interval_ms if row.is_ending else (watched_ms >= row.timeout_ms)
        if not is_due or self._back_offs.error_of(_key(row)):
            return 0
        with self._back_offs.after_failure(_key(row)):
            if row.is_ending:
                finish(self._root, row)
            else:
                time_out(self._root, row, by=self._name)
        return 1

    def _sweep_holder(
        self,
        group_id: str,
        holder: TicketHolder,
        rows: Mapping[str, TransactionMetadata],
        seen: dict[Hashable, Watch],
    ) -> int:
        """Remove a holder whose ticket is refused for good: the group's row must not grow."""
        if self._is_unreadable(holder.transactional_id):
            return 0
        if not is_over(rows.get(holder.transactional_id), group_id, holder):
            return 0
        key = ("holder", group_id, holder.ticket)
        if self._watched_ms(key, seen) < self._interval_ms:
            return 0
        # The shards were read side by side: a row that is missing may not have been there yet.
        row = describe(self._root, holder.transactional_id, sure=True)
        if not is_over(row, group_id, holder):
            return 0
        self._root.offsets_log(group_id).change(
            lambda view, version: prepare_forget(
                view.rows.get(group_id), holder, now_ms=self._root.store.clock.now_ms()
            )
        )
        return 1

    def _report_unreadable(
        self, logs: Sequence[TransactionLog | OffsetsLog], failures: Failures
    ) -> None:
        """Report rows and groups that cannot be read, each once per process."""
        for log in logs:
            for key, row in log.view.rows.unreadable.items():
                if f"{log.path}/{key}" not in self._reported:
                    self._reported.add(f"{log.path}/{key}")
                    failures.add(f"{log.path}, {key!r}", row.error)

    def _is_unreadable(self, transactional_id: str) -> bool:
        shard = self._root.find_shard_for(transactional_id)
        return shard is not None and transactional_id in shard.view.rows.unreadable

    def _watched_ms(self, key: Hashable, seen: dict[Hashable, Watch]) -> int:
        """How long this sweeper has observed a key; `seen` keeps its first observation."""
        assert self._watch is not None
        first = seen[key] = self._first_seen.get(key, self._watch)
        return self._watch.watched_ms - first.watched_ms


def _key(row: TransactionMetadata) -> Hashable:
    return row.transactional_id, row.producer_id, row.producer_epoch, row.txn_epoch, row.state


def _is_refused(error: TxnLogError) -> bool:
    return isinstance(error, TransactionalIdAuthorizationError)
