"""Who sends what waits: a thread of its own when it has waited long enough, or whoever cannot wait.

Lock discipline, for the whole producer. `io` guards the cluster, its logs and the publication:
one thread at a time reads or writes. The accumulator's lock guards what waits, and the producer's
state; it is never held during I/O. Whoever needs both takes `io` first. User code (delivery
callbacks) runs under neither.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError, unexpected
from txnlog.producing.accumulator import Accumulator
from txnlog.producing.batching import split, unsplit
from txnlog.producing.deadlines import Deadline
from txnlog.producing.publishing import Publication

logger = logging.getLogger("txnlog")

RETRY_MS = 100
LOOK_S = 1.0
"""The thread wakes up this often, to sweep and to see whether its producer is still there."""


class Sender:
    """Moves records from the accumulator to the publication, and the publication on.

    `publication` is None between transactions, when nothing can wait. `on_error` is told when the
    publication has failed for good; it must not keep the producer alive, which the thread would
    then do. Without `linger_ms` records wait until somebody pumps, or
    until a batch is full.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        *,
        linger_ms: int | None,
        sticky_run_bytes: int,
        on_error: Callable[[TxnLogError], None],
    ) -> None:
        self.io = threading.Lock()
        self.publication: Publication | None = None
        self.accumulator = accumulator
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._linger_ms = linger_ms
        self._sticky_run_bytes = sticky_run_bytes
        self._on_error = on_error
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @contextmanager
    def exclusive(self, deadline: Deadline) -> Iterator[None]:
        """Hold `io`. Raises OperationTimedOutError when others hold it for too long."""
        if not self.io.acquire(timeout=min(deadline.remaining_ms / 1000, threading.TIMEOUT_MAX)):
            raise deadline.over(None)
        try:
            yield
        finally:
            self.io.release()

    def pump(self) -> None:
        """Send all that waits, as far as it goes now; `io` is held."""
        publication = self.hand_over()
        if publication is None:
            return
        publication.pump()
        if publication.error is not None:
            self._on_error(publication.error)

    def hand_over(self) -> Publication | None:
        """Give the publication all that waits, in order; `io` is held.

        Records that cannot become batches, which would be a bug, fail alone: their callbacks are
        told, and a transaction cannot commit without them (R40).
        """
        pieces = self.accumulator.take()
        publication = self.publication
        if publication is None:
            return None
        for piece in pieces:
            try:
                batches = list(split(piece, self._sticky_run_bytes))
            except Exception as error:
                topic = piece.destination.topic
                logger.exception("Records for topic %r cannot become batches", topic)
                failed = unexpected(error, f"Making batches of records for topic {topic!r}")
                publication.refuse(unsplit(piece), failed)
                continue
            for batch in batches:
                publication.add(batch)
        return publication

    def waiting(self) -> int:
        """Records that are not sent yet."""
        publication = self.publication
        sending = 0 if publication is None else publication.waiting
        return self.accumulator.num_records() + sending

    # -- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to send in the background."""
        self._thread = threading.Thread(target=self._run, name="txnlog-producer", daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._is_stopped = True

    def stop(self) -> None:
        """End the thread, after what it is doing."""
        with self.accumulator.lock:
            self._is_stopped = True
            self.accumulator.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def turn(self) -> bool:
        """Wait until there is something to do, at most LOOK_S, and do it; False: stopped."""
        try:
            is_due = self._wait()
            if not self._is_stopped:
                self._act(is_due)
        except Exception:
            # The thread must outlive a bug: whoever flushes or commits meets it, too.
            logger.exception("The producer's thread failed; it goes on")
            self._clock.sleep_ms(RETRY_MS)
        return not self._is_stopped

    def _act(self, is_due: bool) -> None:
        if is_due:
            with self.io:
                self.pump()
                is_stuck = self.publication is not None and self.publication.waiting > 0
            if is_stuck:
                with self.accumulator.lock:
                    if not self._is_stopped:
                        self.accumulator.changed.wait(RETRY_MS / 1000)
        elif self.io.acquire(blocking=False):
            try:
                self._cluster.sweeper.sweep_if_due()
            finally:
                self.io.release()

    def _wait(self) -> bool:
        with self.accumulator.lock:
            if self._is_stopped or self.accumulator.is_full:
                return True
            if self.publication is not None and self.publication.waiting > 0:
                return True
            wait_s = LOOK_S
            oldest_ms = self.accumulator.oldest_ms()
            if oldest_ms is not None and self._linger_ms is not None:
                left_ms = oldest_ms + self._linger_ms - self._clock.boot_ms()
                if left_ms <= 0:
                    return True
                wait_s = min(wait_s, left_ms / 1000)
            self.accumulator.changed.wait(wait_s)
            if self.accumulator.is_full:
                return True
            oldest_ms = self.accumulator.oldest_ms()
            if oldest_ms is None or self._linger_ms is None:
                return False
            return oldest_ms + self._linger_ms <= self._clock.boot_ms()

    def _run(self) -> None:
        while self.turn():
            pass
