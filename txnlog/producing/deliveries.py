"""Delivery reports: the outcome of each record, for the callbacks that poll and flush call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Condition, RLock, get_ident

import pyarrow as pa

from txnlog.errors import TxnLogError
from txnlog.messages import Headers, Message
from txnlog.process.clock import Clock
from txnlog.producing.accumulator import OnDelivery
from txnlog.producing.batching import Batch
from txnlog.protocol.metadata import StagedBatch
from txnlog.storage.batches.record_lists import RecordLists, from_arrow


@dataclass(slots=True)
class _Report:
    """What became of a batch; `remaining` of its callbacks are still to be called."""

    batch: Batch
    outcome: int | TxnLogError
    delivered_ms: int
    remaining: int


class Sent:
    """What is in a topic, what failed, and what was tried again."""

    def __init__(self) -> None:
        self.files = 0
        self.records = 0
        self.size_bytes = 0
        self.failed_records = 0
        self.retried_records = 0

    def add(self, files: Iterable[StagedBatch]) -> None:
        """These are in their topics."""
        for file in files:
            self.files += 1
            self.records += file.num_records
            self.size_bytes += file.size_bytes


class Deliveries:
    """Reports in order of arrival, by consecutive numbers. Batches without callbacks are not kept.

    What changes together changes in one statement that calls nothing, for the sake of interrupts:
    see txnlog.producing.sender.
    """

    def __init__(self, clock: Clock) -> None:
        self._boot_ms = clock.boot_ms
        self.sent = Sent()
        self._reports: dict[int, _Report] = {}
        self._first = 0
        self._end = 0
        self._waiting = 0
        self.serving: list[tuple[int, int]] = []
        """The threads that are calling callbacks, each with the first report that it found."""
        self.follow_ups = 0
        """It changes when a callback has produced, or is to be called again."""
        self._is_over = False
        # Not a Lock: a signal handler may close the producer in the midst of any call.
        self._lock = RLock()
        self._changed = Condition(self._lock)

    def __len__(self) -> int:
        """Number of callbacks to be called."""
        return self._waiting

    def add(self, batch: Batch, outcome: int | TxnLogError) -> None:
        """Report a batch as written at this first offset, or as failed.

        Only the first report of a batch counts.
        """
        if batch.is_reported:
            return
        if isinstance(outcome, TxnLogError):
            self.sent.failed_records += batch.num_records
        if not batch.callbacks:
            batch.is_reported = True
        else:
            report = _Report(batch, outcome, self._boot_ms(), len(batch.callbacks))
            with self._lock:
                # The end moves last: a report beyond it is replaced by the next one.
                self._reports[self._end] = report
                end, waiting = self._end + 1, self._waiting + report.remaining
                self._end, self._waiting, batch.is_reported = end, waiting, True
                self._changed.notify_all()

    @property
    def end(self) -> int:
        """The number of the next report."""
        return self._end

    @property
    def is_serving_here(self) -> bool:
        """Whether this thread is calling callbacks: then one of them asks."""
        here = get_ident()
        return any(thread == here for thread, _ in self.serving.copy())

    def is_serving_elsewhere(self, end: int) -> bool:
        """Whether another thread calls callbacks of reports before `end`; False in a callback.

        Two callbacks would wait for each other.
        """
        return any(first < end for _, first in self.serving.copy()) and not self.is_serving_here

    def note_follow_up(self) -> None:
        """A record was produced; in a callback, who waits for that callback looks again."""
        if self.is_serving_here:
            with self._lock:
                self.follow_ups += 1

    def serve(self, events: Callable[[], object], raised: list[Exception] | None = None) -> int:
        """Call `events`, which calls other callbacks, and the waiting callbacks, in the calling
        thread; returns how many of these were called.

        Those of records that they produce wait for the next call. An exception of a callback ends
        the call and reaches the caller, and the reports after it wait for the next call, too; with
        `raised` it is added to that.
        """
        here, end, served = (get_ident(), self._first), self._end, 0
        try:
            self.serving.append(here)
            events()
            while True:
                report: _Report | None = None
                try:
                    with self._lock:
                        if self._first >= end:
                            return served
                        first = self._reports[self._first]
                        left = self._waiting - first.remaining
                        report, self._first, self._waiting = first, self._first + 1, left
                        del self._reports[self._first - 1]
                    for callback, message in _calls(report):
                        served += 1
                        report.remaining -= 1
                        try:
                            callback(message.error(), message)
                        except Exception as error:
                            if raised is None:
                                raise
                            raised.append(error)
                finally:
                    if report is not None and report.remaining:
                        self._put_back(report)
        finally:
            self.serving.remove(here)

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a report, or the time or the producer's life is over."""
        with self._lock:
            if self._first == self._end and not self._is_over:
                self._changed.wait(timeout_s)

    def close(self) -> None:
        """The producer is closed: end every `wait`."""
        with self._lock:
            self._is_over = True
            self._changed.notify_all()

    def _put_back(self, report: _Report) -> None:
        with self._lock:
            self._reports[self._first - 1] = report
            first, waiting = self._first - 1, self._waiting + report.remaining
            self._first, self._waiting, self.follow_ups = first, waiting, self.follow_ups + 1


def _calls(report: _Report) -> Iterator[tuple[OnDelivery, Message]]:
    """The remaining callbacks with their messages, in the order of the records."""
    batch, outcome = report.batch, report.outcome
    error = outcome if isinstance(outcome, TxnLogError) else None
    called = sorted(batch.callbacks.items())
    for at, (callback, produced_ms) in called[-report.remaining :]:
        time_us, key, value, headers = _record(batch.records, at)
        yield (
            callback,
            Message(
                batch.topic,
                batch.partition,
                None if isinstance(outcome, TxnLogError) else outcome + at,
                key,
                value,
                (time_us or 0) // 1000,
                None if headers is None else list(headers),
                error,
                (report.delivered_ms - produced_ms) / 1000 if error is None else None,
            ),
        )


def _record(
    records: pa.RecordBatch | RecordLists, at: int
) -> tuple[int | None, bytes | None, bytes | None, Headers | None]:
    if not isinstance(records, RecordLists):
        records, at = from_arrow(records.slice(at, 1)), 0
    headers = None if records.headers is None else records.headers[at]
    return records.timestamps_us[at], records.keys[at], records.values[at], headers
