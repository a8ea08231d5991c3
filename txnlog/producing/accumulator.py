"""Records that wait to be sent: lists per topic, filled by any thread, drained by the sender.

`append` runs once per record, so it only appends to three lists. Partitions, batch sizes and
columns are computed for many records at once, when they are drained (txnlog.producing.batching).

The lock is held for as long as an append takes, and never during I/O. A thread that waits for
records waits on `changed`, a condition of that lock. What changes together changes in one statement
that calls nothing, for the sake of interrupts: see txnlog.producing.sender.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from txnlog.errors import ClientStateError
from txnlog.messages import Headers
from txnlog.process.clock import Clock
from txnlog.producing.arrow_records import TableSlice
from txnlog.producing.destinations import Destination
from txnlog.producing.producer_config import is_deferred
from txnlog.settings.config import Config

OnDelivery = Callable[[Any, Any], None]

Called = tuple[OnDelivery, int]
"""A delivery callback, and when its record was produced, by `Clock.boot_ms`."""


@dataclass(slots=True)
class Rows:
    """Records of one topic, as columns. The three dicts hold what few records have, by index.

    A record counts once `values` has it, which is filled last: an exception of a signal handler in
    the middle of `append` leaves an incomplete record, which `drop_incomplete` removes.
    """

    destination: Destination
    created_ms: int
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    partitions: dict[int, int] = field(default_factory=dict)
    headers: dict[int, Headers] = field(default_factory=dict)
    callbacks: dict[int, Called] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def num_records(self) -> int:
        return len(self.values)

    def drop_incomplete(self) -> None:
        """Remove the parts of a record that was not accepted, else the next one would get them."""
        count = len(self.values)
        del self.timestamps_ms[count:], self.keys[count:]
        for by_index in (self.partitions, self.headers, self.callbacks):
            by_index.pop(count, None)


@dataclass(slots=True)
class Table:
    """Records of one topic that came as Arrow; `partitions` is int32, null where the key decides.

    `callback` is called once per partition, for the last record of its batch.
    """

    destination: Destination
    created_ms: int
    records: pa.RecordBatch
    partitions: pa.Array | None
    size_bytes: int
    callback: Called | None

    @property
    def num_records(self) -> int:
        return int(self.records.num_rows)


Piece = Rows | Table


class Releasable(Protocol):
    """Records drained from the accumulator: `held_bytes` is what of its memory they still hold."""

    held_bytes: int


def interrupting() -> ClientStateError:
    """The error of a signal handler's call that interrupts `append` or a change of the state."""
    return ClientStateError(
        "A signal handler has called this producer while its thread was in the midst of another "
        "call. Set a flag in the handler, and call the producer in the main program; close() may "
        "be called in a handler."
    )


class Accumulator:
    """Records that are not sent yet.

    `is_open` says whether records are accepted. `held_bytes` is what buffer.memory limits: the
    bytes of each record until `release`, so also while it is being sent.
    """

    def __init__(self, clock: Clock, config: Config) -> None:
        # Not a Lock: a signal handler may make calls in the midst of `append`.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._is_appending = False
        self.is_open = False
        self.memory_bytes: int = config.get("buffer.memory")
        self.held_bytes = 0
        self.buffers: dict[str, Rows] = {}
        self.is_full = False
        self._boot_ms = clock.boot_ms
        self._now_ms = clock.now_ms
        self._lingers = not is_deferred(config)
        self._pieces: list[Piece] = []
        self._drained: list[Piece] = []

    @property
    def is_locked_here(self) -> bool:
        """Whether this thread holds the lock: then a signal handler asks."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    @property
    def has_room(self) -> bool:
        return self.held_bytes < self.memory_bytes

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers | None,
        callback: OnDelivery | None,
        size_bytes: int,
    ) -> bool:
        """Add a record; False: not added, because the topic has no buffer, there is no room, or the
        topic did not accept it when it was read last.

        A `timestamp_ms` of 0 is now. Raises `interrupting`.
        """
        with self.lock:
            if self._is_appending:
                raise interrupting()
            try:
                self._is_appending = True
                rows = self.buffers.get(topic)
                held_bytes = self.held_bytes
                if rows is None or not self.is_open or held_bytes >= self.memory_bytes:
                    return False
                destination = rows.destination
                if (
                    size_bytes > destination.record_bytes_max
                    or (key is None and destination.needs_key)
                    or not -1 <= partition < destination.partitions
                ):
                    return False
                values, timestamps_ms = rows.values, rows.timestamps_ms
                at = len(values)
                if len(timestamps_ms) != at:
                    rows.drop_incomplete()
                timestamps_ms.append(timestamp_ms or self._now_ms())
                if partition >= 0:
                    rows.partitions[at] = partition
                if headers:
                    rows.headers[at] = headers
                if callback is not None:
                    rows.callbacks[at] = callback, self._boot_ms()
                rows.keys.append(key)
                values.append(value)
                rows_bytes = rows.size_bytes + size_bytes
                rows.size_bytes, self.held_bytes = rows_bytes, held_bytes + size_bytes
                if rows_bytes >= destination.wake_bytes and not self.is_full:
                    self._wake()
                return True
            finally:
                self._is_appending = False

    def open_buffer(self, destination: Destination) -> None:
        """Prepare to append to a topic as it was read last, if records are accepted."""
        with self.lock:
            if not self.is_open:
                return
            rows = self.buffers.get(destination.topic)
            if rows is None:
                self.buffers[destination.topic] = Rows(destination, self._boot_ms())
                if self._lingers:
                    # linger.ms counts from the first record.
                    self.changed.notify_all()
            elif rows.destination.read_ms <= destination.read_ms:
                rows.destination = destination

    def add_table(
        self, destination: Destination, part: TableSlice, callback: OnDelivery | None
    ) -> bool:
        """Add Arrow records after those of their topic so far; False: none is accepted now."""
        now_ms = self._boot_ms()
        table = Table(
            destination,
            now_ms,
            part.records,
            part.partitions,
            part.size_bytes,
            None if callback is None else (callback, now_ms),
        )
        with self.lock:
            if not self.is_open:
                return False
            added: list[Piece] = [table]
            buffers = self.buffers
            rows = buffers.get(destination.topic)
            if rows is not None:
                added = [rows, table] if rows.values else added
                buffers = {topic: one for topic, one in buffers.items() if one is not rows}
            end, held_bytes = len(self._pieces), self.held_bytes + table.size_bytes
            self._pieces[end:], self.buffers, self.held_bytes = added, buffers, held_bytes
            self._wake()
        return True

    def drain(self) -> list[Piece]:
        """All records, in order within each topic, the oldest last.

        The caller removes each piece from the list as soon as it has taken it over.
        """
        with self.lock:
            # A buffer is empty between `open_buffer` and the first `append`.
            filled = [rows for rows in self.buffers.values() if rows.values]
            drained = [*reversed(filled), *reversed(self._pieces), *self._drained]
            self._drained, self._pieces, self.buffers, self.is_full = drained, [], {}, False
            return drained

    def release(self, holders: Iterable[Releasable]) -> None:
        """Free the bytes of records that are sent, staged or failed; a repeated call does nothing.

        `Admission` polls for it.
        """
        with self.lock:
            for one in holders:
                self.held_bytes, one.held_bytes = self.held_bytes - one.held_bytes, 0

    def num_records(self) -> int:
        """Number of records that wait."""
        with self.lock:
            waiting = [*self.buffers.values(), *self._pieces, *self._drained]
        return sum(piece.num_records for piece in waiting)

    def oldest_ms(self) -> int | None:
        """When the oldest waiting record was added; the lock is held."""
        times = [rows.created_ms for rows in self.buffers.values()]
        times += [piece.created_ms for piece in [*self._pieces, *self._drained]]
        return min(times, default=None)

    def _wake(self) -> None:
        """A batch is full; the lock is held."""
        self.is_full = True
        self.changed.notify_all()
