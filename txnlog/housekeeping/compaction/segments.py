"""Segments: read the batches of a group, write one segment, replace them by one commit.

`rewrite` needs only a store and the group, so a Spark task can run it; only `commit_segment` writes
to the log. A process that dies before the commit leaves an unreferenced file for vacuum. Replaced
files also stay until vacuum, so readers that planned to read them still can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.process.failpoint import reach
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import (
    Compacted,
    CompactionGroup,
    CompactionSettings,
    Obsolete,
    Segment,
    prepare_compaction,
)
from txnlog.protocol.key_compaction import (
    KeyCompactionPass,
    KeyCompactionSettings,
    prepare_end_of_pass,
)
from txnlog.protocol.topics import TopicCommit
from txnlog.settings.topic_configs import config_value
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, read_batch_file, read_records
from txnlog.storage.batches.record_lists import gather
from txnlog.storage.batches.records import DATA_SCHEMA
from txnlog.storage.batches.writer import ROW_GROUP_BYTES, BatchFileWriter, new_batch_name
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger("txnlog")

READ_ROWS = 16_384
READ_BYTES = 4 << 20

Offsets = npt.NDArray[np.int64]


def settings_of(config: Mapping[str, str]) -> CompactionSettings:
    """A topic's settings for merging."""
    return CompactionSettings(segment_bytes=config_value(config, "segment.bytes"))


def key_compaction_settings_of(config: Mapping[str, str]) -> KeyCompactionSettings:
    """A topic's settings for key compaction."""
    return KeyCompactionSettings(
        min_cleanable_dirty_ratio=config_value(config, "min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=config_value(config, "min.compaction.lag.ms"),
        max_compaction_lag_ms=config_value(config, "max.compaction.lag.ms"),
        delete_retention_ms=config_value(config, "delete.retention.ms"),
    )


def rewrite(store: ObjectStore, group: CompactionGroup, keep: Offsets | None = None) -> Segment:
    """Write the segment of a group; offsets, timestamps, keys, values and headers stay unchanged.

    `keep`: ascending offsets of the records to keep; None: all but those of aborted transactions.
    Memory holds up to two row groups (16 MiB each), one read (4 MiB) and, on an object store, what
    is read ahead (8 MiB). Raises
    ObjectNotFoundError, CorruptLogError, StorageError that name the file.
    """
    staged_ms = store.now_ms()
    name = new_batch_name(group.partition)
    tables = _row_groups(_records(store, group, keep))
    first, second = next(tables, None), next(tables, None)
    headers = first is not None and (second is not None or _has_headers(first))
    writer = BatchFileWriter(store, f"{group.topic}/{name}", compression="zstd", headers=headers)
    try:
        for table in chain((first, second), tables):
            if table is None:
                break
            if writer.size_bytes:
                # Only the first two row groups stay in memory; from here on they are streamed.
                writer.stream()
            writer.write(table if headers else table.drop_columns(["headers"]))
        file = writer.close(may_be_empty=True)
    except Exception:
        # It may be large, and the next attempt writes another one.
        writer.discard()
        raise
    low_us, high_us = file.timestamp_min_us, file.timestamp_max_us
    if file.num_records == 0:
        # Retention must remove the empty segment together with its neighbours.
        times = [batch.statistics for batch in group.inputs]
        low_us = min(known.timestamp_min_us for known in times)
        high_us = max(known.timestamp_max_us for known in times)
    return Segment(name, file.size_bytes, file.num_records, low_us, high_us, staged_ms)


def read_columns(
    store: ObjectStore, topic: str, batch: BatchHeader, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """A batch's records, some at a time; `columns` of DATA_SCHEMA."""
    whole = _whole(topic, batch)
    return read_batch_file(store, whole, columns=columns, batch_rows=_batch_rows(whole))


def _whole(topic: str, batch: BatchHeader) -> FileSpan:
    path = f"{topic}/{batch.path}"
    return FileSpan(path, num_records=batch.num_records, size_bytes=batch.size_bytes)


def _batch_rows(whole: FileSpan) -> int:
    record_bytes = max(1, (whole.size_bytes or 0) // (whole.num_records or 1))
    return max(1, min(READ_ROWS, READ_BYTES // record_bytes))


def _records(
    store: ObjectStore, group: CompactionGroup, keep: Offsets | None
) -> Iterator[pa.RecordBatch]:
    """The records to keep in offset order; `offset_delta` counts from the group's base offset."""
    # A file's statistics are decoded once: for a small file that takes longer than its records.
    files = ((source.base_offset, _whole(group.topic, source)) for source in group.sources)
    read = (
        (base_offset, 0, found)
        for (base_offset, file), data in read_ahead(store, files, itemgetter(1))
        for found in read_records(
            store, file, columns=DATA_SCHEMA.names, batch_rows=_batch_rows(file), data=data
        )
    )
    for offsets, records in gather(read, rows_max=READ_ROWS, bytes_max=READ_BYTES):
        deltas = pa.array(offsets - group.base_offset)
        moved = pa.RecordBatch.from_arrays([deltas, *records.columns], schema=DATA_SCHEMA)
        if keep is not None:
            moved = moved.filter(pa.array(_is_in(offsets, keep)))
        if moved.num_rows:
            yield moved


def _is_in(offsets: Offsets, keep: Offsets) -> npt.NDArray[np.bool_]:
    """A mask of the offsets that are in `keep`; both ascend."""
    at = np.searchsorted(keep, offsets)
    found = np.zeros(len(offsets), dtype=np.bool_)
    inside = at < len(keep)
    found[inside] = keep[at[inside]] == offsets[inside]
    return found


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join records to tables of about ROW_GROUP_BYTES."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _has_headers(table: pa.Table) -> bool:
    return int(table.column("headers").null_count) < int(table.num_rows)


def compact_group(
    cluster: Cluster,
    group: CompactionGroup,
    rewriting: Callable[[CompactionGroup], Segment | None],
) -> int | None:
    """Rewrite a group if `rewriting` finds a reason to, and commit its segment.

    Returns the number of files replaced; None: another process has changed the group's files.
    """
    log = cluster.topic_log(group.topic)
    log.refresh()
    if group.changed_input(log.view.by_path) is not None:
        return None
    segment = rewriting(group)
    if segment is None:
        return 0
    decision = commit_segment(cluster, group, segment)
    if isinstance(decision, Obsolete):
        logger.info("A segment of %s is obsolete and was not committed: %s", log.name, decision.why)
        return None
    return len(group.inputs)


def commit_segment(
    cluster: Cluster, group: CompactionGroup, segment: Segment
) -> TopicCommit | Compacted | Obsolete:
    """Replace the batches of a group by its segment.

    Raises TopicAuthorizationError, CommitStateUnknownError: repeat the call to learn the outcome.
    """
    reach("compaction.staged")
    log = cluster.topic_log(group.topic)
    decision: TopicCommit | Compacted | Obsolete = log.transact(
        lambda state: prepare_compaction(state, group, segment, now_ms=cluster.store.now_ms())
    )
    reach("compaction.committed")
    return decision


def commit_end_of_pass(
    cluster: Cluster, key_pass: KeyCompactionPass
) -> TopicCommit | Compacted | Obsolete:
    """Record the end of a pass; each of its groups must be committed, or need no rewrite.

    Raises as `commit_segment`.
    """
    log = cluster.topic_log(key_pass.topic)
    reach("compaction.cleaned.before")
    decision: TopicCommit | Compacted | Obsolete = log.transact(
        lambda state: prepare_end_of_pass(
            state,
            key_pass,
            delete_retention_ms=key_compaction_settings_of(state.config).delete_retention_ms,
            now_ms=cluster.store.now_ms(),
        )
    )
    reach("compaction.cleaned.after")
    return decision
