"""Checkpoints and log clean-up by the process that commits, away from the commit's own path."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from txnlog.errors import TxnLogError
from txnlog.storage.delta.checkpoints import Covered, continue_from, is_fresh, maintain
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger(__name__)

_CLEANUPS_PER_RETENTION = 24


class Checkpointer:
    """Makes the checkpoints of one table whose turn comes with a commit of this process.

    In `checkpoint_mode` "background" a thread of the process does it, one table at a time, and the
    state below is that thread's.
    """

    def __init__(self, store: ObjectStore, table: str, settings: LogSettings) -> None:
        self._store = store
        self._table = table
        self._settings = settings
        self._covered: Covered | None = None
        self._cleaned_up_ms: int | None = None
        """By the boot clock: when this process last listed log files to remove."""
        self._waiting_in: int | None = None
        """The process in which a turn waits; a later one covers the commits of an earlier."""

    def after_commit(self, version: int, sent_ms: int) -> None:
        """Called with every commit; `sent_ms` is the boot time before it was written."""
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
        """Now and then: what has expired is found by listing the whole log, of a day's commits."""
        now_ms, before_ms = self._store.clock.boot_ms(), self._cleaned_up_ms
        pause_ms = self._settings.log_retention_ms // _CLEANUPS_PER_RETENTION
        if before_ms is not None and now_ms - before_ms < pause_ms:
            return False
        self._cleaned_up_ms = now_ms
        return True

    def _submit(self, head: Covered, *, clean: bool) -> None:
        """To the process's thread; at most one turn of the table waits there."""
        if self._waiting_in == os.getpid() and not clean:
            return
        self._waiting_in = os.getpid()

        def turn() -> None:
            self._waiting_in = None
            self._run(head, clean=clean)

        try:
            _thread().submit(turn)
        except RuntimeError as error:
            # The interpreter is shutting down, or has no thread left. The commit has landed, and
            # the next writer makes the checkpoint.
            self._waiting_in = None
            logger.info("No checkpoint of %s this time: %s", self._table, error)

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
            logger.warning("No checkpoint of %s this time, the next one will do: %s", table, error)
        except Exception:
            logger.exception("No checkpoint of %s this time", table)


_thread_of: tuple[int, ThreadPoolExecutor] | None = None


def _thread() -> ThreadPoolExecutor:
    """The process's own thread for checkpoints; a forked child starts another."""
    global _thread_of
    if _thread_of is None or _thread_of[0] != os.getpid():
        _thread_of = (os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="txnlog-checkpoint"))
    return _thread_of[1]


def wait_for_background() -> None:
    """Return when no checkpoint of this process is under way or waiting."""
    if _thread_of is not None and _thread_of[0] == os.getpid():
        with suppress(RuntimeError):
            _thread_of[1].submit(int).result()
