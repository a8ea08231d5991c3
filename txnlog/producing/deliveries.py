"""Delivery reports: what became of each record, told by the user's own calls of poll and flush."""

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
    """Reports in the order in which they came about. Only batches with callbacks are kept."""

    def __init__(self) -> None:
        self._reports: deque[_Report] = deque()
        self._came = Condition()
        self._waiting = 0

    def __len__(self) -> int:
        """Callbacks that wait to be called."""
        return self._waiting

    def add(self, batch: Batch, base_offset: int | None, error: TxnLogError | None = None) -> None:
        """A batch was written at `base_offset` (None: not known any more), or failed."""
        if batch.callbacks:
            with self._came:
                self._reports.append(_Report(batch, base_offset, error))
                self._waiting += len(batch.callbacks)
                self._came.notify_all()

    def serve(self) -> int:
        """Call the callbacks that wait, in the calling thread; how many there were.

        What a callback raises ends the call, and reaches the caller; the reports after it wait for
        the next one.
        """
        served = 0
        while True:
            with self._came:
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
        """Until there is a report, or the time is over."""
        with self._came:
            if not self._reports:
                self._came.wait(timeout_s)

    def _put_back(self, report: _Report, left: Iterator[tuple[OnDelivery, Message]]) -> None:
        rest = sum(1 for _ in left)
        if rest:
            batch = report.batch
            kept = dict(sorted(batch.callbacks.items())[-rest:])
            batch.callbacks = kept
            with self._came:
                self._reports.appendleft(report)
                self._waiting += rest


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
