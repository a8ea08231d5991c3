"""Offsets of times: Kafka's offsetsForTimes, for the Spark source and for consumers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.timestamps import candidates
from txnlog.settings.arguments import INT64_MAX, INT64_MIN
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

READ_ROWS = 65_536


def offsets_for_times(
    log: TopicLog, timestamps_ms: Mapping[int, int], *, read_committed: bool
) -> dict[int, int | None]:
    """Offset of the first record at or after a time (ms since 1970), per partition.

    None if no record is so late. Reads the log as of its last refresh, from the log start to the
    last stable offset, or with read_committed=False to the high watermark (R15, R18).
    Raises CorruptLogError, ObjectNotFoundError, StorageError that name the file.
    """
    view = log.view
    found: dict[int, int | None] = {}
    for partition, timestamp_ms in timestamps_ms.items():
        start = view.log_start_offset(partition)
        end = (
            view.last_stable_offset(partition) if read_committed else view.high_watermark(partition)
        )
        batches = view.batches(partition, start, end, read_committed)
        found[partition] = None
        for header, offset in candidates(batches, timestamp_ms, start):
            if offset is None:
                path = f"{log.path}/{header.path}"
                offset = _first_in_file(log.store, path, header, timestamp_ms, start)
            if offset is not None:
                found[partition] = offset
                break
    return found


def _first_in_file(
    store: ObjectStore, path: str, header: BatchHeader, timestamp_ms: int, start: int
) -> int | None:
    """Offset of the file's first record of that time or later, at `start` or after."""
    # Arrow compares 64-bit integers; no record has a time as late or early as their limits.
    wanted_us = max(INT64_MIN, min(timestamp_ms * 1000, INT64_MAX))
    span = FileSpan(
        path,
        first_delta=max(0, start - header.base_offset),
        num_records=header.num_records,
        size_bytes=header.size_bytes,
    )
    columns = ["offset_delta", "timestamp"]
    for batch in read_batch_file(store, span, columns=columns, batch_rows=READ_ROWS):
        times_us = batch.column("timestamp").cast(pa.int64())
        is_late = pc.fill_null(pc.greater_equal(times_us, wanted_us), False)
        late = np.flatnonzero(is_late.to_numpy(zero_copy_only=False))
        if len(late):
            return header.base_offset + int(batch.column("offset_delta")[int(late[0])].as_py())
    return None
