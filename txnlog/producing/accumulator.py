"""Records that wait to be sent: lists per topic, appended to by any thread, taken by the sender.

`produce` runs once per record, so it only appends to three lists. Partitions, sizes of batches and
columns are made from the lists at once, when they are taken (txnlog.producing.batching).

The lock is held for as long as an append takes, and never while anything is read or written. Who
waits for records waits on `changed`, which belongs to the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txnlog.messages import Headers

OnDelivery = Callable[[Any, Any], None]


@dataclass(slots=True)
class Destination:
    """A topic as the producer looked it up; `sticky_bytes` counts what went there without a key.

    `wake_bytes`: records of so many bytes are taken without waiting for more.
    """

    topic: str
    topic_id: str
    partitions: int
    record_bytes_max: int
    needs_key: bool
    wake_bytes: int
    looked_up_ms: int
    sticky_seed: int
    sticky_bytes: int = 0


@dataclass(slots=True)
class Rows:
    """Records of one topic, as columns. The three dicts hold what few records have, by index.

    A record is there when `values` has it, which comes last: an error that a signal's handler
    raises in the middle of `produce` leaves the rest of it behind, for `drop_torn`.
    """

    destination: Destination
    created_ms: int
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    partitions: dict[int, int] = field(default_factory=dict)
    headers: dict[int, Headers] = field(default_factory=dict)
    callbacks: dict[int, OnDelivery] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def num_records(self) -> int:
        return len(self.values)

    def drop_torn(self) -> None:
        """Forget what is left of a record that was not taken: the next one must not get it."""
        count = len(self.values)
        del self.timestamps_ms[count:], self.keys[count:]
        for by_index in (self.partitions, self.headers, self.callbacks):
            by_index.pop(count, None)


@dataclass(slots=True)
class Table:
    """Records of one topic that came as Arrow; `partitions` is int32, or null where the key says.

    `callback` is called once, for the last record of each partition's batch.
    """

    destination: Destination
    created_ms: int
    records: pa.RecordBatch
    partitions: pa.Array | None
    size_bytes: int
    callback: OnDelivery | None

    @property
    def num_records(self) -> int:
        return int(self.records.num_rows)


Piece = Rows | Table


class Accumulator:
    """What waits. `is_open` says whether records are taken, `held_bytes` what buffer.memory counts:
    everything until `release`, also while it is being sent. `tells_first` wakes the sender at the
    first record, from which linger.ms counts."""

    def __init__(self, *, tells_first: bool = True) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.is_open = False
        self.held_bytes = 0
        self.buffers: dict[str, Rows] = {}
        self.is_full = False
        self._tells_first = tells_first
        self._pieces: list[Piece] = []

    def open_rows(self, destination: Destination, now_ms: int) -> Rows:
        """The rows of a topic that are appended to; the lock is held."""
        rows = self.buffers.get(destination.topic)
        if rows is None:
            rows = self.buffers[destination.topic] = Rows(destination, now_ms)
            if self._tells_first:
                self.changed.notify_all()
        return rows

    def add_table(self, table: Table) -> bool:
        """Arrow records, after what was appended to their topic so far; False: not taken."""
        with self.lock:
            if not self.is_open:
                return False
            rows = self.buffers.pop(table.destination.topic, None)
            if rows is not None and rows.values:
                self._pieces.append(rows)
            self._pieces.append(table)
            self.held_bytes += table.size_bytes
            self.is_full = True
            self.changed.notify_all()
        return True

    def wake(self) -> None:
        """A batch is full; the lock is held."""
        self.is_full = True
        self.changed.notify_all()

    def take(self) -> list[Piece]:
        """Everything that waits, in the order of each topic."""
        with self.lock:
            pieces = self._pieces
            self._pieces = []
            if self.buffers:
                # An empty one was opened by a `produce` that has not come to its record yet.
                pieces.extend(rows for rows in self.buffers.values() if rows.values)
                self.buffers = {}
            self.is_full = False
            return pieces

    def release(self, size_bytes: int) -> None:
        """So many bytes are sent, staged, or given up. Who wants room looks again by itself."""
        with self.lock:
            self.held_bytes -= size_bytes

    def num_records(self) -> int:
        """How many records wait."""
        with self.lock:
            waiting = [*self.buffers.values(), *self._pieces]
        return sum(piece.num_records for piece in waiting)

    def oldest_ms(self) -> int | None:
        """When the oldest record that waits came; the lock is held."""
        times = [rows.created_ms for rows in self.buffers.values()]
        times += [piece.created_ms for piece in self._pieces]
        return min(times, default=None)
