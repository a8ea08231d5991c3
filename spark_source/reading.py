"""Inside a Spark task: from the files of ranges to Arrow batches of the source's schema."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from spark_source.planning import FileSlice, PartitionRange, SourcePartition
from spark_source.settings import SourceSettings
from txnlog.options import Options
from txnlog.spark_workers import collect_garbage
from txnlog.storage.objects import ObjectStore
from txnlog.storage.parquet import read_records
from txnlog.storage.record_lists import RecordLists, RecordRuns
from txnlog.storage.records import to_messages

BATCH_ROWS = 32_768
BATCH_BYTES = 4 << 20

_stores: dict[tuple[int, str, frozenset[tuple[str, str]]], ObjectStore] = {}


def cached_store(options: Options) -> ObjectStore:
    """The root's store, opened once per process; Spark's workers outlive their tasks."""
    key = (os.getpid(), options.root, frozenset(options.storage.items()))
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = ObjectStore.from_url(options.root, options.storage)
    return store


def read_partition(settings: SourceSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of one task; none for InputPartition(None), which Spark makes of no tasks."""
    if not isinstance(partition, SourcePartition):
        return iter(())
    store = cached_store(settings.options)
    return read_ranges(store, partition.ranges, include_headers=settings.include_headers)


def read_ranges(
    store: ObjectStore, ranges: Iterable[PartitionRange], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the ranges, in order, as MESSAGE_SCHEMA or BARE_MESSAGE_SCHEMA.

    Both are what Spark makes of the source's schema; its reader takes batches of exactly that.
    Small batches are put together, up to BATCH_ROWS or BATCH_BYTES. Raises: CorruptLogError,
    ObjectNotFoundError, StorageError that name the file.
    """
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in _read_all(store, ranges, include_headers=include_headers):
        if small and (
            rows + batch.num_rows > BATCH_ROWS or size_bytes + batch.nbytes > BATCH_BYTES
        ):
            yield _joined(small)
            small, rows, size_bytes = [], 0, 0
        small.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if small:
        yield _joined(small)
    collect_garbage()


def _read_all(
    store: ObjectStore, ranges: Iterable[PartitionRange], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    for found in ranges:
        # Small files together: Arrow's arrays for each would take longer than reading it.
        small = RecordRuns()
        for file in found.files:
            first_delta = max(0, found.start - file.base_offset)
            for records in _read_file(store, found, file, first_delta, include_headers):
                if isinstance(records, RecordLists):
                    small.add(file.base_offset + first_delta, records)
                    if small.num_rows < BATCH_ROWS and small.data_bytes < BATCH_BYTES:
                        continue
                if small.num_rows:
                    yield _of_small(found, small, include_headers)
                    small = RecordRuns()
                if not isinstance(records, RecordLists):
                    offsets = pc.add(records.column("offset_delta"), file.base_offset)
                    yield to_messages(records, found.topic, found.partition, offsets)
        if small.num_rows:
            yield _of_small(found, small, include_headers)


def _read_file(
    store: ObjectStore,
    found: PartitionRange,
    file: FileSlice,
    first_delta: int,
    include_headers: bool,
) -> Iterator[pa.RecordBatch | RecordLists]:
    """What of a file is in the range."""
    columns = ["offset_delta", "timestamp", "key", "value"]
    if include_headers:
        columns.append("headers")
    end_delta = min(found.end, file.last_offset + 1) - file.base_offset
    for records in read_records(
        store,
        file.path,
        columns=columns,
        first_delta=first_delta,
        end_delta=end_delta,
        num_records=file.num_records,
        size_bytes=file.size_bytes,
        batch_rows=_batch_rows(file),
    ):
        yield records
        if isinstance(records, RecordLists):
            return
        if records.column("offset_delta")[-1].as_py() == end_delta - 1:
            return  # The rest of a big file need not be decoded.


def _of_small(found: PartitionRange, small: RecordRuns, include_headers: bool) -> pa.RecordBatch:
    offsets, records = small.to_arrow()
    if not include_headers:
        records = records.drop_columns(["headers"])
    return to_messages(records, found.topic, found.partition, pa.array(offsets))


def _batch_rows(file: FileSlice) -> int:
    """Rows per batch, so that a batch of big records stays near BATCH_BYTES."""
    record_bytes = max(1, file.size_bytes // file.records_max)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // record_bytes))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
