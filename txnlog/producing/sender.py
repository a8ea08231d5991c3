"""The sender: moves records from the accumulator to the publication, in a thread or in user calls.

Locks of the whole producer. `io` guards the cluster, its logs and the publication: one thread at a
time reads or writes. The accumulator's lock guards the waiting records and the producer's state; it
is never held during I/O. A thread that needs both takes `io` first. User code (delivery callbacks)
runs without either.

Interrupts (D101). A signal handler, as that of Ctrl-C, may raise in the main thread when a function
begins, when a call returns (its result is lost, though it took effect), and at the turn of a loop.
The user's call is then made again. So in this folder
 - what must change together changes in one statement that calls nothing, which CPython completes;
 - all other steps may be repeated: a batch knows whether it was taken, reported and released;
 - a lock is held by `with lock:` on a lock itself, whose entry and exit are completed, too; those
   of a Condition, and of any `with` written in Python, are not.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.process.client_events import ClientEvents
from txnlog.process.failures import unexpected
from txnlog.producing.accumulator import Accumulator, Piece
from txnlog.producing.batching import Batch, split, unsplit
from txnlog.producing.deadlines import Deadline
from txnlog.producing.producer_config import is_deferred
from txnlog.producing.publishing import Publication
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

T = TypeVar("T")

RETRY_MS = 50
IDLE_S = 1.0
"""The thread wakes up this often, to sweep transactions and to check whether it is stopped."""


class Sender:
    """Fills the publication from the accumulator, and sends it.

    `publication` is None between transactions, when no record can wait. `on_error` gets the error
    of a publication that failed permanently; it is weak, or the thread would keep the producer
    alive. Records of a deferred transaction wait for a full batch or a call of `pump`. `events`
    gets the errors of sends.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: Config,
        on_error: weakref.WeakMethod[Any],
        events: ClientEvents,
    ) -> None:
        self.events = events
        # Not a Lock: an interrupt can hide whether it was acquired, and this asks who releases it.
        self.io = threading.RLock()
        self._holder: int | None = None
        self.after_call: Callable[[], object] | None = None
        """What a signal handler has left to the call that it interrupted."""
        self._to_add: list[tuple[Batch, TxnLogError | None]] = []
        self.publication: Publication | None = None
        self._accumulator = accumulator
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._linger_ms: int | None = None if is_deferred(config) else config.get("linger.ms")
        self._sticky_run_bytes: int = config.get("batch.size")
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def last_error(self) -> TxnLogError | None:
        """The newest error of the publication, retriable ones included."""
        publication = self.publication
        return None if publication is None else publication.last_error

    @property
    def is_working(self) -> bool:
        """Whether this thread holds `io`: then a signal handler asks."""
        return self._holder == threading.get_ident()

    def make_after_call(self) -> None:
        """Make what a signal handler has left, unless it was left to the holder of `io`."""
        if self._holder is None and self.after_call is not None:
            after, self.after_call = self.after_call, None
            after()

    def exclusively(self, deadline: Deadline, action: Callable[[], T]) -> T:
        """Do something while `io` is held.

        Raises OperationTimedOutError when other threads hold it for too long; or at once, when a
        signal handler makes a call while the call that it interrupted holds it.
        """
        here = threading.get_ident()
        if self._holder == here:
            raise deadline.over(None)
        timeout_s = min(deadline.remaining_ms / 1000, threading.TIMEOUT_MAX)
        after: Callable[[], object] | None = None
        try:
            if not self.io.acquire(timeout=timeout_s):
                raise deadline.over(None)
            try:
                self._holder = here
                return action()
            finally:
                after, self.after_call, self._holder = self.after_call, None, None
        finally:
            # Not `suppress`: an interrupt at its beginning would leave `io` held for ever.
            try:  # noqa: SIM105
                self.io.release()
            except RuntimeError:
                pass
            if after is not None:
                after()

    def pump(self) -> None:
        """Send what can be sent now; `io` is held."""
        publication = self.fill_publication()
        if publication is None:
            return
        publication.pump()
        on_error = self._on_error()
        if publication.error is not None and on_error is not None:
            on_error(publication.error)
        failed = publication.error or (publication.last_error if publication.waiting else None)
        if failed is not None:
            self.events.failed(failed)
        else:
            self.events.recovered()

    def flush(self, deadline: Deadline) -> None:
        """Pump until no record waits; `io` is held. Raises OperationTimedOutError."""
        while True:
            self.pump()
            publication = self.publication
            if publication is None or not publication.waiting:
                return
            deadline.pause(publication.last_error)

    def fill_publication(self) -> Publication | None:
        """Add all waiting records to the publication, in order; `io` is held.

        Records that cannot be split into batches, which would be a bug, fail alone: their callbacks
        get the error, and a transaction cannot commit without them (R40).
        """
        pieces = self._accumulator.drain()
        publication = self.publication
        if publication is None:
            return None
        self._add_batches(publication)
        while pieces:
            self._split(pieces)
            self._add_batches(publication)
        return publication

    def _split(self, pieces: list[Piece]) -> None:
        """Replace the last piece by its batches, each with the error that refuses it, if any."""
        piece = pieces[-1]
        batches: list[tuple[Batch, TxnLogError | None]]
        try:
            batches = [(batch, None) for batch in split(piece, self._sticky_run_bytes)]
        except Exception as error:
            topic = piece.destination.topic
            failed = unexpected(error, f"Splitting records for topic {topic!r} into batches")
            batches = [(unsplit(piece), failed)]
        batches.reverse()
        self._to_add, pieces[-1:] = batches, ()

    def _add_batches(self, publication: Publication) -> None:
        while self._to_add:
            batch, error = self._to_add[-1]
            if error is None:
                publication.add(batch)
            else:
                publication.refuse(batch, error)
            del self._to_add[-1]

    def discard(self, error: TxnLogError, deadline: Deadline) -> None:
        """Fail all records that are not sent; the producer accepts none any more.

        Raises OperationTimedOutError.
        """
        self.exclusively(deadline, lambda: self.discard_held(error))

    def discard_held(self, error: TxnLogError) -> None:
        """`discard`, while `io` is held."""
        publication = self.fill_publication()
        if publication is not None:
            publication.discard(error)

    def num_records(self) -> int:
        """Number of records that are not sent yet."""
        publication = self.publication
        sending = 0 if publication is None else publication.waiting
        sending += sum(batch.num_records for batch, _ in list(self._to_add))
        return self._accumulator.num_records() + sending

    # -- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to send in the background."""
        self._thread = threading.Thread(target=self._run, name="txnlog-producer", daemon=True)
        self._thread.start()

    def request_stop(self) -> None:
        """Make the thread end after its present work; returns at once."""
        self._is_stopped = True

    def report_unsent(self, pid: int) -> None:
        """The producer was dropped, or the program ends: say what was never sent.

        Nothing in a child of a fork, which has another `pid`.
        """
        # Not asked in a child: a thread of the parent may have held the lock.
        count = self.num_records() if os.getpid() == pid else 0
        if count:
            logger.warning(
                "%d records of a producer were not sent when it was dropped, or the program ended: "
                "call flush() or close() before that, and commit_transaction() in a transaction.",
                count,
            )

    def stop(self) -> None:
        """End the thread after its present work."""
        with self._accumulator.lock:
            self._is_stopped = True
            self._accumulator.changed.notify_all()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        # What a signal handler interrupts may hold what the thread waits for.
        if not self.io._is_owned():  # type: ignore[attr-defined]
            thread.join()

    def turn(self) -> bool:
        """Wait for work, up to IDLE_S, and do it; False once the sender is stopped."""
        try:
            is_due = self._wait()
            if not self._is_stopped:
                self._work(is_due)
        except Exception:
            # The thread must survive a bug. A flush or commit meets the same bug and raises it.
            logger.exception("The producer's thread failed; it continues")
            self._clock.sleep_ms(RETRY_MS)
        return not self._is_stopped

    def _work(self, is_due: bool) -> None:
        if is_due:
            with self.io:
                self.pump()
                is_stuck = self.publication is not None and self.publication.waiting > 0
            if is_stuck:
                with self._accumulator.lock:
                    if not self._is_stopped:
                        self._accumulator.changed.wait(RETRY_MS / 1000)
        elif self.io.acquire(blocking=False):
            try:
                self._cluster.sweeper.sweep_if_due()
            finally:
                self.io.release()

    def _wait(self) -> bool:
        """Whether records are due to be sent, waiting up to IDLE_S for some."""
        accumulator = self._accumulator
        with accumulator.lock:
            if self._is_stopped or accumulator.is_full:
                return True
            if self.publication is not None and self.publication.waiting > 0:
                return True
            left_ms = self._linger_left_ms()
            if left_ms is not None and left_ms <= 0:
                return True
            accumulator.changed.wait(IDLE_S if left_ms is None else min(IDLE_S, left_ms / 1000))
            if accumulator.is_full:
                return True
            left_ms = self._linger_left_ms()
            return left_ms is not None and left_ms <= 0

    def _linger_left_ms(self) -> int | None:
        """How long the oldest record may still wait; the accumulator's lock is held."""
        oldest_ms = self._accumulator.oldest_ms()
        if oldest_ms is None or self._linger_ms is None:
            return None
        return oldest_ms + self._linger_ms - self._clock.boot_ms()

    def _run(self) -> None:
        while self.turn():
            pass
