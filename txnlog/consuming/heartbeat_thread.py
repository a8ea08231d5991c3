"""The background thread of a group member: its heartbeats, and jobs in between."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from txnlog.consuming.membership import Heartbeat
from txnlog.errors import TxnLogError
from txnlog.process.client_events import ClientEvents

logger = logging.getLogger("txnlog")


class HeartbeatThread:
    """A daemon thread that sends heartbeats, and runs queued jobs in order in between.

    `events` gets the heartbeats that fail.
    """

    def __init__(
        self, name: str, heartbeat: Heartbeat, interval_ms: int, events: ClientEvents
    ) -> None:
        self._heartbeat = heartbeat
        self._events = events
        self._interval_ms = interval_ms
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; its exceptions are only logged."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until all queued jobs are done."""
        done = threading.Event()
        self._jobs.put(done.set)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        """End the thread after the queued jobs."""
        self.request_stop()
        self._thread.join()

    def request_stop(self) -> None:
        """As `stop`, without waiting for it."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of a thread that was stopped."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        interval_s = self._interval_ms / 1000
        due_s = time.monotonic() + interval_s
        while True:
            wait_s = due_s - time.monotonic()
            if wait_s <= 0:
                self._send()
                due_s = time.monotonic() + interval_s
                continue
            try:
                job = self._jobs.get(timeout=wait_s)
            except queue.Empty:
                continue
            if job is None:
                return
            try:
                job()
            except Exception:
                # Without this thread there are no heartbeats, and the member would be expelled.
                logger.exception("A job of the heartbeat thread failed; the thread continues")

    def _send(self) -> None:
        try:
            self._heartbeat.send()
            self._events.recovered()
        except TxnLogError as error:
            self._events.failed(error)
            self._heartbeat.say_retried(error)
        except Exception:
            # Without this thread the member would be expelled without a trace of the cause.
            logger.exception("A heartbeat failed; the next one retries")
