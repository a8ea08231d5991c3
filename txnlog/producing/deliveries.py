"""Delivery reports: the outcome of each record, for the callbacks that poll and flush call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Condition

import pyarrow as pa

from txnlog.errors import TxnLogError
from txnlog.messages import Headers, Message
from txnlog.producing.accumulator import OnDelivery
from txnlog.producing.batching import Batch
from txnlog.storage.batches.record_lists import RecordLists, from_arrow


@dataclass(frozen=True, slots=True)
class _Report:
    batch: Batch
    base_offset: int | None
    error: TxnLogError | None


class Deliveries:
    """Reports in order of arrival. Batches without callbacks are not kept."""

    def __init__(self) -> None:
        self._reports: deque[_Report] = deque()
        self._changed = Condition()
        self._waiting = 0

    def __len__(self) -> int:
        """Number of callbacks to be called."""
        return self._waiting

    def add(self, batch: Batch, base_offset: int | None, error: TxnLogError | None = None) -> None:
        """Report a batch as written at `base_offset` (None: no longer known), or as failed."""
        if batch.callbacks:
            with self._changed:
                self._reports.append(_Report(batch, base_offset, error))
                self._waiting += len(batch.callbacks)
                self._changed.notify_all()

    def serve(self) -> int:
        """Call the waiting callbacks, in the calling thread; returns how many were called.

        An exception of a callback ends the call and reaches the caller; the reports after it wait
        for the next call.
        """
        served = 0
        while True:
            with self._changed:
                if not self._reports:
                    return served
                report = self._reports.popleft()
                self._waiting -= len(report.batch.callbacks)
            calls = _calls(report)
            for callback, message in calls:
                served += 1
                try:
                    callback(report.error, message)
                except BaseException:
                    self._put_back(report, calls)
                    raise

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a report, or the time is over."""
        with self._changed:
            if not self._reports:
                self._changed.wait(timeout_s)

    def _put_back(self, report: _Report, remaining: Iterator[tuple[OnDelivery, Message]]) -> None:
        count = sum(1 for _ in remaining)
        if count:
            batch = report.batch
            batch.callbacks = dict(sorted(batch.callbacks.items())[-count:])
            with self._changed:
                self._reports.appendleft(report)
                self._waiting += count


def _calls(report: _Report) -> Iterator[tuple[OnDelivery, Message]]:
    """Callbacks with their messages, in the order of the records."""
    batch = report.batch
    for at, callback in sorted(batch.callbacks.items()):
        time_us, key, value, headers = _record(batch.records, at)
        yield (
            callback,
            Message(
                batch.topic,
                batch.partition,
                None if report.base_offset is None else report.base_offset + at,
                key,
                value,
                (time_us or 0) // 1000,
                None if headers is None else list(headers),
                report.error,
            ),
        )


def _record(
    records: pa.RecordBatch | RecordLists, at: int
) -> tuple[int | None, bytes | None, bytes | None, Headers | None]:
    if not isinstance(records, RecordLists):
        records, at = from_arrow(records.slice(at, 1)), 0
    headers = None if records.headers is None else records.headers[at]
    return records.timestamps_us[at], records.keys[at], records.values[at], headers
