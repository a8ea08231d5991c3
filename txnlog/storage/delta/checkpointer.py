"""Checkpoints and log clean-up by the process that commits, away from the commit's own path."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from txnlog.errors import TxnLogError
from txnlog.process.forking import watch
from txnlog.storage.delta.checkpoints import Covered, continue_from, is_fresh, maintain
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger(__name__)

_CLEANUPS_PER_RETENTION = 24


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

    def after_commit(self, version: int, sent_ms: int) -> None:
        """To be called after each commit; `sent_ms` is the boot time before it was written."""
        settings = self._settings
        if settings.checkpoint_mode == "off" or version == 0:
            return
        if version % settings.checkpoint_interval:
            return
        head = Covered(version, sent_ms)
        is_cleanup_due = self._is_cleanup_due()
        if settings.checkpoint_mode == "inline":
            self._run(head, clean=is_cleanup_due)
        else:
            self._submit(head, clean=is_cleanup_due)

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
        self._waiting_in = os.getpid()

        def task() -> None:
            self._waiting_in = None
            self._run(head, clean=clean)

        try:
            _THREAD.submit(task)
        except RuntimeError as error:
            # The interpreter is shutting down, or can start no thread. The commit has landed, and
            # the next writer writes the checkpoint.
            self._waiting_in = None
            logger.info("No checkpoint of %s was written: %s", self._table, error)

    def _run(self, head: Covered, *, clean: bool) -> None:
        store, table, settings = self._store, self._table, self._settings
        covered, self._covered = self._covered, None
        try:
            if covered is not None and is_fresh(store, covered, settings.trust_ms):
                self._covered = continue_from(store, table, settings, covered, head)
            else:
                self._covered = maintain(
                    store, table, settings.checkpoint_interval, settings.trust_ms
                )
            if clean:
                clean_up(store, table, retention_ms=settings.log_retention_ms)
        except TxnLogError as error:
            logger.warning(
                "No checkpoint of %s was written; the next one covers these commits: %s",
                table,
                error,
            )
        except Exception:
            logger.exception("No checkpoint of %s was written", table)


class _Thread:
    """The thread of this process for checkpoints; a forked child starts its own.

    Commits of several logs may be made together, so several threads may ask for it.
    """

    def __init__(self) -> None:
        self.forked()
        watch(self)

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Run it in the thread. Raises RuntimeError if the interpreter is shutting down."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="txnlog-checkpoint")
            self._pool.submit(task)

    def wait(self) -> None:
        """Return when all tasks are done."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            with suppress(RuntimeError):
                pool.submit(int).result()


_THREAD = _Thread()


def wait_for_background() -> None:
    """Return when no checkpoint of this process is in progress or queued."""
    _THREAD.wait()
