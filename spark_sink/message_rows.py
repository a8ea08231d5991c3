"""Rows of small tasks: they travel in the commit message, and the commit writes them (D148).

One file holds one partition's batch, so 16 tasks and 16 partitions would make 256 files of a
micro-batch, most of them small: each costs its creation, a line in the log, a request on an object
store, and later its compaction. A task with few bytes sends them on instead; of all such tasks the
driver's commit writes one file per partition, in the order of the tasks. What the driver gets is
bounded by the number of the task, as no task knows how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from txnlog.connector.record_batches import combined
from txnlog.protocol.metadata import StagedBatch
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import new_batch_name, write_batch_file
from txnlog.storage.store.objects import ObjectStore

__all__ = ["Lane", "MessageRows", "TaskFiles", "as_table", "message_bytes_max", "write_rows"]

MESSAGE_BYTES_MAX = 2 << 20
DRIVER_BYTES = 32 << 20
ROW_BYTES = 20
"""Of each row beside key, value and headers: its time, and where each of them ends."""
FILES_AT_ONCE = 8
THREADS_FROM_BYTES = 1 << 20
"""Fewer bytes are encoded on a local disk before threads would have started."""

# The encoder works chunk by chunk: with fewer rows in each, combining them first is faster.
ROWS_PER_CHUNK_MIN = 1024

_BARE_SCHEMA = pa.schema([item for item in RECORD_SCHEMA if item.name != "headers"])


def message_bytes_max(task: int) -> int:
    """How many bytes of rows task number `task` may send to the driver.

    All tasks together: 32 MiB of 16 tasks, 110 MiB of 200, 240 MiB of 10,000.
    """
    return min(MESSAGE_BYTES_MAX, DRIVER_BYTES // (task + 1))


class Lane(NamedTuple):
    """A partition of a topic; the id tells the topic from one that was created again."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of a task: `counts` has the rows of each lane, in their order in `data`, which is an
    Arrow record batch of RECORD_SCHEMA, without headers unless `has_headers`.
    """

    counts: tuple[tuple[Lane, int], ...]
    data: bytes
    has_headers: bool

    @classmethod
    def of(cls, lanes: Sequence[tuple[Lane, list[pa.RecordBatch]]]) -> MessageRows:
        """The batches of each lane, all with the same columns."""
        counts = tuple((lane, sum(rows.num_rows for rows in batches)) for lane, batches in lanes)
        whole = combined([rows for _, batches in lanes for rows in batches])
        return cls(counts, whole.serialize().to_pybytes(), "headers" in whole.schema.names)

    def parts(self) -> Iterator[tuple[Lane, pa.RecordBatch]]:
        """The rows of each lane, without a copy."""
        schema = RECORD_SCHEMA if self.has_headers else _BARE_SCHEMA
        whole = pa.ipc.read_record_batch(pa.py_buffer(self.data), schema)
        start = 0
        for lane, count in self.counts:
            yield lane, whole.slice(start, count)
            start += count


@dataclass(slots=True)
class _File:
    """A file that is to be written, of one or more tasks."""

    lane: Lane
    rows: list[pa.RecordBatch] = field(default_factory=list)
    staged: StagedBatch | None = None


class TaskFiles:
    """The files of a commit: those that tasks have staged, and those of rows in their messages.

    A partition's files are in the order of the tasks, which keeps the order of the input.
    """

    def __init__(
        self,
        tasks: Sequence[tuple[Sequence[StagedBatch], MessageRows | None]],
        *,
        compression: str | None,
    ) -> None:
        self._compression = compression
        self._files: list[StagedBatch | _File] = []
        self._bytes = 0
        self.num_records = 0
        open_files: dict[Lane, _File] = {}
        for batches, rows in tasks:
            for batch in batches:
                # What later tasks send comes after this file.
                open_files.pop(Lane(batch.topic, batch.topic_id, batch.partition), None)
                self._files.append(batch)
                self.num_records += batch.num_records
            if rows is None:
                continue
            self._bytes += len(rows.data)
            for lane, part in rows.parts():
                file = open_files.get(lane)
                # Two writes of a transaction may differ in whether they have headers.
                if file is None or file.rows[0].num_columns != part.num_columns:
                    file = open_files[lane] = _File(lane)
                    self._files.append(file)
                file.rows.append(part)
                self.num_records += part.num_rows
        self.topics = frozenset(
            file.lane.topic if isinstance(file, _File) else file.topic for file in self._files
        )

    @property
    def num_files(self) -> int:
        return len(self._files)

    def write(self, store: ObjectStore) -> list[StagedBatch]:
        """Write what is not yet written, and return all files. Raises StorageError: call again."""
        waiting = [item for item in self._files if isinstance(item, _File) and item.staged is None]

        def write(file: _File) -> None:
            file.staged = write_rows(store, file.lane, file.rows, compression=self._compression)

        if store.is_local and self._bytes >= THREADS_FROM_BYTES:
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                for _ in pool.map(write, waiting):
                    pass
        else:
            store.together([partial(write, file) for file in waiting])
        staged = [item.staged if isinstance(item, _File) else item for item in self._files]
        return [file for file in staged if file is not None]


def as_table(rows: list[pa.RecordBatch]) -> pa.Table:
    """The rows for the encoder."""
    if sum(batch.num_rows for batch in rows) < ROWS_PER_CHUNK_MIN * len(rows):
        rows = [combined(rows)]
    return pa.Table.from_batches(rows)


def write_rows(
    store: ObjectStore, lane: Lane, rows: list[pa.RecordBatch], *, compression: str | None
) -> StagedBatch:
    """One file of a lane; its time is that before the upload."""
    staged_ms = store.now_ms()
    name = new_batch_name(lane.partition)
    written = write_batch_file(
        store, f"{lane.topic}/{name}", as_table(rows), compression=compression
    )
    return written.staged(*lane, staged_ms=staged_ms)
