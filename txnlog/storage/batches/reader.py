"""Record batch files: one Parquet file is one record batch, its header lives in the topic's log.

Written by txnlog.storage.batches.writer. A file with a seal is checked against it, one row group at
a time as they are read; a file that another writer rewrote is read as far as possible.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from txnlog.errors import (
    RESTORE_FILE,
    CorruptLogError,
    ObjectNotFoundError,
    StorageError,
    TxnLogError,
)
from txnlog.process.arrow_arrays import number_array
from txnlog.storage.batches import small_batch_reader
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.records import DATA_SCHEMA, to_headers
from txnlog.storage.batches.remote_file import RemoteFile
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.parquet_claims import ClaimError, check_pages, check_schema, footer_bytes
from txnlog.storage.store.seals import Seal, SealBrokenError, check_span, read_seal, split_footer

READ_WHOLE_BELOW_BYTES = 4 << 20
READ_LOCAL_WHOLE_BELOW_BYTES = 8 << 20
"""A local file up to this size is read once, checked and decoded in place; of a larger one each row
group is read twice."""
SMALL_BYTES_MAX = 256 << 10
"""Files with few records are smaller."""
SORTED_ROWS_MAX = 10_000_000
"""Maximum number of records of a foreign file that are sorted in memory."""
_LOOK_ROWS = 65_536


class FileSpan(Struct, frozen=True):
    """Records of one data file: those with first_delta <= offset_delta < end_delta.

    `num_records` and `size_bytes`, of the whole file, come from its batch header and are checked
    if given (an erased file has a header of its own). `is_dense`: by that header the file has a
    record for each of its offsets, so that the column `offset_delta` of a sealed file need not be
    decoded.
    """

    path: str
    first_delta: int = 0
    end_delta: int | None = None
    num_records: int | None = None
    size_bytes: int | None = None
    is_dense: bool = False


def read_batch_file(
    store: ObjectStore,
    span: FileSpan,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = 16_384,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a span, in offset order.

    Batches have DATA_SCHEMA, or those of its columns named in `columns`, and at most `batch_rows`
    rows. Files rewritten by other Parquet writers are understood: columns missing (null; not
    `offset_delta`), in another order, of another width, or rows out of order.
    Raises ObjectNotFoundError, StorageError, CorruptLogError naming the file (R66).
    """
    for found in read_records(store, span, columns=columns, batch_rows=batch_rows):
        if isinstance(found, pa.RecordBatch):
            yield found
        else:
            whole = _with_deltas(found, span.first_delta, _schema_of_named(columns))
            for at in range(0, whole.num_rows, batch_rows):
                yield whole.slice(at, batch_rows)


def read_records(
    store: ObjectStore,
    span: FileSpan,
    *,
    columns: Sequence[str] | None,
    batch_rows: int,
    data: bytes | None = None,
) -> Iterator[pa.RecordBatch | RecordLists]:
    """As `read_batch_file`, but what txnlog.storage.batches.small_batch has encoded stays in lists.

    Then that is all there is, whatever `batch_rows` says: every record of the span, one offset
    after the other. `data` is the whole file if it was fetched before (read_ahead).
    """
    with _damage_named(store, span.path):
        file = _open(store, span.path, span.size_bytes, data)
        if isinstance(file, RecordLists):
            _check_count(file.num_rows, span.num_records)
        else:
            file.check_counts(span.num_records)
    if isinstance(file, RecordLists):
        lists = file.slice(span.first_delta, span.end_delta)
        if lists.num_rows:
            yield lists
        return
    schema = _schema_of_named(columns)
    names = schema.names
    batches = file.batches(names, span, batch_rows)
    while True:
        with _damage_named(store, span.path):
            batch = next(batches, None)
            if batch is None:
                return
            deltas = batch.column("offset_delta")
            if not file.counts_offsets(span):
                deltas = _to_type(deltas, pa.int64())
                _check_deltas(deltas)
            keep = _keep(deltas, span)
            arrays = [_column(batch, name).slice(*keep) for name in names]
            found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if keep[1]:
            yield found


def _with_deltas(records: RecordLists, first_delta: int, schema: pa.Schema) -> pa.RecordBatch:
    whole = records.to_arrow()
    deltas = number_array(np.arange(first_delta, first_delta + records.num_rows))
    arrays = [deltas if name == "offset_delta" else whole.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _schema_of_named(columns: Sequence[str] | None) -> pa.Schema:
    return DATA_SCHEMA if columns is None else _schema_of(frozenset(columns))


@cache
def _schema_of(columns: frozenset[str]) -> pa.Schema:
    return pa.schema([field for field in DATA_SCHEMA if field.name in columns])


class _DamageError(ValueError):
    """A damaged file; `_damage_named` adds the path."""


_KNOWN_DAMAGE = (_DamageError, SealBrokenError, ClaimError)


@contextmanager
def _damage_named(store: ObjectStore, path: str) -> Iterator[None]:
    """Turn pyarrow's errors on a bad file into CorruptLogError; the store's errors pass."""
    try:
        yield
    except (FileNotFoundError, ObjectNotFoundError) as error:
        raise ObjectNotFoundError(
            f"Data file {path} is not in {store.url}. Retention or vacuum may have removed it "
            "since this read was planned: start the query again, or create the DataFrame again (a "
            "consumer continues by itself). If the file is still missing then: "
            f"{RESTORE_FILE}",
            file=path,
        ) from error
    except TxnLogError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"Data file {path} in {store.url}", path) from error
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(
                f"Data file {path} in {store.url} could not be read: {error}", file=path
            ) from error
        what = (
            str(error) if isinstance(error, _KNOWN_DAMAGE) else f"{type(error).__name__}: {error}"
        )
        raise CorruptLogError(
            f"Data file {path} in {store.url} is damaged: {what}. No record of it was "
            f"skipped. {RESTORE_FILE}",
            file=path,
        ) from error


def _open(
    store: ObjectStore, path: str, size_bytes: int | None, data: bytes | None
) -> _File | RecordLists:
    """A small file by one get, a local one by its path, a large remote one by ranges, else one get.

    RecordLists are all records of a file that txnlog.storage.batches.small_batch has encoded.
    """
    name = path.rpartition("/")[2]
    if size_bytes is not None and size_bytes <= SMALL_BYTES_MAX:
        return _open_small(store.get(path) if data is None else data, size_bytes, name)
    source, found_bytes = _source_of(store, path, size_bytes, data)
    return _File(source, read_seal(_reading(source), found_bytes, name=name), found_bytes)


def _source_of(
    store: ObjectStore, path: str, size_bytes: int | None, data: bytes | None
) -> tuple[Any, int]:
    """What reads a file, and its size."""
    local = store.local_path(path)
    is_small = size_bytes is not None and size_bytes <= READ_LOCAL_WHOLE_BELOW_BYTES
    if data is None and local is not None and is_small:
        data = store.get(path)
    source: Any
    if data is not None:
        source, found_bytes = pa.BufferReader(data), len(data)
    elif local is not None:
        store.check_regular(path)
        source = pa.OSFile(local)
        found_bytes = source.size()
    elif size_bytes is not None and size_bytes > READ_WHOLE_BELOW_BYTES:
        source = RemoteFile(path, store.open_reader(path))
        found_bytes = source.seek(0, io.SEEK_END)
    else:
        data = store.get(path)
        source, found_bytes = pa.BufferReader(data), len(data)
    _check_size(found_bytes, size_bytes)
    return source, found_bytes


def open_foreign(
    store: ObjectStore, span: FileSpan, columns: Iterable[str], *, data: bytes | None
) -> tuple[pq.ParquetFile, list[str]]:
    """A Parquet file of another writer, and which of these columns it has.

    Raises ClaimError (a ValueError), pyarrow's errors and those of the store.
    """
    source, found_bytes = _source_of(store, span.path, span.size_bytes, data)
    file = _parquet(source, found_bytes, is_sealed=False)
    present = [name for name in columns if name in file.schema_arrow.names]
    check_pages(_reading(source), file.metadata, range(file.num_row_groups), present)
    return file, present


def _parquet(source: Any, size_bytes: int, *, is_sealed: bool) -> pq.ParquetFile:
    read_at = _reading(source)
    if not is_sealed:
        check_schema(read_at, size_bytes)
    return pq.ParquetFile(
        source,
        thrift_container_size_limit=max(1, footer_bytes(read_at, size_bytes)),
        page_checksum_verification=not is_sealed,
        coerce_int96_timestamp_unit="us",
        pre_buffer=False,
    )


def _open_small(data: bytes, size_bytes: int, name: str) -> _File | RecordLists:
    _check_size(len(data), size_bytes)

    def read_at(start: int, end: int) -> bytes:
        return data[start:end]

    seal = read_seal(read_at, len(data), name=name)
    if seal is not None and len(seal.spans) == 1:
        check_span(read_at, seal.spans, 0)
        records = small_batch_reader.decode(data, seal.spans[0].end, split_footer(data))
        if records is not None:
            return records
    return _File(pa.BufferReader(data), seal, len(data))


def _check_size(found_bytes: int, size_bytes: int | None) -> None:
    if size_bytes is not None and found_bytes != size_bytes:
        raise _DamageError(f"it has {found_bytes} bytes, its header in the log says {size_bytes}")


def _check_count(found: int, num_records: int | None) -> None:
    if num_records is not None and found != num_records:
        raise _DamageError(f"it has {found} records, its header in the log says {num_records}")


def _reading(source: Any) -> Callable[[int, int], bytes]:
    if isinstance(source, RemoteFile):
        return source.read_span
    return lambda start, end: source.read_at(end - start, start)


def _lending(source: Any) -> Callable[[int, int], Any]:
    """As `_reading`; the bytes of a file in memory are not copied."""
    if isinstance(source, RemoteFile):
        return source.read_span

    def read_at(start: int, end: int) -> pa.Buffer:
        source.seek(start)
        return source.read_buffer(end - start)

    return read_at


class _File:
    """An open Parquet file, with its seal if it has one."""

    def __init__(self, source: Any, seal: Seal | None, size_bytes: int) -> None:
        self._source = source
        self._seal = seal
        self._file = _parquet(source, size_bytes, is_sealed=seal is not None)
        self._metadata = self._file.metadata
        # Each access makes an Arrow schema.
        self._names = self._file.schema_arrow.names

    def check_counts(self, num_records: int | None) -> None:
        """Raise _DamageError if the footer contradicts itself, the seal or the log."""
        if "offset_delta" not in self._names:
            raise _DamageError(f"it has no column offset_delta among {self._names}")
        groups = self._metadata.num_row_groups
        if self._seal is not None and len(self._seal.spans) != groups:
            sealed = len(self._seal.spans)
            raise _DamageError(f"it has {groups} row groups, its seal says {sealed}")
        found = sum(self._metadata.row_group(i).num_rows for i in range(groups))
        if found != self._metadata.num_rows:
            raise _DamageError(f"its row groups hold {found} of {self._metadata.num_rows} records")
        _check_count(found, num_records)

    def counts_offsets(self, span: FileSpan) -> bool:
        """Whether `batches` counts rows instead of decoding the column offset_delta."""
        return span.is_dense and span.num_records is not None and self._seal is not None

    def batches(
        self, names: Iterable[str], span: FileSpan, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Batches that may hold wanted records, in offset order, each row group checked first.

        They have the columns `names` as far as the file does, and offset_delta.
        """
        present = set(self._names)
        wanted = [name for name in dict.fromkeys(["offset_delta", *names]) if name in present]
        if self._seal is None:
            yield from self._foreign_batches(wanted, batch_rows)
            return
        counts = self.counts_offsets(span)
        first_delta = 0
        for group in range(self._metadata.num_row_groups):
            metadata = self._metadata.row_group(group)
            if _may_hold(metadata, span):
                check_span(_lending(self._source), self._seal.spans, group)
                found = self._file.iter_batches(
                    batch_rows,
                    row_groups=[group],
                    columns=wanted[1:] if counts else wanted,
                    use_threads=False,
                )
                yield from _counted(found, first_delta) if counts else found
            first_delta += metadata.num_rows

    def _foreign_batches(self, wanted: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """All batches of a foreign file, sorted if its offset_delta is out of order.

        Its statistics are not used: they are not checksummed, and damaged ones can crash the
        process.
        """
        groups = range(self._metadata.num_row_groups)
        check_pages(_reading(self._source), self._metadata, groups, wanted)
        if self._is_in_order():
            yield from self._file.iter_batches(batch_rows, columns=wanted, use_threads=False)
            return
        if self._metadata.num_rows > SORTED_ROWS_MAX:
            raise _DamageError(
                f"its {self._metadata.num_rows} records are out of order, and more than "
                f"{SORTED_ROWS_MAX} are not sorted here"
            )
        table = self._file.read(wanted, use_threads=False).sort_by("offset_delta")
        yield from table.combine_chunks().to_batches(max_chunksize=batch_rows)

    def _is_in_order(self) -> bool:
        """Reads a batch at a time: only the file itself says how many rows it has."""
        last = -1
        for batch in self._file.iter_batches(_LOOK_ROWS, columns=["offset_delta"]):
            deltas = _to_type(batch.column(0), pa.int64())
            _check_not_null(deltas)
            values = deltas.to_numpy()
            if len(values):
                if values[0] <= last or not np.all(values[1:] > values[:-1]):
                    return False
                last = int(values[-1])
        return True


def _counted(batches: Iterable[pa.RecordBatch], first_delta: int) -> Iterator[pa.RecordBatch]:
    """Batches of a row group whose records have each offset from `first_delta` on."""
    for batch in batches:
        end_delta = first_delta + batch.num_rows
        deltas = number_array(np.arange(first_delta, end_delta, dtype=np.int64))
        yield pa.RecordBatch.from_arrays(
            [deltas, *batch.columns], names=["offset_delta", *batch.schema.names]
        )
        first_delta = end_delta


def _may_hold(group: pq.RowGroupMetaData, span: FileSpan) -> bool:
    """Whether a row group of ours may hold such records, by the statistics of offset_delta."""
    first_delta, end_delta = span.first_delta, span.end_delta
    if first_delta == 0 and end_delta is None:
        return True
    statistics = group.column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return statistics.max >= first_delta and (end_delta is None or statistics.min < end_delta)


def _check_not_null(deltas: pa.Array | pa.ChunkedArray) -> None:
    if deltas.null_count:
        raise _DamageError(f"{deltas.null_count} of its records have no offset_delta")


def _check_deltas(deltas: pa.Array) -> None:
    _check_not_null(deltas)
    values = deltas.to_numpy()
    if len(values) and (values[0] < 0 or not np.all(values[1:] > values[:-1])):
        raise _DamageError("its offset_delta does not rise from record to record")


def _keep(deltas: pa.Array, span: FileSpan) -> tuple[int, int]:
    """(start, length) of the rows in the span: a slice, as offsets rise."""
    values = deltas.to_numpy()
    start = int(np.searchsorted(values, span.first_delta)) if span.first_delta else 0
    end = len(values) if span.end_delta is None else int(np.searchsorted(values, span.end_delta))
    return start, max(0, end - start)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column with its type in DATA_SCHEMA; nulls if the file does not have it."""
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
        # Spark's INT96 timestamps are read without a zone, and are UTC.
        return column.cast(wanted, safe=False)
    return column.cast(wanted)
