"""Reading partitions in order: from batch headers to files, from files to Arrow and messages.

A plan comes from one snapshot of a topic's log, so that batches and their status agree (R19).
Aborted files are never opened, and positions skip them (R16, R17). Only one chunk is decoded at a
time, and what is fetched ahead is bounded: memory does not grow with the number of partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice, repeat
from typing import Protocol

import numpy as np
import pyarrow as pa

from txnlog.errors import ObjectNotFoundError, OffsetOutOfRangeError, TxnLogError
from txnlog.messages import Message
from txnlog.process import arrow_compute as pc
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.batches import BatchHeader
from txnlog.storage.batches.read_ahead import may_fetch
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.records import to_messages, with_names
from txnlog.storage.tables.topic_log import TopicLog

CHUNK_ROWS = 16_384
CHUNK_BYTES = 4 << 20

_COLUMNS = ("offset_delta", "timestamp", "key", "value", "headers")

Key = tuple[str, int]


class Chunk(Protocol):
    """Records of one partition, in offset order."""

    reader: PartitionReader
    num_rows: int

    def offset(self, row: int) -> int:
        """The record offset of this row."""

    def nbytes(self, start: int, length: int) -> int:
        """Size of rows start to start + length."""

    def to_arrow(self, start: int, length: int) -> pa.RecordBatch:
        """Rows start to start + length as a batch of MESSAGE_SCHEMA."""

    def messages(self, start: int = 0) -> Iterator[Message]:
        """The rows from `start` on as messages, created lazily."""


class ArrowChunk:
    """Records of a file as Arrow columns."""

    def __init__(self, reader: PartitionReader, offsets: pa.Array, records: pa.RecordBatch) -> None:
        self.reader = reader
        self.num_rows: int = records.num_rows
        self._offsets = offsets
        self._records = records

    def offset(self, row: int) -> int:
        return int(self._offsets[row].as_py())

    def nbytes(self, start: int, length: int) -> int:
        return int(self._records.slice(start, length).nbytes)

    def to_arrow(self, start: int, length: int) -> pa.RecordBatch:
        records = self._records.slice(start, length)
        offsets = self._offsets.slice(start, length)
        return to_messages(records, self.reader.topic, self.reader.partition, offsets)

    def messages(self, start: int = 0) -> Iterator[Message]:
        records = self._records.slice(start)
        return map(
            Message,
            repeat(self.reader.topic),
            repeat(self.reader.partition),
            self._offsets.slice(start).to_pylist(),
            records.column("key").to_pylist(),
            records.column("value").to_pylist(),
            _milliseconds(records.column("timestamp")),
            _headers(records.column("headers")),
        )


class ListChunk:
    """Records of a small file as Python lists, so that messages need no Arrow conversion."""

    def __init__(self, reader: PartitionReader, base_offset: int, records: RecordLists) -> None:
        self.reader = reader
        self.num_rows = records.num_rows
        self._base_offset = base_offset
        self._records = records

    def offset(self, row: int) -> int:
        return self._base_offset + row

    def nbytes(self, start: int, length: int) -> int:
        # As Arrow counts: with the record offsets, and the ends of keys, values and headers.
        return self._records.slice(start, start + length).data_bytes + 20 * length

    def to_arrow(self, start: int, length: int) -> pa.RecordBatch:
        records = self._records.slice(start, start + length).to_arrow()
        offsets = number_array(np.arange(length) + self.offset(start))
        return to_messages(records, self.reader.topic, self.reader.partition, offsets)

    def messages(self, start: int = 0) -> Iterator[Message]:
        times_us, keys, values, _ = self._records.slice(start, None)
        times_ms = [None if time_us is None else time_us // 1000 for time_us in times_us]
        at = repeat(self.reader.topic), repeat(self.reader.partition), count(self.offset(start))
        return map(Message, *at, keys, values, times_ms)


class Fetched:
    """What a consumer has read, of all partitions that it ever had."""

    def __init__(self) -> None:
        self.files = 0
        self.size_bytes = 0
        self.records = 0


class PartitionReader:
    """One assigned partition. `position` is the next offset to return, None before it is set.

    `reported_end` is the end that enable.partition.eof reported last.
    """

    def __init__(
        self, log: TopicLog, partition: int, fetched: Fetched, *, read_committed: bool
    ) -> None:
        self.log = log
        self._fetched = fetched
        self.topic = log.name
        self.partition = partition
        self.position: int | None = None
        self.is_paused = False
        self.reported_end: int | None = None
        self._read_committed = read_committed
        self._next = 0
        self._end = 0
        self._plan: deque[BatchHeader] = deque()
        self._ahead: dict[str, bytes] = {}
        self._planned: tuple[int, int] | None = None
        self._records: Iterator[pa.RecordBatch | RecordLists] | None = None
        self._is_held = False
        self._header: BatchHeader | None = None

    @property
    def is_plan_empty(self) -> bool:
        """Whether no file follows the current one."""
        return not self._plan

    @property
    def is_active(self) -> bool:
        """Whether it is to be read: it has a position and is not paused."""
        return self.position is not None and not self.is_paused

    @property
    def is_at_end(self) -> bool:
        """Whether all records up to the end, as of the log's last refresh, were returned."""
        return self.is_active and self.log.exists and self.position == self.end_offset

    @property
    def ahead_bytes(self) -> int:
        """Size of the files that are fetched and not opened yet."""
        return sum(map(len, self._ahead.values()))

    @property
    def is_at_hand(self) -> bool:
        """Whether `read` makes no request to the store."""
        if self._records is not None:
            return self._is_held
        return not self._plan or self._plan[0].path in self._ahead

    @property
    def must_fetch(self) -> bool:
        """Whether `read` opens a file that should be fetched with others."""
        return self._records is None and next(self.files_to_fetch(1), None) is not None

    def files_to_fetch(self, count: int | None = None) -> Iterator[BatchHeader]:
        """The files of the plan, of the first `count`, that can be fetched and are not yet."""
        store = self.log.store
        for header in islice(self._plan, count):
            if header.path not in self._ahead and may_fetch(store, header.size_bytes):
                yield header

    def hold(self, header: BatchHeader, data: bytes) -> None:
        """Keep the bytes of a file of the plan until `read` opens it."""
        self._ahead[header.path] = data

    @property
    def start_offset(self) -> int:
        return self.log.view.log_start_offset(self.partition)

    @property
    def end_offset(self) -> int:
        """The end for this isolation level: LSO or high watermark."""
        view = self.log.view
        if self._read_committed:
            return view.last_stable_offset(self.partition)
        return view.high_watermark(self.partition)

    def seek(self, position: int | None) -> None:
        """Continue at `position`; discard what was read ahead."""
        self.position = position
        self._next = self._end = position or 0
        self._plan.clear()
        self._ahead.clear()
        self._records = self._header = None

    def rewind(self) -> None:
        """Discard what was read but not returned, so that it is read again."""
        self.seek(self.position)

    @property
    def is_idle(self) -> bool:
        """Whether everything up to the end of its log, as it was planned last, is read."""
        return self._header is None and self._planned == (self.log.log.version, self._next)

    def is_in_range(self) -> bool:
        """Whether the position is between the log start and the high watermark."""
        if self._header is not None:
            return True
        return self.start_offset <= self._next <= self.log.view.high_watermark(self.partition)

    def plan(self) -> None:
        """Plan the files from the position to the end, from the refreshed log."""
        start = self._next if self._header is None else self._header.last_offset + 1
        self._end = max(start, self.end_offset)
        found = self.log.view.batches(self.partition, start, self._end, self._read_committed)
        self._plan = deque(found)
        self._planned = (self.log.log.version, self._end) if not found else None

    def read(self) -> Chunk | None:
        """The next records of the plan; None at its end, after moving the position there."""
        while self._records is not None or self._plan:
            if self._records is None:
                self._open(self._plan.popleft())
            chunk = self._next_chunk()
            if chunk is not None:
                return chunk
        self._next = self.position = max(self._next, self._end)
        return None

    def _open(self, header: BatchHeader) -> None:
        num_records = header.num_records
        count = num_records or header.last_offset - header.base_offset + 1
        rows = CHUNK_BYTES // max(1, header.size_bytes // count)
        self._header = header
        self._fetched.files += 1
        self._fetched.size_bytes += header.size_bytes
        data = self._ahead.pop(header.path, None)
        self._is_held = data is not None
        span = FileSpan(
            f"{self.log.path}/{header.path}",
            first_delta=max(0, self._next - header.base_offset),
            end_delta=min(self._end, header.last_offset + 1) - header.base_offset,
            num_records=num_records,
            size_bytes=header.size_bytes,
            is_dense=num_records == header.last_offset - header.base_offset + 1,
        )
        self._records = read_records(
            self.log.store,
            span,
            columns=_COLUMNS,
            batch_rows=max(1, min(CHUNK_ROWS, rows)),
            data=data,
        )

    def _next_chunk(self) -> Chunk | None:
        """The next chunk of the open file, None at its end. After an error the plan is empty."""
        header, records = self._header, self._records
        assert header is not None
        assert records is not None
        try:
            found = next(records, None)
        except TxnLogError as error:
            self._plan.clear()
            self._ahead.clear()
            self._records = self._header = None
            self._end = self._next
            if not isinstance(error, ObjectNotFoundError):
                raise
            # Vacuum has deleted the file. Compaction wrote its records to another file (R20), or
            # retention removed them, and auto.offset.reset applies (R14).
            self.log.refresh()
            if header.path in self.log.view.by_path:
                raise
            if self.log.exists and self.is_in_range():
                self.plan()
            return None
        if found is None:
            self._next = max(self._next, min(header.last_offset + 1, self._end))
            self._records = self._header = None
            return None
        chunk: Chunk
        if isinstance(found, RecordLists):
            chunk = ListChunk(self, max(self._next, header.base_offset), found)
        else:
            offsets = number_array(found.column("offset_delta").to_numpy() + header.base_offset)
            chunk = ArrowChunk(self, offsets, found)
        self._next = chunk.offset(chunk.num_rows - 1) + 1
        self._fetched.records += chunk.num_rows
        return chunk


def out_of_range(reader: PartitionReader) -> OffsetOutOfRangeError:
    """The error of auto.offset.reset=none."""
    where = f"{reader.topic!r} partition {reader.partition}"
    start, end = reader.start_offset, reader.end_offset
    if reader.position is None:
        what = f"There is no committed offset for {where}"
    else:
        what = f"Offset {reader.position} of {where} is out of range: it has {start} to {end}"
    return OffsetOutOfRangeError(
        f"{what}. With auto.offset.reset=none you must give a position: seek, or set "
        "auto.offset.reset to earliest or latest.",
        topic=reader.topic,
        partition=reader.partition,
        start_offset=start,
        end_offset=end,
    )


def _milliseconds(column: pa.Array) -> list[int | None]:
    times_us = column.cast(pa.int64())
    if times_us.null_count:
        return [None if us is None else us // 1000 for us in times_us.to_pylist()]
    times_ms: list[int | None] = (times_us.to_numpy(zero_copy_only=False) // 1000).tolist()
    return times_ms


def _headers(column: pa.ListArray) -> Iterable[list[tuple[str, bytes | None]] | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    flat = with_names(column).flatten()
    pairs = list(zip(*(part.to_pylist() for part in flat.flatten()), strict=True))
    lengths = pc.list_value_length(column).to_pylist()
    found: list[list[tuple[str, bytes | None]] | None] = []
    at = 0
    for length in lengths:
        if not length:
            found.append(None)
            continue
        found.append(pairs[at : at + length])
        at += length
    return found
