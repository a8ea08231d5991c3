"""Turns buffered records into batches: assigns partitions, writes files.

Many records are processed as whole Arrow columns. A few records of `produce` stay Python lists up
to the file: for few records, each call into Arrow or numpy costs more than the records do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import StorePermissionError, TopicAuthorizationError
from txnlog.process.arrow_arrays import number_array
from txnlog.producing.accumulator import Called, Piece, Rows, Table
from txnlog.producing.destinations import Destination
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.partitioner import partition_for_keys, sticky_partitions
from txnlog.storage.batches.record_lists import RecordLists, concatenate
from txnlog.storage.batches.records import record_sizes
from txnlog.storage.batches.small_batch_form import ROWS_MAX
from txnlog.storage.batches.writer import new_batch_name, write_batch_file
from txnlog.storage.store.objects import ObjectStore

NO_CALLBACKS: Mapping[int, Called] = {}


@dataclass(slots=True)
class Batch:
    """Records of one partition, in order. `callbacks` are by index; `size_bytes` is what the
    accumulator counts for these records, `held_bytes` what of it is not released yet.

    `is_taken` and `is_reported` say that a publication has it, and that its outcome is reported: so
    each of these steps may be repeated after an interrupt.
    """

    topic: str
    topic_id: str
    partition: int
    records: pa.RecordBatch | RecordLists
    size_bytes: int
    created_ms: int
    callbacks: Mapping[int, Called] = field(default_factory=dict)
    held_bytes: int = field(init=False)
    is_taken: bool = field(default=False, init=False)
    is_reported: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.held_bytes = self.size_bytes

    @property
    def num_records(self) -> int:
        return int(self.records.num_rows)


class _Part(NamedTuple):
    """Records of one partition, and their rows in the piece; None: all rows."""

    partition: int
    records: pa.RecordBatch | RecordLists
    rows: Sequence[int] | npt.NDArray[np.int64] | None


def split(piece: Piece, sticky_run_bytes: int) -> Iterator[Batch]:
    """The batches of a piece, by partition; their sizes add up to that of the piece."""
    destination = piece.destination
    if isinstance(piece, Rows):
        piece.drop_incomplete()
        parts = _of_rows(piece, sticky_run_bytes)
    else:
        parts = _of_table(piece, sticky_run_bytes)
    left_bytes, left_rows = piece.size_bytes, piece.num_records
    for part in parts:
        num_records = part.records.num_rows
        share = left_bytes * num_records // left_rows
        left_bytes, left_rows = left_bytes - share, left_rows - num_records
        callbacks = NO_CALLBACKS
        if isinstance(piece, Table):
            if piece.callback is not None:
                callbacks = {num_records - 1: piece.callback}
        elif piece.callbacks:
            callbacks = _callbacks_of(part.rows, piece.callbacks)
        yield Batch(
            destination.topic,
            destination.topic_id,
            part.partition,
            part.records,
            share,
            piece.created_ms,
            callbacks,
        )


def unsplit(piece: Piece) -> Batch:
    """All records of a piece that cannot be split, for the reports to their callbacks."""
    callbacks: Mapping[int, Called] = NO_CALLBACKS
    records: pa.RecordBatch | RecordLists
    if isinstance(piece, Rows):
        count = len(piece.values)
        headers = [piece.headers.get(row) for row in range(count)] if piece.headers else None
        # Without timestamps: converting them may be what failed.
        records = RecordLists([None] * count, piece.keys[:count], piece.values, headers)
        callbacks = piece.callbacks
    else:
        records = piece.records
        if piece.callback is not None:
            callbacks = {piece.num_records - 1: piece.callback}
    to = piece.destination
    return Batch(to.topic, to.topic_id, -1, records, piece.size_bytes, piece.created_ms, callbacks)


def stage(
    store: ObjectStore, batches: Sequence[Batch], compression: str | None = None
) -> StagedBatch:
    """Write batches of one partition as one file; readers see it once a log refers to it.

    Raises StorageError, TopicAuthorizationError.
    """
    first = batches[0]
    name = new_batch_name(first.partition)
    # Read before the upload begins: some stores date an object by the start of its upload.
    staged_ms = store.now_ms()
    records = _concatenated([batch.records for batch in batches])
    try:
        written = write_batch_file(store, f"{first.topic}/{name}", records, compression=compression)
    except StorePermissionError as error:
        raise TopicAuthorizationError(
            f"No permission to write topic {first.topic!r}: {error.message}", topic=first.topic
        ) from error
    return written.staged(first.topic, first.topic_id, first.partition, staged_ms=staged_ms)


def _concatenated(parts: Sequence[pa.RecordBatch | RecordLists]) -> pa.Table | RecordLists:
    lists = [part for part in parts if isinstance(part, RecordLists)]
    if len(lists) == len(parts):
        return concatenate(lists)
    return pa.Table.from_batches(
        [part.to_arrow() if isinstance(part, RecordLists) else part for part in parts]
    )


def _callbacks_of(
    rows: Sequence[int] | npt.NDArray[np.int64] | None, callbacks: Mapping[int, Called]
) -> Mapping[int, Called]:
    if rows is None:
        return callbacks
    return {at: callbacks[row] for at, row in enumerate(rows) if row in callbacks}


# -- records of `produce` --------------------------------------------------------------------------


def _of_rows(piece: Rows, sticky_run_bytes: int) -> Iterator[_Part]:
    count = len(piece.values)
    headers = None
    if piece.headers:
        headers = [piece.headers.get(row) for row in range(count)]
    times_us: list[int | None] = [time_ms * 1000 for time_ms in piece.timestamps_ms]
    records = RecordLists(times_us, piece.keys, piece.values, headers)
    if count > ROWS_MAX:
        batch = records.to_arrow()
        yield from _cut(batch, _partitions(piece, batch, _requested(piece), sticky_run_bytes))
        return
    partitions = _partitions_of_few(piece, records, sticky_run_bytes)
    if isinstance(partitions, int):
        yield _Part(partitions, records, None)
        return
    rows_of: dict[int, list[int]] = {}
    for row, partition in enumerate(partitions):
        rows_of.setdefault(partition, []).append(row)
    for partition, rows in sorted(rows_of.items()):
        yield _Part(partition, records.take(rows), rows)


def _requested(piece: Rows) -> npt.NDArray[np.int32] | None:
    if not piece.partitions:
        return None
    requested = np.full(len(piece.values), -1, dtype=np.int32)
    requested[list(piece.partitions)] = list(piece.partitions.values())
    return requested


def _partitions_of_few(
    piece: Rows, records: RecordLists, sticky_run_bytes: int
) -> Sequence[int] | int:
    """As `_partitions`, without arrays in the common cases."""
    destination, count = piece.destination, len(piece.values)
    if destination.partitions == 1:
        return 0
    if len(piece.partitions) == count:
        # A dict keeps the order of insertion, which is that of the records.
        return list(piece.partitions.values())
    first_run = destination.sticky_bytes // sticky_run_bytes
    last_run = (destination.sticky_bytes + piece.size_bytes - 1) // sticky_run_bytes
    if not piece.partitions and first_run == last_run and piece.keys.count(None) == count:
        # All records begin in the same sticky run.
        whole = np.array([piece.size_bytes])
        return int(_stick(destination, whole, sticky_run_bytes)[0])
    partitions = _partitions(piece, records.to_arrow(), _requested(piece), sticky_run_bytes)
    if isinstance(partitions, int):
        return partitions
    each: list[int] = partitions.tolist()
    return each


# -- records of `produce_batch` --------------------------------------------------------------------


def _of_table(piece: Table, sticky_run_bytes: int) -> Iterator[_Part]:
    requested = None
    if piece.partitions is not None:
        requested = piece.partitions.fill_null(-1).to_numpy(zero_copy_only=False)
    return _cut(piece.records, _partitions(piece, piece.records, requested, sticky_run_bytes))


def _cut(records: pa.RecordBatch, partitions: npt.NDArray[np.int32] | int) -> Iterator[_Part]:
    if isinstance(partitions, int):
        yield _Part(partitions, records, None)
        return
    # numpy has a radix sort for 16-bit integers.
    narrow = partitions.astype(np.uint16) if partitions.max() < 1 << 16 else partitions
    order = np.argsort(narrow, kind="stable")
    ranked = partitions[order]
    bounds = [0, *(np.flatnonzero(np.diff(ranked)) + 1).tolist(), len(ranked)]
    sorted_records = records
    if len(bounds) > 2 and not np.array_equal(order, np.arange(len(order))):
        sorted_records = records.take(number_array(order))
    for start, end in pairwise(bounds):
        yield _Part(int(ranked[start]), sorted_records.slice(start, end - start), order[start:end])


def _partitions(
    piece: Piece,
    records: pa.RecordBatch,
    requested: npt.NDArray[np.int32] | None,
    sticky_run_bytes: int,
) -> npt.NDArray[np.int32] | int:
    """The partition of each record: requested, else the key's hash, else sticky; an int: of all."""
    destination = piece.destination
    if destination.partitions == 1:
        return 0
    keys = records.column("key")
    keyless = keys.null_count
    if requested is None and keyless == len(keys):
        sticky = _stick(destination, record_sizes(records), sticky_run_bytes)
        return int(sticky[0]) if sticky[0] == sticky[-1] else sticky
    if keyless == len(keys):
        partitions = np.full(len(keys), -1, dtype=np.int32)
    else:
        partitions = partition_for_keys(keys, destination.partitions)
    if requested is not None:
        np.copyto(partitions, requested, where=requested >= 0)
    if keyless:
        undecided = np.flatnonzero(partitions < 0)
        if undecided.size:
            sizes = record_sizes(records)[undecided]
            partitions[undecided] = _stick(destination, sizes, sticky_run_bytes)
    return partitions


def _stick(
    destination: Destination, sizes_bytes: npt.NDArray[np.int64], sticky_run_bytes: int
) -> npt.NDArray[np.int32]:
    """Sticky partitions: one for each run of bytes, so files are few and evenly filled."""
    partitions, destination.sticky_bytes = sticky_partitions(
        sizes_bytes,
        seed=destination.sticky_seed,
        partitions=destination.partitions,
        sent_bytes=destination.sticky_bytes,
        run_bytes=sticky_run_bytes,
    )
    return partitions
