"""Writing record batch files: one Parquet file is one record batch.

Settings were chosen by measuring 100-byte records on one core: zstd level 1 writes within 10 % of
negative levels at two thirds of their size; a dictionary for keys only, given up early, saves 12 %
of time on repeating keys and costs nothing on unique ones; DELTA_BINARY_PACKED makes `offset_delta`
and constant timestamps nearly free. Files of a few records use snappy: zstd contexts alone would
take 0.15 of their 0.27 ms, and compaction rewrites such files anyway. A column of nothing but
nulls, which every reader gives for one that is not there, would be a third of the rest: `headers`
are written where there are some. Pages of 128 KiB stay in the
processor's cache while they are encoded (3 %); page checksums would cost 5 %, and the seal is one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.errors import InvalidRecordError, StorageError, TxnLogError
from txnlog.storage.records import BARE_SCHEMA, DATA_SCHEMA
from txnlog.storage.seals import Span, make_seal, split_footer

if TYPE_CHECKING:
    from txnlog.storage.objects import ObjectStore

ROW_GROUP_BYTES = 16 << 20
SNAPPY_BELOW_BYTES = 64 << 10

_TIMED = ["offset_delta", "timestamp"]
_SETTINGS: Mapping[str, Any] = {
    "use_dictionary": ["key"],
    "dictionary_pagesize_limit": 64 << 10,
    "column_encoding": dict.fromkeys(_TIMED, "DELTA_BINARY_PACKED"),
    "write_statistics": _TIMED,
    "write_batch_size": 8192,
    "data_page_size": 128 << 10,
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


def write_batch_file(
    store: ObjectStore,
    path: str,
    records: pa.Table | pa.RecordBatch,
    *,
    compression: str | None = None,
) -> BatchFile:
    """Write records (RECORD_SCHEMA, headers may be missing; in offset order) as one file, one put.

    The whole encoded file is in memory: for a batch of unknown size use BatchFileWriter. A file
    of records without headers has no such column.
    `compression` is none, snappy, lz4 or zstd, by default what suits the size. `path`
    must be a new name.
    Raises InvalidRecordError for no records at all, StorageError.
    """
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    size_bytes = table.nbytes
    if table.num_rows == 0 or size_bytes > ROW_GROUP_BYTES:
        headers = "headers" in table.column_names
        writer = BatchFileWriter(store, path, compression=compression, headers=headers)
        rows = max(1, ROW_GROUP_BYTES * table.num_rows // max(size_bytes, 1))
        for start in range(0, table.num_rows, rows):
            writer.write(table.slice(start, rows))
        return writer.close()
    codec = _codec(compression, _SNAPPY if size_bytes < SNAPPY_BELOW_BYTES else _ZSTD)
    if "headers" in table.column_names and table.column("headers").null_count == table.num_rows:
        table = table.drop_columns(["headers"])
    numbered = _numbered(table, 0)
    sink = pa.BufferOutputStream()
    with _encoder(sink, numbered.schema, codec) as encoder:
        encoder.write_table(numbered)
    encoded = memoryview(sink.getvalue()).cast("B")
    end = split_footer(encoded)
    footer = encoded[end:]
    seal = make_seal([Span(end, crc32(encoded[:end]))], footer)
    whole = b"".join((encoded[:end], seal, footer))
    store.put_new(path, whole)
    low, high = _timestamp_range(table)
    return BatchFile(
        path=path,
        size_bytes=len(whole),
        num_records=table.num_rows,
        timestamp_min_us=low,
        timestamp_max_us=high,
    )


class BatchFileWriter:
    """Writes one record batch file row group by row group, for batches larger than memory.

    Encoded bytes are kept (`held_bytes`) until `stream` sends them, and all that follow, through
    `store.open_writer`; a file never streamed becomes one put. Nothing can be read before
    `close`; a writer that is dropped instead leaves at most a part that no reader takes for a file.
    Without `headers` the records have no such column.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        compression: str | None = None,
        headers: bool = True,
    ) -> None:
        self.path = path
        self.num_records = 0
        self._store = store
        self._sink = _Sink(path)
        self._low_us: int | None = None
        self._high_us: int | None = None
        self._writer = _encoder(
            pa.PythonFile(self._sink, mode="w"),
            DATA_SCHEMA if headers else BARE_SCHEMA,
            _codec(compression, _ZSTD),
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
        numbered = _numbered(table, self.num_records)
        self._sink.begin_row_group()
        self._writer.write_table(numbered, row_group_size=table.num_rows)
        self._sink.end_row_group()
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
        self._sink.seal()
        if self.streaming:
            self._sink.finish()
        else:
            self._store.put_new(self.path, self._sink.take())
        return BatchFile(
            path=self.path,
            size_bytes=self._sink.position,
            num_records=self.num_records,
            timestamp_min_us=self._low_us or 0,
            timestamp_max_us=self._high_us or 0,
        )


class _Sink(io.RawIOBase):
    """Where the Parquet encoder writes: into memory first, later on into the store's writer.

    Keeps the checksum of each row group. What comes after a row group is kept apart until it is
    sealed, and `close` closes only this side: the encoder writes a footer and closes its sink also
    when it is dropped after an error, and then half a file would read like a whole one.
    """

    def __init__(self, path: str) -> None:
        self.position = 0
        self.target: BinaryIO | None = None
        self._path = path
        self._held: list[bytes] = []
        self._footer: list[bytes] | None = None
        self._spans: list[Span] = []
        self._checksum = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position + sum(map(len, self._footer or ()))

    def write(self, data: Any) -> int:
        if self._footer is not None:
            self._footer.append(bytes(data))
        else:
            self._checksum = crc32(data, self._checksum)
            self._pass_on(data)
        return len(data)

    def begin_row_group(self) -> None:
        self._footer = None

    def end_row_group(self) -> None:
        self._spans.append(Span(self.position, self._checksum))
        self._checksum = 0
        self._footer = []

    def seal(self) -> None:
        """Pass on the seal and the footer."""
        footer = b"".join(self._footer or ())
        if split_footer(footer) != 0:
            raise StorageError(
                f"{self._path}: this version of pyarrow writes more than a footer when it closes "
                "a file, so the file cannot be sealed. Use a pyarrow txnlog was tested with.",
                path=self._path,
            )
        self._pass_on(make_seal(self._spans, footer))
        self._pass_on(footer)

    def send_to(self, target: BinaryIO) -> None:
        self.target = target
        with store_errors(self._path, "upload"):
            target.write(self.take())

    def finish(self) -> None:
        """Make what was streamed visible."""
        with store_errors(self._path, "upload"):
            cast("BinaryIO", self.target).close()

    def take(self) -> bytes:
        whole = b"".join(self._held)
        self._held = []
        return whole

    def _pass_on(self, data: Any) -> None:
        if self.target is None:
            self._held.append(bytes(data))
        else:
            with store_errors(self._path, "upload"):
                self.target.write(data)
        self.position += len(data)


@contextmanager
def store_errors(path: str, verb: str) -> Iterator[None]:
    """The store's streams raise errors of their own making; callers know ours only."""
    try:
        yield
    except TxnLogError:
        raise
    except Exception as error:
        raise StorageError(
            f"{path}: {verb} failed ({error}). Check the store, then try again.", path=path
        ) from error


def _codec(compression: str | None, default: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parquet's settings for "none", "snappy", "lz4" or "zstd"; None: the default."""
    if compression is None:
        return default
    return _ZSTD if compression == "zstd" else {"compression": compression}


def _encoder(sink: Any, schema: pa.Schema, codec: Mapping[str, Any]) -> pq.ParquetWriter:
    """Arrow's own schema is kept only where Parquet's does not say it all: the names in headers."""
    return pq.ParquetWriter(
        sink, schema, **_SETTINGS, **codec, store_schema="headers" in schema.names
    )


def _numbered(table: pa.Table, first_delta: int) -> pa.Table:
    deltas = pa.array(np.arange(first_delta, first_delta + table.num_rows, dtype=np.int64))
    schema = DATA_SCHEMA if "headers" in table.column_names else BARE_SCHEMA
    columns = [table.column(name) for name in schema.names[1:]]
    return pa.Table.from_arrays([deltas, *columns], schema=schema)


def _timestamp_range(table: pa.Table) -> tuple[int, int]:
    extremes = pc.min_max(table.column("timestamp"))
    return extremes["min"].value or 0, extremes["max"].value or 0
