"""From records that waited to batches: their partitions, and their files.

Records that came as Arrow are worked on as whole columns. Those that came one by one are lists, and
stay lists up to the file: a transaction has few of them, for which each call into Arrow or numpy
costs more than the records do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import StorePermissionError, TopicAuthorizationError
from txnlog.producing.accumulator import Destination, OnDelivery, Piece, Rows, Table
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.partitioner import partition_for_keys, sticky_partitions
from txnlog.storage.batch_writer import new_batch_name, write_batch_file
from txnlog.storage.record_lists import RecordLists, concatenate
from txnlog.storage.records import record_sizes

if TYPE_CHECKING:
    from txnlog.storage.objects import ObjectStore

NO_CALLBACKS: Mapping[int, OnDelivery] = {}


@dataclass(slots=True)
class Batch:
    """Records of one partition, in order. `callbacks` are by index, `size_bytes` is what the
    accumulator counts for them."""

    topic: str
    topic_id: str
    partition: int
    records: pa.RecordBatch | RecordLists
    size_bytes: int
    created_ms: int
    callbacks: Mapping[int, OnDelivery] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        return int(self.records.num_rows)


class _Part(NamedTuple):
    """Records of one partition, and which of the piece they were; None: all of them."""

    partition: int
    records: pa.RecordBatch | RecordLists
    rows: list[int] | None


def split(piece: Piece, sticky_run_bytes: int) -> Iterator[Batch]:
    """The batches of a piece, by partition; together they have all its bytes."""
    destination = piece.destination
    if isinstance(piece, Rows):
        parts = _of_rows(piece, sticky_run_bytes)
    else:
        parts = _of_table(piece, sticky_run_bytes)
    left_bytes, left_rows = piece.size_bytes, piece.num_records
    for part in parts:
        num_records = part.records.num_rows
        share = left_bytes * num_records // left_rows
        left_bytes, left_rows = left_bytes - share, left_rows - num_records
        callbacks = NO_CALLBACKS
        if not isinstance(piece, Rows):
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


def stage(
    store: ObjectStore, batches: Sequence[Batch], compression: str | None = None
) -> StagedBatch:
    """Write batches of one partition as one file, which nobody sees until a log names it.

    Raises StorageError, TopicAuthorizationError.
    """
    first = batches[0]
    name = new_batch_name(first.partition)
    # Taken before the upload begins: some stores date an object by its start.
    staged_ms = store.now_ms()
    records = _together([batch.records for batch in batches])
    try:
        written = write_batch_file(store, f"{first.topic}/{name}", records, compression=compression)
    except StorePermissionError as error:
        raise TopicAuthorizationError(
            f"No permission to write topic {first.topic!r}: {error.message}", topic=first.topic
        ) from error
    return StagedBatch(
        topic=first.topic,
        topic_id=first.topic_id,
        partition=first.partition,
        path=name,
        size_bytes=written.size_bytes,
        num_records=written.num_records,
        timestamp_min_us=written.timestamp_min_us,
        timestamp_max_us=written.timestamp_max_us,
        staged_ms=staged_ms,
    )


def _together(parts: Sequence[pa.RecordBatch | RecordLists]) -> pa.Table | RecordLists:
    lists = [part for part in parts if isinstance(part, RecordLists)]
    if len(lists) == len(parts):
        return concatenate(lists)
    return pa.Table.from_batches(
        [part.to_arrow() if isinstance(part, RecordLists) else part for part in parts]
    )


def _callbacks_of(
    rows: list[int] | None, callbacks: Mapping[int, OnDelivery]
) -> Mapping[int, OnDelivery]:
    if rows is None:
        return callbacks
    return {at: callbacks[row] for at, row in enumerate(rows) if row in callbacks}


# -- records that came one by one ------------------------------------------------------------------


def _of_rows(piece: Rows, sticky_run_bytes: int) -> Iterator[_Part]:
    records = _to_lists(piece)
    partitions = _partitions_of_rows(piece, sticky_run_bytes)
    rows_of: dict[int, list[int]] = {}
    for row, partition in enumerate(partitions):
        found = rows_of.get(partition)
        if found is None:
            rows_of[partition] = [row]
        else:
            found.append(row)
    if len(rows_of) == 1:
        yield _Part(next(iter(rows_of)), records, None)
        return
    for partition, rows in sorted(rows_of.items()):
        yield _Part(partition, records.take(rows), rows)


def _to_lists(piece: Rows) -> RecordLists:
    headers = None
    if piece.headers:
        headers = [piece.headers.get(row) for row in range(len(piece.values))]
    times_us: list[int | None] = [time_ms * 1000 for time_ms in piece.timestamps_ms]
    return RecordLists(times_us, piece.keys, piece.values, headers)


def _partitions_of_rows(piece: Rows, sticky_run_bytes: int) -> Sequence[int]:
    """As `_partitions`, and without arrays where the caller named every partition."""
    count = len(piece.values)
    if piece.destination.partitions == 1:
        return [0] * count
    if len(piece.partitions) == count:
        # Indexes were put in as the records came.
        return list(piece.partitions.values())
    asked = None
    if piece.partitions:
        asked = np.full(count, -1, dtype=np.int32)
        asked[list(piece.partitions)] = list(piece.partitions.values())
    keys = pa.array(piece.keys, pa.binary())
    records = _to_lists(piece)
    found = _partitions(
        piece.destination, keys, lambda: record_sizes(records.to_arrow()), asked, sticky_run_bytes
    )
    return [found] * count if isinstance(found, int) else found.tolist()


# -- records that came as Arrow --------------------------------------------------------------------


def _of_table(piece: Table, sticky_run_bytes: int) -> Iterator[_Part]:
    asked = None
    if piece.partitions is not None:
        asked = piece.partitions.fill_null(-1).to_numpy(zero_copy_only=False)
    records = piece.records
    keys = records.column("key")
    partitions = _partitions(
        piece.destination, keys, lambda: record_sizes(records), asked, sticky_run_bytes
    )
    if isinstance(partitions, int):
        yield _Part(partitions, records, None)
        return
    # numpy sorts 16-bit integers by radix.
    narrow = partitions.astype(np.uint16) if partitions.max() < 1 << 16 else partitions
    order = np.argsort(narrow, kind="stable")
    ranked = partitions[order]
    bounds = [0, *(np.flatnonzero(np.diff(ranked)) + 1).tolist(), len(ranked)]
    sorted_records = records
    if len(bounds) > 2 and not np.array_equal(order, np.arange(len(order))):
        sorted_records = records.take(pa.array(order))
    for start, end in pairwise(bounds):
        yield _Part(int(ranked[start]), sorted_records.slice(start, end - start), None)


def _partitions(
    destination: Destination,
    keys: pa.Array,
    sizes: Callable[[], npt.NDArray[np.int64]],
    asked: npt.NDArray[np.int32] | None,
    sticky_run_bytes: int,
) -> npt.NDArray[np.int32] | int:
    """The partition of each record: asked for, else the key's hash, else sticky; one for all.

    `sizes` are the records', asked for only where they decide.
    """
    if destination.partitions == 1:
        return 0
    keyless = keys.null_count
    if asked is None and keyless == len(keys):
        found = _stick(destination, sizes(), sticky_run_bytes)
        return int(found[0]) if found[0] == found[-1] else found
    if keyless == len(keys):
        found = np.full(len(keys), -1, dtype=np.int32)
    else:
        found = partition_for_keys(keys, destination.partitions)
    if asked is not None:
        np.copyto(found, asked, where=asked >= 0)
    if keyless:
        undecided = np.flatnonzero(found < 0)
        if undecided.size:
            found[undecided] = _stick(destination, sizes()[undecided], sticky_run_bytes)
    return found


def _stick(
    destination: Destination, sizes_bytes: npt.NDArray[np.int64], sticky_run_bytes: int
) -> npt.NDArray[np.int32]:
    """One partition for a run of bytes, then the next one: few files, evenly filled."""
    found, destination.sticky_bytes = sticky_partitions(
        sizes_bytes,
        seed=destination.sticky_seed,
        partitions=destination.partitions,
        sent_bytes=destination.sticky_bytes,
        run_bytes=sticky_run_bytes,
    )
    return found
