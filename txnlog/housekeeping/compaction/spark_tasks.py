"""What jobs/compact.py runs on executors: functions of a store and of a Spark task's input.

Groups, files and results travel pickled. An error that would repeat at Spark's next attempt is
returned as a result; any other error is raised, and Spark retries the task.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from txnlog.errors import CorruptLogError, ObjectNotFoundError
from txnlog.housekeeping.compaction.segments import Offsets, read_columns, rewrite_at, store_at
from txnlog.process.failpoint import reach
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import (
    CompactionGroup,
    CompactionSettings,
    Obsolete,
    Segment,
)
from txnlog.protocol.key_compaction import needs_rewrite
from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

# A task costs more than a few small files do.
TASK_BYTES = 16 << 20
TASK_FILES = 500

Result = Segment | Obsolete | str | None
"""For a group: its new file, why it is obsolete, an error message, or None: needs no rewrite."""

POSITIONS = "pass int, group int, key binary, position long"
RESULTS = "group int, result binary"

_NO_OFFSETS = np.empty(0, dtype=np.int64)


class Part(NamedTuple):
    """A file of a pass of key compaction; `number` is the pass, `group` the group in it."""

    number: int
    group: int
    topic: str
    header: BatchHeader
    tombstone_offset: int


class Payload(NamedTuple):
    """A group of a pass of key compaction, and the settings that decide whether to rewrite it."""

    number: int
    group: CompactionGroup
    settings: CompactionSettings


def packed(
    items: Iterable[T],
    inputs_of: Callable[[T], Sequence[BatchHeader]],
    size_bytes_max: int = TASK_BYTES,
    files_max: int = TASK_FILES,
) -> Iterator[list[T]]:
    """Put neighbours together up to both limits; a larger item stays alone."""
    packed: list[T] = []
    size_bytes = files = 0
    for item in items:
        inputs = inputs_of(item)
        more_bytes = sum(batch.size_bytes for batch in inputs)
        is_full = size_bytes + more_bytes > size_bytes_max or files + len(inputs) > files_max
        if packed and is_full:
            yield packed
            packed, size_bytes, files = [], 0, 0
        packed.append(item)
        size_bytes += more_bytes
        files += len(inputs)
    if packed:
        yield packed


def rewrite_group(
    root: str,
    storage: Mapping[str, str],
    group: CompactionGroup,
    keep: Offsets | None = None,
) -> Result:
    """Write the segment of a group."""
    try:
        segment = rewrite_at(root, storage, group, keep)
    except ObjectNotFoundError as error:
        return Obsolete(f"it was replaced and vacuumed: {error.message}")
    except CorruptLogError as error:
        return error.message
    reach("compaction.rewritten")
    return segment


def read_positions(
    root: str, storage: Mapping[str, str], tasks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Column `payload` holds lists of Part; returns POSITIONS of their records that have a key.

    A position is twice the offset, plus one for a tombstone that is due for removal: the maximum
    of a key says where its newest record is and whether it stays. Spark finds it by hashing.
    """
    store = store_at(root, storage)
    for task in tasks:
        for payload in task.column("payload").to_pylist():
            for part in pickle.loads(payload):
                yield from _positions(store, part)


def _positions(store: ObjectStore, part: Part) -> Iterator[pa.RecordBatch]:
    columns = ["offset_delta", "key"]
    if part.header.base_offset < part.tombstone_offset:
        columns.append("value")
    for batch in read_columns(store, part.topic, part.header, tuple(columns)):
        offsets = batch.column("offset_delta").to_numpy() + part.header.base_offset
        positions = offsets * 2
        if "value" in columns:
            is_null = batch.column("value").is_null().to_numpy(zero_copy_only=False)
            positions += is_null & (offsets < part.tombstone_offset)
        keys = batch.column("key")
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(part.number, pa.int32()), len(keys)),
                pa.repeat(pa.scalar(part.group, pa.int32()), len(keys)),
                keys,
                pa.array(positions),
            ],
            names=["pass", "group", "key", "position"],
        ).filter(keys.is_valid())


def rewrite_survivors(
    root: str, storage: Mapping[str, str], rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rewrite one group with some of its records; returns one row of RESULTS.

    Column `payload` of one row holds the Payload; column `offset` of the others what to keep.
    """
    payload: Payload | None = None
    kept = [_NO_OFFSETS]
    for batch in rows:
        kept.append(batch.column("offset").drop_null().to_numpy())
        for value in batch.column("payload").drop_null().to_pylist():
            payload = pickle.loads(value)
    if payload is None:
        raise RuntimeError("Spark gave the task offsets without their group.")
    keep = np.sort(np.concatenate(kept))
    result: Result = None
    if needs_rewrite(payload.group, len(keep), payload.settings):
        result = rewrite_group(root, storage, payload.group, keep)
    columns = [pa.array([payload.number], pa.int32()), pa.array([pickle.dumps(result)])]
    yield pa.RecordBatch.from_arrays(columns, names=["group", "result"])
