"""Staging: writes the rows of one Spark task to Parquet files, invisible until a commit.

Each incoming batch is routed, sorted by lane (topic-partition) and cut into one slice per lane:
one `take` while the batch is in the processor's cache, no Python per record. Slices collect until
a round of `round_bytes` is full. Then large buffers are encoded, and the others are copied so that
a few rows do not keep whole batches in memory. These limits bound memory for any amount of data
and any number of lanes:

    round_bytes    slices of the batches of this round
    carried_bytes  rows of partitions too small to encode, copied from earlier rounds
    held_bytes     encoded bytes of files that are not streamed
    files_max      files with encoded bytes in memory, each with its encoder
    streams_max    files streamed through the store's writer, each with its upload buffer

Staging deletes no file: after an error, vacuum removes what was written. The rows of a task with
few bytes go into its commit message instead (message_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_sink.message_rows import ROW_BYTES, Lane, MessageRows, as_table, write_rows
from spark_sink.routing import Int32s, Router, Topic, Topics
from spark_sink.rows import check_columns, rows_of_batch, sliced
from txnlog.connector.record_batches import combined
from txnlog.protocol.metadata import StagedBatch
from txnlog.storage.batches.records import RECORD_OVERHEAD_BYTES, record_sizes
from txnlog.storage.batches.writer import (
    BatchFileWriter,
    new_batch_name,
)
from txnlog.storage.store.objects import ObjectStore

__all__ = ["Limits", "Stager"]

# Incoming batches are combined until the average lane gets this many rows: slices of a few rows
# cost more than the rows.
ROWS_PER_SLICE_MIN = 256
COMBINED_BYTES_MAX = 16 << 20
PUTS_AT_ONCE = 8


class StagingCluster(Topics, Protocol):
    """The part of txnlog.cluster.Cluster that the sink's tasks use."""

    @property
    def store(self) -> ObjectStore: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Memory bounds of one task, see the module's docstring. Tests make them small."""

    round_bytes: int = 8 << 20
    carried_bytes: int = 32 << 20
    held_bytes: int = 64 << 20
    stream_from_bytes: int = 8 << 20
    files_max: int = 1024
    streams_max: int = 4
    row_group_bytes: int = 6 << 20


LOCAL_LIMITS = Limits(stream_from_bytes=0, streams_max=64)


@dataclass(slots=True)
class _PartitionBuffer:
    """One topic-partition of the task: its buffered rows, its open file, its finished files."""

    log: Topic
    partition: int
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    file: BatchFileWriter | None = None
    file_staged_ms: int = 0
    staged: list[StagedBatch] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        return self.file.held_bytes if self.file is not None else 0

    @property
    def is_streaming(self) -> bool:
        return self.file is not None and self.file.streaming

    @property
    def lane(self) -> Lane:
        return Lane(self.log.name, self.log.topic_id, self.partition)

    def take_waiting(self) -> list[pa.RecordBatch]:
        waiting = self.waiting
        self.waiting, self.waiting_bytes = [], 0
        return waiting


class Stager:
    """Writes the rows of one task; one instance per task attempt, used once.

    `topic` is the option, `target_size_bytes` the encoded size at which a file is rolled,
    `task_ms` the timestamp of rows without one (default: the store's clock at the first row),
    `compression` the codec of files (default: chosen by their content), `seed` makes the
    partitions of rows without a key repeatable. Up to `message_bytes_max` bytes of rows are not
    staged, but left in `message_rows`.
    """

    def __init__(
        self,
        cluster: StagingCluster,
        *,
        topic: str | None,
        include_headers: bool,
        target_size_bytes: int,
        auto_create: bool = True,
        partitions: int | None = None,
        task_ms: int | None = None,
        compression: str | None = None,
        seed: int | None = None,
        message_bytes_max: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.message_rows: MessageRows | None = None
        self._message_bytes_max = message_bytes_max
        self._store = cluster.store
        self._topic = topic
        self._include_headers = include_headers
        self._target_size_bytes = target_size_bytes
        self._task_ms = task_ms
        self._compression = compression
        self._limits = limits or (LOCAL_LIMITS if cluster.store.is_local else Limits())
        self._router = Router(
            cluster, topic=topic, auto_create=auto_create, partitions=partitions, seed=seed
        )
        self._buffers: dict[int, _PartitionBuffer] = {}
        self._round_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedBatch]:
        """Stage all rows and return the files, by topic and partition, in the order of the rows.

        Offsets must be assigned in that order. Without rows there are no files. After an error
        nothing may be committed; files already written remain, unreferenced.
        Raises ConfigError, InvalidRecordError, InvalidTopicError, RecordTooLargeError,
        UnknownTopicOrPartitionError, StorageError.
        """
        first_row = 0
        for batch in self._resized(batches):
            self._add(batch, first_row)
            first_row += batch.num_rows
            if self._round_bytes >= self._limits.round_bytes:
                self._end_round()
        buffers = sorted(
            self._buffers.values(), key=lambda buffer: (buffer.log.name, buffer.partition)
        )
        if self._fits_message(first_row):
            self.message_rows = MessageRows.of([(each.lane, each.waiting) for each in buffers])
            return []
        self._finish_all()
        return [staged for buffer in buffers for staged in buffer.staged]

    def _fits_message(self, rows: int) -> bool:
        if not rows or any(buffer.file or buffer.staged for buffer in self._buffers.values()):
            return False
        size_bytes = sum(buffer.waiting_bytes for buffer in self._buffers.values())
        size_bytes -= rows * (RECORD_OVERHEAD_BYTES - ROW_BYTES)
        return size_bytes <= self._message_bytes_max

    def _resized(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Incoming batches, split or combined so that slices are neither tiny nor huge."""
        pending: list[pa.RecordBatch] = []
        rows = pending_bytes = 0
        for incoming in batches:
            for batch in sliced(incoming):
                if batch.num_rows == 0:
                    continue
                pending.append(batch)
                rows += batch.num_rows
                pending_bytes += batch.nbytes
                rows_min = ROWS_PER_SLICE_MIN * len(self._buffers)
                if rows >= rows_min or pending_bytes >= COMBINED_BYTES_MAX:
                    yield combined(pending)
                    pending, rows, pending_bytes = [], 0, 0
        if pending:
            yield combined(pending)

    def _add(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Cut a batch into one slice per lane, and append each to its buffer."""
        columns = check_columns(
            batch.schema, topic=self._topic, include_headers=self._include_headers
        )
        if self._task_ms is None:
            self._task_ms = self._store.now_ms()
        rows = rows_of_batch(batch, columns, first_row=first_row, task_us=self._task_ms * 1000)
        sizes = record_sizes(rows.records)
        lanes = self._router.lanes(rows, sizes)
        self._round_bytes += max(batch.nbytes, rows.records.nbytes)
        order = _order_by_lane(lanes)
        records = rows.records
        if columns.headers is None:
            records = records.drop_columns(["headers"])
        if order is not None:
            records, lanes, sizes = records.take(pa.array(order)), lanes[order], sizes[order]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(lanes)) + 1))
        ends = np.append(starts[1:], len(lanes))
        slice_bytes = np.add.reduceat(sizes, starts)
        slices = zip(
            lanes[starts].tolist(),
            starts.tolist(),
            (ends - starts).tolist(),
            slice_bytes.tolist(),
            strict=True,
        )
        for lane, start, count, size_bytes in slices:
            buffer = self._buffer_of(lane)
            buffer.waiting.append(records.slice(start, count))
            buffer.waiting_bytes += size_bytes

    def _buffer_of(self, lane: int) -> _PartitionBuffer:
        buffer = self._buffers.get(lane)
        if buffer is None:
            buffer = self._buffers[lane] = _PartitionBuffer(*self._router.topic_partition(lane))
        return buffer

    # -- the end of a round ----------------------------------------------------------------------

    def _end_round(self) -> None:
        """Encode the largest buffers, copy the rows of the others, bound the encoded bytes."""
        by_size = sorted(self._buffers.values(), key=lambda buffer: -buffer.waiting_bytes)
        carried_bytes = sum(buffer.waiting_bytes for buffer in by_size)
        for buffer in by_size:
            large = buffer.waiting_bytes >= self._limits.row_group_bytes // 2
            if not large and carried_bytes <= self._limits.carried_bytes:
                break
            carried_bytes -= buffer.waiting_bytes
            self._encode(buffer)
        for buffer in by_size:
            if buffer.waiting:
                buffer.waiting = [_copied(buffer.waiting)]
        self._round_bytes = 0
        self._bound_held_bytes()

    def _encode(self, buffer: _PartitionBuffer) -> None:
        """Append the buffered rows to the partition's file; roll it at the target size."""
        if not buffer.waiting:
            return
        size_bytes = buffer.waiting_bytes
        table = as_table(buffer.take_waiting())
        group_bytes = min(self._limits.row_group_bytes, self._target_size_bytes)
        rows = max(1, group_bytes * table.num_rows // max(size_bytes, 1))
        for start in range(0, table.num_rows, rows):
            if buffer.file is None:
                headers = "headers" in table.column_names
                buffer.file = BatchFileWriter(
                    self._store, _new_path(buffer), compression=self._compression, headers=headers
                )
                buffer.file_staged_ms = self._store.now_ms()
                self._stream_at_once(buffer.file)
            buffer.file.write(table.slice(start, rows))
            if buffer.file.size_bytes >= self._target_size_bytes:
                self._close(buffer)

    def _stream_at_once(self, file: BatchFileWriter) -> None:
        """Stream a new file where that needs no memory, while streams are free."""
        if self._limits.stream_from_bytes == 0 and self._streams() < self._limits.streams_max:
            file.stream()

    def _streams(self) -> int:
        return sum(buffer.is_streaming for buffer in self._buffers.values())

    def _bound_held_bytes(self) -> None:
        """Stream large files while streams are free; close the largest above the limits."""
        streams = self._streams()
        holding = [
            buffer for buffer in self._buffers.values() if buffer.file and not buffer.is_streaming
        ]
        holding.sort(key=lambda buffer: -buffer.held_bytes)
        held_bytes, files = sum(buffer.held_bytes for buffer in holding), len(holding)
        for buffer in holding:
            is_over_limit = held_bytes > self._limits.held_bytes or files > self._limits.files_max
            if buffer.held_bytes < self._limits.stream_from_bytes and not is_over_limit:
                return
            size_bytes = buffer.held_bytes
            if buffer.file is not None and streams < self._limits.streams_max:
                buffer.file.stream()
                streams += 1
            elif is_over_limit:
                self._close(buffer)
            else:
                continue
            held_bytes -= size_bytes
            files -= 1

    # -- files -----------------------------------------------------------------------------------

    def _finish_all(self) -> None:
        """Write out all buffers; several at once where a put is a request over the network."""
        buffers = [buffer for buffer in self._buffers.values() if buffer.waiting or buffer.file]
        if len(buffers) < 2 or self._store.local_path("") is not None:
            for buffer in buffers:
                self._finish(buffer)
            return
        with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
            for _ in pool.map(self._finish, buffers):
                pass

    def _finish(self, buffer: _PartitionBuffer) -> None:
        if buffer.file is None and buffer.waiting_bytes <= self._target_size_bytes:
            rows = buffer.take_waiting()
            buffer.staged.append(
                write_rows(self._store, buffer.lane, rows, compression=self._compression)
            )
            return
        self._encode(buffer)
        if buffer.file is not None:
            self._close(buffer)

    def _close(self, buffer: _PartitionBuffer) -> None:
        if buffer.file is not None:
            written = buffer.file.close()
            buffer.staged.append(written.staged(*buffer.lane, staged_ms=buffer.file_staged_ms))
            buffer.file = None


def _order_by_lane(lanes: Int32s) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """The stable order that groups rows by lane; None if all rows have the same lane."""
    if lanes[0] == lanes[-1] and np.all(lanes == lanes[0]):
        return None
    # numpy sorts integers of 8 and 16 bits by radix, four to eight times faster than wider ones.
    highest = int(lanes.max())
    narrow = np.int8 if highest < 1 << 7 else np.int16 if highest < 1 << 15 else np.int32
    return np.argsort(lanes.astype(narrow), kind="stable")


def _copied(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with its own memory, so that the batches its slices refer to are freed."""
    if len(batches) > 1:
        return combined(batches)
    return batches[0].take(pa.array(np.arange(batches[0].num_rows)))


def _new_path(buffer: _PartitionBuffer) -> str:
    return f"{buffer.log.path}/{new_batch_name(buffer.partition)}"
