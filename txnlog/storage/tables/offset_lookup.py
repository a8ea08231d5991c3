"""Offsets of times: Kafka's offsetsForTimes, for the Spark source and for consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from txnlog.process import arrow_compute as pc
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, candidates
from txnlog.settings.arguments import INT64_MAX, INT64_MIN
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

READ_ROWS = 65_536


def offsets_for_times(
    wanted: Sequence[tuple[TopicLog, int, int]], *, read_committed: bool
) -> list[int | None]:
    """Offset of the first record at or after a time, for (log, partition, ms since 1970).

    LATEST_TIMESTAMP is the end, EARLIEST_TIMESTAMP the start. In the order of `wanted`; None if no
    record is so late. Reads the logs as of their last refresh,
    from the log start to the last stable offset, or with read_committed=False to the high
    watermark (R15, R18); files of several partitions together.
    Raises CorruptLogError, ObjectNotFoundError, StorageError that name the file.
    """
    # The logs are read here: a log is for one thread.
    looks = [_look(*one, read_committed=read_committed) for one in wanted]
    return wanted[0][0].store.together(looks) if wanted else []


def _look(
    log: TopicLog, partition: int, timestamp_ms: int, *, read_committed: bool
) -> Callable[[], int | None]:
    view = log.view
    start = view.log_start_offset(partition)
    end = view.last_stable_offset(partition) if read_committed else view.high_watermark(partition)
    if timestamp_ms in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP):
        return lambda: end if timestamp_ms == LATEST_TIMESTAMP else start
    batches = tuple(view.batches(partition, start, end, read_committed))

    def first() -> int | None:
        for header, offset in candidates(batches, timestamp_ms, start):
            if offset is None:
                path = f"{log.path}/{header.path}"
                offset = _first_in_file(log.store, path, header, timestamp_ms, start)
            if offset is not None:
                return offset
        return None

    return first


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
