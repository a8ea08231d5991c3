"""Record batch files: one Parquet file is one record batch, its header lives in the topic's log.

Settings were chosen by measuring 100-byte records (benchmarks, one core): zstd level 1 writes
within 10 % of negative levels at two thirds of their size; a dictionary for keys only, given up
early, saves 12 % of time on repeating keys and costs nothing on unique ones; DELTA_BINARY_PACKED
makes `offset_delta` and constant timestamps nearly free. Files of a few records use snappy: zstd
contexts alone would take 0.15 of their 0.27 ms, and compaction rewrites such files anyway.
Every page carries a CRC32, so that bit rot is an error and never a wrong record (R66).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.errors import (
    CorruptLogError,
    InvalidRecordError,
    ObjectNotFoundError,
    StorageError,
    TxnLogError,
)
from txnlog.storage.records import DATA_SCHEMA, RECORD_SCHEMA, to_headers

if TYPE_CHECKING:
    from txnlog.storage.objects import ObjectStore

ROW_GROUP_BYTES = 16 << 20
SNAPPY_BELOW_BYTES = 64 << 10
READ_WHOLE_BELOW_BYTES = 4 << 20

_TIMED = ["offset_delta", "timestamp"]
_SETTINGS: Mapping[str, Any] = {
    "use_dictionary": ["key"],
    "dictionary_pagesize_limit": 64 << 10,
    "column_encoding": dict.fromkeys(_TIMED, "DELTA_BINARY_PACKED"),
    "write_statistics": _TIMED,
    "write_batch_size": 8192,
    "write_page_checksum": True,
    "sorting_columns": [pq.SortingColumn(0)],
}
_ZSTD: Mapping[str, Any] = {"compression": "zstd", "compression_level": 1}
_SNAPPY: Mapping[str, Any] = {"compression": "snappy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """What a log has to know of a record batch file. Timestamps in microseconds, 0 if none."""

    path: str
    size_bytes: int
    num_records: int
    timestamp_min_us: int
    timestamp_max_us: int


# -- writing -------------------------------------------------------------------------------------


def write_batch_file(
    store: ObjectStore, path: str, records: pa.Table | pa.RecordBatch
) -> BatchFile:
    """Write records (RECORD_SCHEMA, in offset order) as one file, with one put.

    The whole encoded file is in memory: for a batch of unknown size use BatchFileWriter.
    Raises InvalidRecordError for no records at all, StorageError.
    """
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    if table.num_rows == 0:
        raise InvalidRecordError(f"A record batch needs at least one record; {path} has none.")
    codec = _SNAPPY if table.nbytes < SNAPPY_BELOW_BYTES else _ZSTD
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, DATA_SCHEMA, **_SETTINGS, **codec) as writer:
        writer.write_table(_numbered(table, 0), row_group_size=_rows_of_group(table))
    buffer = sink.getvalue()
    store.put(path, memoryview(buffer).cast("B"))
    low, high = _timestamp_range(table)
    return BatchFile(
        path=path,
        size_bytes=buffer.size,
        num_records=table.num_rows,
        timestamp_min_us=low,
        timestamp_max_us=high,
    )


class BatchFileWriter:
    """Writes one record batch file row group by row group, for batches larger than memory.

    Encoded bytes are kept (`held_bytes`) until `stream` sends them, and all that follow, through
    `store.open_writer`; a file never streamed becomes one put. Nothing is visible before `close`,
    and a writer that is dropped instead leaves at most an invisible part of an upload.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.path = path
        self.num_records = 0
        self._store = store
        self._sink = _Sink(path)
        self._low_us: int | None = None
        self._high_us: int | None = None
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), DATA_SCHEMA, **_SETTINGS, **_ZSTD
        )

    @property
    def size_bytes(self) -> int:
        """Encoded bytes so far."""
        return self._sink.position

    @property
    def held_bytes(self) -> int:
        """Encoded bytes in memory: 0 once the file is streamed."""
        return 0 if self.streaming else self._sink.position

    @property
    def streaming(self) -> bool:
        return self._sink.target is not None

    def write(self, table: pa.Table) -> None:
        """Append records (RECORD_SCHEMA) as one row group; callers choose its size."""
        if table.num_rows == 0:
            return
        self._writer.write_table(_numbered(table, self.num_records), row_group_size=table.num_rows)
        low, high = _timestamp_range(table)
        self._low_us = low if self._low_us is None else min(self._low_us, low)
        self._high_us = high if self._high_us is None else max(self._high_us, high)
        self.num_records += table.num_rows

    def stream(self) -> None:
        """Send what is held, and from now on everything, straight to the store."""
        if not self.streaming:
            self._sink.send_to(self._store.open_writer(self.path))

    def close(self) -> BatchFile:
        """Finish the file and make it visible. Raises InvalidRecordError if it has no records."""
        if self.num_records == 0:
            raise InvalidRecordError(
                f"A record batch needs at least one record; {self.path} has none."
            )
        self._writer.close()
        if self.streaming:
            self._sink.finish()
        else:
            self._store.put(self.path, self._sink.take())
        return BatchFile(
            path=self.path,
            size_bytes=self._sink.position,
            num_records=self.num_records,
            timestamp_min_us=self._low_us or 0,
            timestamp_max_us=self._high_us or 0,
        )


class _Sink(io.RawIOBase):
    """Where the Parquet encoder writes: into memory first, later on into the store's writer.

    `close` closes only this side: the encoder closes its sink also after an error, and then the
    store's writer must stay open, or half a file would become visible.
    """

    def __init__(self, path: str) -> None:
        self.position = 0
        self._path = path
        self.target: BinaryIO | None = None
        self._held: list[bytes] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        size_bytes = len(data)
        if self.target is None:
            self._held.append(bytes(data))
        else:
            self._send(data)
        self.position += size_bytes
        return size_bytes

    def send_to(self, target: BinaryIO) -> None:
        self.target = target
        self._send(self.take())

    def finish(self) -> None:
        """Make what was streamed visible."""
        if self.target is not None:
            with _store_errors(self._path, "upload"):
                self.target.close()

    def take(self) -> bytes:
        whole = b"".join(self._held)
        self._held = []
        return whole

    def _send(self, data: Any) -> None:
        with _store_errors(self._path, "upload"):
            cast("BinaryIO", self.target).write(data)


@contextmanager
def _store_errors(path: str, verb: str) -> Iterator[None]:
    """The store's streams raise errors of their own making; callers know ours only."""
    try:
        yield
    except TxnLogError:
        raise
    except Exception as error:
        raise StorageError(
            f"{path}: {verb} failed ({error}). Check the store, then try again.", path=path
        ) from error


def _rows_of_group(table: pa.Table) -> int:
    """Rows per row group, so that one takes about ROW_GROUP_BYTES before encoding."""
    return max(1, ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1))


def _numbered(table: pa.Table, first_delta: int) -> pa.Table:
    deltas = pa.array(np.arange(first_delta, first_delta + table.num_rows, dtype=np.int64))
    columns = [table.column(name) for name in RECORD_SCHEMA.names]
    return pa.Table.from_arrays([deltas, *columns], schema=DATA_SCHEMA)


def _timestamp_range(table: pa.Table) -> tuple[int, int]:
    extremes = pc.min_max(table.column("timestamp").cast(pa.int64())).as_py()
    return extremes["min"] or 0, extremes["max"] or 0


# -- reading -------------------------------------------------------------------------------------


def read_batch_file(
    store: ObjectStore,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    first_delta: int = 0,
    end_delta: int | None = None,
    num_records: int | None = None,
    size_bytes: int | None = None,
    batch_rows: int = 16_384,
) -> Iterator[pa.RecordBatch]:
    """Yield the records with first_delta <= offset_delta < end_delta, in offset order.

    Batches have DATA_SCHEMA, or those of its columns named in `columns`. Files rewritten by other
    Parquet writers are understood: columns missing (null; not `offset_delta`), in another order,
    of another width, or rows out of order. `num_records` and `size_bytes`, from the batch header,
    are checked when given (an erased file has a header of its own).
    Raises ObjectNotFoundError, StorageError, CorruptLogError naming the file (R66).
    """
    names = [name for name in DATA_SCHEMA.names if columns is None or name in columns]
    schema = pa.schema([DATA_SCHEMA.field(name) for name in names])
    with _damage_named(store, path):
        file = _open(store, path, size_bytes)
        _check_footer(file, path, num_records)
        groups = _groups_in_range(file.metadata, first_delta, end_delta)
        wanted = _leading_columns(file, ["offset_delta", *names])
        batches = file.iter_batches(
            batch_size=batch_rows, row_groups=groups, columns=wanted, use_threads=False
        )
        if not _is_in_order(file, path):
            batches = _sorted_batches(batches, path, batch_rows)
    while True:
        with _damage_named(store, path):
            batch = next(batches, None)
            if batch is None:
                return
            deltas = _column(batch, "offset_delta")
            _check_deltas(deltas, path)
            keep = _keep(deltas, first_delta, end_delta)
            arrays = [_column(batch, name).slice(*keep) for name in names]
            found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if keep[1]:
            yield found


@contextmanager
def _damage_named(store: ObjectStore, path: str) -> Iterator[None]:
    """Turn what pyarrow raises on a bad file into CorruptLogError; the store's errors pass."""
    try:
        yield
    except TxnLogError:
        raise
    except FileNotFoundError as error:
        raise ObjectNotFoundError(
            f"Data file {path} is not in {store.url}. If its topic is read at an old position, "
            "retention or vacuum may have removed it.",
            file=path,
        ) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(
                f"Data file {path} in {store.url} could not be read: {error}", file=path
            ) from error
        raise _corrupt(path, f"{type(error).__name__}: {error}", store.url) from error


def _corrupt(path: str, what: str, url: str = "") -> CorruptLogError:
    where = f" in {url}" if url else ""
    return CorruptLogError(
        f"Data file {path}{where} is damaged ({what}). Restore it from a backup or another copy "
        "of the bucket; no record of it was skipped.",
        file=path,
    )


def _open(store: ObjectStore, path: str, size_bytes: int | None) -> pq.ParquetFile:
    """A local file by its path; a small remote one with one get; else by ranges."""
    local = store.local_path(path)
    source: Any
    if local is not None:
        source = pa.OSFile(local)
        found_bytes = source.size()
    elif size_bytes is not None and size_bytes > READ_WHOLE_BELOW_BYTES:
        source = _Source(path, store.open_reader(path))
        found_bytes = source.seek(0, io.SEEK_END)
    else:
        data = store.get(path)
        source, found_bytes = pa.BufferReader(data), len(data)
    if size_bytes is not None and found_bytes != size_bytes:
        raise _corrupt(path, f"{found_bytes} bytes, its header in the log says {size_bytes}")
    return pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us")


def _check_footer(file: pq.ParquetFile, path: str, num_records: int | None) -> None:
    if "offset_delta" not in file.schema_arrow.names:
        raise _corrupt(path, f"no column offset_delta among {file.schema_arrow.names}")
    found = sum(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
    if found != file.metadata.num_rows:
        raise _corrupt(path, f"row groups hold {found} of {file.metadata.num_rows} records")
    if num_records is not None and found != num_records:
        raise _corrupt(path, f"{found} records, its header in the log says {num_records}")


def _leading_columns(file: pq.ParquetFile, names: Iterable[str]) -> list[str]:
    present = set(file.schema_arrow.names)
    return [name for name in dict.fromkeys(names) if name in present]


def _groups_in_range(
    metadata: pq.FileMetaData, first_delta: int, end_delta: int | None
) -> list[int]:
    """Row groups that may hold a wanted record, by the statistics of offset_delta."""
    groups = []
    for group in range(metadata.num_row_groups):
        statistics = _delta_statistics(metadata.row_group(group))
        if statistics is not None and statistics.has_min_max:
            if statistics.max < first_delta:
                continue
            if end_delta is not None and statistics.min >= end_delta:
                continue
        groups.append(group)
    return groups


def _delta_statistics(group: pq.RowGroupMetaData) -> pq.Statistics | None:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "offset_delta":
            return column.statistics
    return None


def _is_in_order(file: pq.ParquetFile, path: str) -> bool:
    """Ours declare it; of other writers' files the one narrow column is read once to find out."""
    metadata = file.metadata
    if all(metadata.row_group(i).sorting_columns for i in range(metadata.num_row_groups)):
        return True
    deltas = _to_type(file.read(["offset_delta"], use_threads=False).column(0), pa.int64())
    _check_not_null(deltas, path)
    return bool(np.all(np.diff(deltas.to_numpy()) > 0))


def _sorted_batches(
    batches: Iterable[pa.RecordBatch], path: str, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).sort_by("offset_delta")
    deltas = _to_type(table.column("offset_delta"), pa.int64()).to_numpy()
    if np.any(np.diff(deltas) == 0):
        raise _corrupt(path, "two records have the same offset_delta")
    return iter(table.combine_chunks().to_batches(max_chunksize=batch_rows))


def _check_not_null(deltas: pa.Array | pa.ChunkedArray, path: str) -> None:
    if deltas.null_count:
        raise _corrupt(path, f"{deltas.null_count} records without offset_delta")


def _check_deltas(deltas: pa.Array, path: str) -> None:
    _check_not_null(deltas, path)
    values = deltas.to_numpy()
    if len(values) and (values[0] < 0 or np.any(np.diff(values) <= 0)):
        raise _corrupt(path, "offset_delta does not rise from record to record")


def _keep(deltas: pa.Array, first_delta: int, end_delta: int | None) -> tuple[int, int]:
    """(start, length) of the wanted rows: a slice, as offsets rise."""
    values = deltas.to_numpy()
    start = int(np.searchsorted(values, first_delta)) if first_delta else 0
    end = len(values) if end_delta is None else int(np.searchsorted(values, end_delta))
    return start, max(0, end - start)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column as DATA_SCHEMA has it; nulls where the file has none."""
    wanted = DATA_SCHEMA.field(name).type
    index = batch.schema.get_field_index(name)
    if index < 0:
        return pa.nulls(batch.num_rows, wanted)
    return _to_type(batch.column(index), wanted)


def _to_type(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> Any:
    if column.type.equals(wanted):
        return column
    if pa.types.is_list(wanted):
        return to_headers(column)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(column.type):
        # Spark's INT96 timestamps come back without a zone, and are UTC.
        return column.cast(wanted, safe=False)
    return column.cast(wanted)
