"""From records that waited to batches: their partitions, their Arrow columns, their files.

Everything here works on whole columns; a record costs the producer a few appends and its share of
vectorised work.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import StorePermissionError, TopicAuthorizationError
from txnlog.producing.accumulator import Destination, OnDelivery, Piece, Rows
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.partitioner import partition_for_keys, sticky_partitions
from txnlog.storage.batch_writer import write_batch_file
from txnlog.storage.records import HEADERS_TYPE, RECORD_SCHEMA, record_sizes

if TYPE_CHECKING:
    from txnlog.storage.objects import ObjectStore

TIMESTAMP_TYPE = RECORD_SCHEMA.field("timestamp").type
NO_CALLBACKS: Mapping[int, OnDelivery] = {}


@dataclass(slots=True)
class Batch:
    """Records of one partition, in order. `callbacks` are by index, `size_bytes` is what the
    accumulator counts for them."""

    topic: str
    topic_id: str
    partition: int
    records: pa.RecordBatch
    size_bytes: int
    created_ms: int
    callbacks: Mapping[int, OnDelivery] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        return int(self.records.num_rows)


def split(piece: Piece, sticky_run_bytes: int) -> Iterator[Batch]:
    """The batches of a piece, by partition; together they have all its bytes."""
    destination = piece.destination
    if isinstance(piece, Rows):
        records = _to_records(piece)
        asked = None
        if piece.partitions:
            asked = np.full(records.num_rows, -1, dtype=np.int32)
            asked[list(piece.partitions)] = list(piece.partitions.values())
        callbacks = piece.callbacks
    else:
        records, callbacks = piece.records, None
        asked = None
        if piece.partitions is not None:
            asked = piece.partitions.fill_null(-1).to_numpy(zero_copy_only=False)
    partitions = _partitions(destination, records, asked, sticky_run_bytes)
    left_bytes, left_rows = piece.size_bytes, records.num_rows
    for partition, part, order in _parts(records, partitions):
        share = left_bytes * part.num_rows // left_rows
        left_bytes, left_rows = left_bytes - share, left_rows - part.num_rows
        if callbacks is None:
            last = piece.callback  # type: ignore[union-attr]
            own: Mapping[int, OnDelivery] = {part.num_rows - 1: last} if last else NO_CALLBACKS
        elif not callbacks:
            own = NO_CALLBACKS
        elif order is None:
            own = callbacks
        else:
            own = {at: callbacks[row] for at, row in enumerate(order.tolist()) if row in callbacks}
        yield Batch(
            destination.topic,
            destination.topic_id,
            partition,
            part,
            share,
            piece.created_ms,
            own,
        )


def stage(
    store: ObjectStore, batches: Sequence[Batch], compression: str | None = None
) -> StagedBatch:
    """Write batches of one partition as one file, which nobody sees until a log names it.

    Raises StorageError, TopicAuthorizationError.
    """
    first = batches[0]
    # Not from `random`: who seeds it would give a name again, and write over a committed file.
    name = f"part-{first.partition}-{uuid.uuid4()}.parquet"
    # Taken before the upload begins: some stores date an object by its start.
    staged_ms = store.now_ms()
    records = (
        first.records
        if len(batches) == 1
        else pa.Table.from_batches([batch.records for batch in batches])
    )
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


def _to_records(rows: Rows) -> pa.RecordBatch:
    count = len(rows.values)
    times_us = np.array(rows.timestamps_ms, dtype=np.int64) * 1000
    headers = pa.nulls(count, HEADERS_TYPE)
    if rows.headers:
        named = [
            None if found is None else [{"key": name, "value": value} for name, value in found]
            for found in map(rows.headers.get, range(count))
        ]
        headers = pa.array(named, HEADERS_TYPE)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times_us).view(TIMESTAMP_TYPE),
            pa.array(rows.keys, pa.binary()),
            pa.array(rows.values, pa.binary()),
            headers,
        ],
        schema=RECORD_SCHEMA,
    )


def _partitions(
    destination: Destination,
    records: pa.RecordBatch,
    asked: npt.NDArray[np.int32] | None,
    sticky_run_bytes: int,
) -> npt.NDArray[np.int32] | int:
    """The partition of each record: asked for, else the key's hash, else sticky; one for all."""
    if destination.partitions == 1:
        return 0
    keys = records.column("key")
    keyless = keys.null_count
    if asked is None and keyless == len(keys):
        found = _stick(destination, records, np.arange(len(keys)), sticky_run_bytes)
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
            found[undecided] = _stick(destination, records, undecided, sticky_run_bytes)
    return found


def _stick(
    destination: Destination,
    records: pa.RecordBatch,
    undecided: npt.NDArray[np.int64],
    sticky_run_bytes: int,
) -> npt.NDArray[np.int32]:
    """One partition for a run of bytes, then the next one: few files, evenly filled."""
    found, destination.sticky_bytes = sticky_partitions(
        record_sizes(records)[undecided],
        seed=destination.sticky_seed,
        partitions=destination.partitions,
        sent_bytes=destination.sticky_bytes,
        run_bytes=sticky_run_bytes,
    )
    return found


def _parts(
    records: pa.RecordBatch, partitions: npt.NDArray[np.int32] | int
) -> Iterator[tuple[int, pa.RecordBatch, npt.NDArray[np.int64] | None]]:
    """(partition, its records in order, which rows they were; None: all of them)."""
    if isinstance(partitions, int):
        yield partitions, records, None
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
        part = sorted_records.slice(start, end - start)
        yield int(ranked[start]), part, order[start:end]
