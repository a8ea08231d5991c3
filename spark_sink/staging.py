"""Staging: the rows of one Spark task become Parquet files that nobody sees until a commit.

Each incoming batch is routed, sorted by lane (topic-partition) and cut into the lanes' slices: one
`take` while the batch is in the processor's cache, no Python per record. Slices gather until a
round of `round_bytes` is full; then large lanes are encoded, and the rest is copied so that a few
rows do not keep whole batches in memory. Memory is bounded by the limits below whatever the amount
of data and the number of lanes:

    round_bytes    slices of the batches of this round
    carried_bytes  rows of lanes too small to be encoded, copied from earlier rounds
    held_bytes     encoded bytes of files that are not streamed
    files_max      files with encoded bytes in memory, each with its encoder
    streams_max    files streamed through the store's writer, each with its upload buffer

Nothing is ever deleted here: after an error, files stay for vacuum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_sink.routing import Int32s, Router, Topic, Topics
from spark_sink.rows import check_columns, rows_of_batch, sliced
from txnlog.protocol.metadata import StagedBatch
from txnlog.storage.batches.records import record_sizes
from txnlog.storage.batches.writer import (
    ROW_GROUP_BYTES,
    BatchFile,
    BatchFileWriter,
    new_batch_name,
    write_batch_file,
)
from txnlog.storage.store.objects import ObjectStore

__all__ = ["Limits", "Stager"]

# Incoming batches are joined while a lane would get fewer rows of them than this: slices of a few
# rows cost more than the rows.
ROWS_PER_SLICE_MIN = 256
ROWS_PER_CHUNK_MIN = 8192
JOINED_BYTES_MAX = 16 << 20
PUTS_AT_ONCE = 8


class StagingCluster(Topics, Protocol):
    """What the sink's tasks ask of a txnlog.cluster.Cluster."""

    @property
    def store(self) -> ObjectStore: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Memory bounds of one task, see the module's text. Tests make them small."""

    round_bytes: int = 64 << 20
    carried_bytes: int = 32 << 20
    held_bytes: int = 64 << 20
    stream_from_bytes: int = 8 << 20
    files_max: int = 1024
    streams_max: int = 4
    row_group_bytes: int = ROW_GROUP_BYTES


@dataclass(slots=True)
class _Lane:
    """One topic-partition of the task: its waiting rows, its open file, its finished files."""

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

    def take_waiting(self) -> pa.Table:
        waiting = self.waiting
        self.waiting, self.waiting_bytes = [], 0
        # The encoder works chunk by chunk: below this size, joining them first is faster.
        if sum(batch.num_rows for batch in waiting) < ROWS_PER_CHUNK_MIN * len(waiting):
            waiting = [_as_one(waiting)]
        return pa.Table.from_batches(waiting)


class Stager:
    """Writes the rows of one task; made anew for each task attempt, and used once.

    `topic` is the option, `target_size_bytes` the encoded size at which a file is closed and the
    next begun, `task_ms` the time of rows without a timestamp (default: the store's clock at the
    first row), `compression` the codec of files (default: what suits them), `seed` makes the
    partitions of rows without a key repeatable.
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
        limits: Limits | None = None,
    ) -> None:
        self._store = cluster.store
        self._topic = topic
        self._include_headers = include_headers
        self._target_size_bytes = target_size_bytes
        self._task_ms = task_ms
        self._compression = compression
        self._limits = limits or Limits()
        self._router = Router(
            cluster, topic=topic, auto_create=auto_create, partitions=partitions, seed=seed
        )
        self._lanes: dict[int, _Lane] = {}
        self._round_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedBatch]:
        """Stage all rows and return the files, by topic and partition, in the order of the rows.

        Whoever gives out offsets must keep that order. No rows: no files. On any error nothing
        may be committed; what was written stays, unseen.
        Raises ConfigError, InvalidRecordError, InvalidTopicError, RecordTooLargeError,
        UnknownTopicOrPartitionError, StorageError.
        """
        first_row = 0
        for batch in self._joined(batches):
            self._add(batch, first_row)
            first_row += batch.num_rows
            if self._round_bytes >= self._limits.round_bytes:
                self._settle()
        self._finish_all()
        lanes = sorted(self._lanes.values(), key=lambda lane: (lane.log.name, lane.partition))
        return [staged for lane in lanes for staged in lane.staged]

    def _joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Incoming batches, made larger or smaller so that slices have a sensible size."""
        joined: list[pa.RecordBatch] = []
        rows = joined_bytes = 0
        for incoming in batches:
            for batch in sliced(incoming):
                if batch.num_rows == 0:
                    continue
                joined.append(batch)
                rows += batch.num_rows
                joined_bytes += batch.nbytes
                wanted = ROWS_PER_SLICE_MIN * len(self._lanes)
                if rows >= wanted or joined_bytes >= JOINED_BYTES_MAX:
                    yield _as_one(joined)
                    joined, rows, joined_bytes = [], 0, 0
        if joined:
            yield _as_one(joined)

    def _add(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Cut a batch into its lanes' slices."""
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
        found = zip(
            lanes[starts].tolist(),
            starts.tolist(),
            (ends - starts).tolist(),
            slice_bytes.tolist(),
            strict=True,
        )
        for lane_id, start, count, size_bytes in found:
            lane = self._lane(lane_id)
            lane.waiting.append(records.slice(start, count))
            lane.waiting_bytes += size_bytes

    def _lane(self, lane_id: int) -> _Lane:
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = _Lane(*self._router.place(lane_id))
        return lane

    # -- the end of a round ----------------------------------------------------------------------

    def _settle(self) -> None:
        """Encode the largest lanes, copy what the others keep, then bound the encoded bytes."""
        by_size = sorted(self._lanes.values(), key=lambda lane: -lane.waiting_bytes)
        carried_bytes = sum(lane.waiting_bytes for lane in by_size)
        for lane in by_size:
            large = lane.waiting_bytes >= self._limits.row_group_bytes // 2
            if not large and carried_bytes <= self._limits.carried_bytes:
                break
            carried_bytes -= lane.waiting_bytes
            self._encode(lane)
        for lane in by_size:
            if lane.waiting:
                lane.waiting = [_copied(lane.waiting)]
        self._round_bytes = 0
        self._bound_held_bytes()

    def _encode(self, lane: _Lane) -> None:
        """Append a lane's waiting rows to its file, rolling to a new one at the target size."""
        if not lane.waiting:
            return
        size_bytes = lane.waiting_bytes
        table = lane.take_waiting()
        group_bytes = min(self._limits.row_group_bytes, self._target_size_bytes)
        rows = max(1, group_bytes * table.num_rows // max(size_bytes, 1))
        for start in range(0, table.num_rows, rows):
            if lane.file is None:
                headers = "headers" in table.column_names
                lane.file = BatchFileWriter(
                    self._store, _new_path(lane), compression=self._compression, headers=headers
                )
                lane.file_staged_ms = self._store.now_ms()
            lane.file.write(table.slice(start, rows))
            if lane.file.size_bytes >= self._target_size_bytes:
                self._close(lane)

    def _bound_held_bytes(self) -> None:
        """Stream large files while there are streams left; close the largest that are too much."""
        streams = sum(lane.is_streaming for lane in self._lanes.values())
        holding = [lane for lane in self._lanes.values() if lane.file and not lane.is_streaming]
        holding.sort(key=lambda lane: -lane.held_bytes)
        held_bytes, files = sum(lane.held_bytes for lane in holding), len(holding)
        for lane in holding:
            too_much = held_bytes > self._limits.held_bytes or files > self._limits.files_max
            if lane.held_bytes < self._limits.stream_from_bytes and not too_much:
                return
            size_bytes = lane.held_bytes
            if lane.file is not None and streams < self._limits.streams_max:
                lane.file.stream()
                streams += 1
            elif too_much:
                self._close(lane)
            else:
                continue
            held_bytes -= size_bytes
            files -= 1

    # -- files -----------------------------------------------------------------------------------

    def _finish_all(self) -> None:
        """Write out everything. Where a put is a request over the network, several at once."""
        lanes = [lane for lane in self._lanes.values() if lane.waiting or lane.file]
        if len(lanes) < 2 or self._store.local_path("") is not None:
            for lane in lanes:
                self._finish(lane)
            return
        with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
            for _ in pool.map(self._finish, lanes):
                pass

    def _finish(self, lane: _Lane) -> None:
        if lane.file is None and lane.waiting_bytes <= self._target_size_bytes:
            staged_ms = self._store.now_ms()
            written = write_batch_file(
                self._store, _new_path(lane), lane.take_waiting(), compression=self._compression
            )
            lane.staged.append(_staged(lane, written, staged_ms))
            return
        self._encode(lane)
        if lane.file is not None:
            self._close(lane)

    def _close(self, lane: _Lane) -> None:
        if lane.file is not None:
            lane.staged.append(_staged(lane, lane.file.close(), lane.file_staged_ms))
            lane.file = None


def _order_by_lane(lanes: Int32s) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """The stable order that brings each lane's rows together; None if they are together."""
    if lanes[0] == lanes[-1] and np.all(lanes == lanes[0]):
        return None
    # numpy sorts integers of 8 and 16 bits by radix, four to eight times faster than wider ones.
    highest = int(lanes.max())
    narrow = np.int8 if highest < 1 << 7 else np.int16 if highest < 1 << 15 else np.int32
    return np.argsort(lanes.astype(narrow), kind="stable")


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several; itself, if there is only one."""
    if len(batches) == 1:
        return batches[0]
    # pa.concat_batches does the same from pyarrow 19 on.
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _copied(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with memory of its own, so that the slices' parents are freed."""
    if len(batches) > 1:
        return _as_one(batches)
    return batches[0].take(pa.array(np.arange(batches[0].num_rows)))


def _new_path(lane: _Lane) -> str:
    return f"{lane.log.path}/{new_batch_name(lane.partition)}"


def _staged(lane: _Lane, written: BatchFile, staged_ms: int) -> StagedBatch:
    """`staged_ms` is taken before the upload begins: S3 dates a multipart upload by its start."""
    return StagedBatch(
        topic=lane.log.name,
        topic_id=lane.log.topic_id,
        partition=lane.partition,
        path=written.path.rsplit("/", 1)[-1],
        size_bytes=written.size_bytes,
        num_records=written.num_records,
        timestamp_min_us=written.timestamp_min_us,
        timestamp_max_us=written.timestamp_max_us,
        staged_ms=staged_ms,
    )
