"""Checkpoints and log clean-up by the process that commits, away from the commit's own path."""

from __future__ import annotations

import logging
import os
from functools import partial
from queue import SimpleQueue

from txnlog.errors import TxnLogError
from txnlog.process.threads import Threads
from txnlog.storage.delta.actions import Commit
from txnlog.storage.delta.checkpoints import Covered, continue_from, is_fresh, maintain
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger("txnlog")

_CLEANUPS_PER_RETENTION = 24
_REST_PER_WORK = 19
"""Checkpoints of a log are at most a twentieth of the time, however fast its writers commit: they
share a lock of the interpreter with the commits, and the machine's processors."""
_RESTS_MAX = 4
"""That many checkpoints in a row are left out for it, so the next process reads more commits."""
_KEPT_MAX = 1_000
"""Commits kept per table, and actions of one: some megabytes, where a process commits fast."""
_KEPT_ACTIONS_MAX = 100


class Checkpointer:
    """Writes one table's checkpoints that are due with commits of this process.

    In `checkpoint_mode` "background" one thread of the process does this for all tables, and only
    that thread uses `_covered`.
    """

    def __init__(self, store: ObjectStore, table: str, settings: LogSettings) -> None:
        self._store = store
        self._table = table
        self._settings = settings
        self._covered: Covered | None = None
        self._cleaned_up_ms: int | None = None
        """When this process last listed expired log files, by the boot clock."""
        self._waiting_in: int | None = None
        """The process id in which a task is queued; it covers the commits of later calls, too."""
        self._rests_until_ms = self._rests = 0
        self._due_at: int | None = None
        """The version of this process's last commit with which a checkpoint was due."""
        self._writers = 1
        """About how many processes write this log: each meets one in so many of the versions with
        which a checkpoint is due."""
        self._kept: dict[int, Commit] | None = None
        """Commits of a process that commits fast, which a checkpoint need not read: small ones, up
        to a number, since the newest checkpoint or later."""

    def after_commit(self, commit: Commit, sent_ms: int) -> None:
        """To be called after each commit; `sent_ms` is the boot time before it was written."""
        settings, version, kept = self._settings, commit.version, self._kept
        if kept is not None and len(kept) < _KEPT_MAX and len(commit.actions) <= _KEPT_ACTIONS_MAX:
            kept[version] = commit
        if settings.checkpoint_mode == "off" or version == 0:
            return
        if version % settings.checkpoint_interval:
            return
        if self._due_at is not None:
            self._writers = max(1, (version - self._due_at) // settings.checkpoint_interval)
        self._due_at = version
        head = Covered(version, sent_ms)
        if settings.checkpoint_mode == "inline":
            self._run(head, clean=self._is_cleanup_due())
        elif not self._rests_now():
            self._submit(head, clean=self._is_cleanup_due())

    def _rests_now(self) -> bool:
        """Whether this checkpoint is left out, as the last one took long."""
        is_early = self._store.clock.boot_ms() < self._rests_until_ms
        self._kept = (self._kept or {}) if is_early else None
        self._rests = self._rests + 1 if is_early and self._rests < _RESTS_MAX else 0
        return self._rests > 0

    def _is_cleanup_due(self) -> bool:
        """24 times per retention: finding expired files lists the whole log, a day of commits."""
        now_ms, before_ms = self._store.clock.boot_ms(), self._cleaned_up_ms
        pause_ms = self._settings.log_retention_ms // _CLEANUPS_PER_RETENTION
        if before_ms is not None and now_ms - before_ms < pause_ms:
            return False
        self._cleaned_up_ms = now_ms
        return True

    def _submit(self, head: Covered, *, clean: bool) -> None:
        """Queue a task for the process's thread, unless one for this table is queued already."""
        if self._waiting_in == os.getpid() and not clean:
            return

        def task() -> None:
            self._waiting_in = None
            begun_ms = self._store.clock.boot_ms()
            self._run(head, clean=clean)
            ended_ms = self._store.clock.boot_ms()
            rest_ms = _REST_PER_WORK * self._writers * (ended_ms - begun_ms)
            self._rests_until_ms = ended_ms + rest_ms

        is_queued = False
        try:
            self._waiting_in = os.getpid()
            is_queued = _THREAD.submit(task)
        finally:
            if not is_queued:
                self._waiting_in = None
        if not is_queued:
            # The interpreter is shutting down, or can start no thread. The commit has landed, and
            # the next writer writes the checkpoint.
            logger.info("No checkpoint of %s was written: there is no thread", self._table)

    def _run(self, head: Covered, *, clean: bool) -> None:
        store, table, settings = self._store, self._table, self._settings
        covered, self._covered = self._covered, None
        kept = {} if self._kept is None else self._kept
        work = f"A checkpoint of {table}"
        try:
            if covered is not None and is_fresh(store, covered, settings.trust_ms):
                self._covered = continue_from(store, table, settings, covered, head, kept)
                for version in [one for one in list(kept) if one <= self._covered.version]:
                    del kept[version]
            else:
                self._covered = maintain(
                    store, table, settings.checkpoint_interval, settings.trust_ms
                )
            if clean:
                clean_up(
                    store,
                    table,
                    retention_ms=settings.log_retention_ms,
                    kept_from_ms=settings.kept_from_ms(),
                )
            store.retries.worked(work)
        except TxnLogError as error:
            every = f"each {settings.checkpoint_interval} commits, which then covers these, too"
            store.retries.failed(work, work, error, until=every)
        except Exception:
            logger.exception("No checkpoint of %s was written", table)


_THREAD = Threads("txnlog-checkpoint", 1)


def wait_for_background() -> None:
    """Return when no checkpoint of this process is in progress or queued."""
    done: SimpleQueue[None] = SimpleQueue()
    if _THREAD.submit(partial(done.put, None)):
        done.get()
