"""Reads in a Spark task: from the files of ranges to Arrow batches of the source's schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_source.planning import FileSlice, PartitionRange, SourcePartition
from spark_source.settings import SourceSettings
from txnlog.connector.executors import executor_cluster
from txnlog.connector.record_batches import combined
from txnlog.connector.worker_memory import collect_garbage, keep_freed_memory
from txnlog.process.arrow_arrays import number_array
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists, gather
from txnlog.storage.batches.records import to_messages
from txnlog.storage.store.objects import ObjectStore

BATCH_ROWS = 32_768
BATCH_BYTES = 4 << 20


def read_partition(settings: SourceSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of one task; none for InputPartition(None), which Spark uses for an empty plan.

    Raises ConfigError that names the host if the driver's cluster is not found on it.
    """
    if not isinstance(partition, SourcePartition):
        return iter(())
    keep_freed_memory()
    options = settings.options
    cluster = executor_cluster(options.root, options.storage, cluster_id=partition.cluster_id)
    return read_ranges(cluster.store, partition.ranges, include_headers=settings.include_headers)


def read_ranges(
    store: ObjectStore, ranges: Iterable[PartitionRange], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the ranges, in order, as MESSAGE_SCHEMA or BARE_MESSAGE_SCHEMA.

    Spark's reader accepts batches of exactly these Arrow schemas. Small batches are combined, up
    to BATCH_ROWS or BATCH_BYTES. Raises: CorruptLogError, ObjectNotFoundError, StorageError that
    name the file.
    """
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in _read_all(store, ranges, include_headers=include_headers):
        if small and (
            rows + batch.num_rows > BATCH_ROWS or size_bytes + batch.nbytes > BATCH_BYTES
        ):
            yield combined(small)
            small, rows, size_bytes = [], 0, 0
        small.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if small:
        yield combined(small)
    collect_garbage()


def _read_all(
    store: ObjectStore, ranges: Iterable[PartitionRange], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    columns = ["timestamp", "key", "value"]
    if include_headers:
        columns.append("headers")
    # Over all ranges: many of them may have one small file each.
    files = ((range_, file) for range_ in ranges for file in range_.files)
    ahead = read_ahead(store, files, lambda item: _span_of(*item))
    for range_, its in groupby(ahead, key=lambda found: found[0][0]):
        read = (
            part
            for (_, file), data in its
            for part in _read_file(store, range_, file, columns, data)
        )
        for offsets, records in gather(read, rows_max=BATCH_ROWS, bytes_max=BATCH_BYTES):
            wanted = records.select(columns)
            yield to_messages(wanted, range_.topic, range_.partition, number_array(offsets))


def _span_of(range_: PartitionRange, file: FileSlice) -> FileSpan:
    """The records of a file that are in the range."""
    return FileSpan(
        file.path,
        first_delta=max(0, range_.start - file.base_offset),
        end_delta=min(range_.end, file.last_offset + 1) - file.base_offset,
        num_records=file.num_records,
        size_bytes=file.size_bytes,
        is_dense=file.num_records == file.last_offset - file.base_offset + 1,
    )


def _read_file(
    store: ObjectStore,
    range_: PartitionRange,
    file: FileSlice,
    columns: list[str],
    data: bytes | None,
) -> Iterator[tuple[int, int, pa.RecordBatch | RecordLists]]:
    """The records of a file that are in the range, in the form that `gather` expects."""
    span = _span_of(range_, file)
    read = read_records(
        store, span, columns=["offset_delta", *columns], batch_rows=_batch_rows(file), data=data
    )
    for records in read:
        yield file.base_offset, span.first_delta, records
        if isinstance(records, RecordLists):
            return
        if records.column("offset_delta")[-1].as_py() + 1 == span.end_delta:
            return  # The rest of a large file need not be decoded.


def _batch_rows(file: FileSlice) -> int:
    """Rows per batch, so that a batch of large records has about BATCH_BYTES."""
    record_bytes = max(1, file.size_bytes // file.records_max)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // record_bytes))
