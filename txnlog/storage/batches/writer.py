"""Writing record batch files: one Parquet file is one record batch.

Settings were chosen by measuring 100-byte records on one core: zstd level 1 takes up to 10 % more
time than negative levels, at two thirds of their size. Values in which an LZ coder finds no repeats
(hashes, random bytes; tested with a sample) are not compressed: zstd would halve hexadecimal digits
in four times the time of everything else. Compaction, which no client waits for, uses zstd. A
dictionary for keys only, with a small limit, saves 12 % of time on repeating keys; on unique ones
it would cost 0.25 ms per row group until it is given up, so a sample decides. DELTA_BINARY_PACKED
makes `offset_delta` and constant timestamps nearly free. A
column of nulls only, which readers also return for a missing column, costs a third of a small file:
`headers` are written only if a record has some. Small files use snappy, as zstd contexts alone
would take 0.15 ms, and those without headers are encoded by storage.batches.small_batch; compaction
rewrites them. Pages of 128 KiB stay in the processor's cache while they are encoded (3 %); page
checksums would cost 5 %, and the seal is a checksum.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO, cast
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from txnlog.errors import InvalidRecordError, StorageError, TxnLogError
from txnlog.process import arrow_compute as pc
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.metadata import StagedBatch
from txnlog.storage.batches import small_batch
from txnlog.storage.batches.record_lists import RecordLists, from_arrow
from txnlog.storage.batches.records import BARE_SCHEMA, DATA_SCHEMA
from txnlog.storage.batches.small_batch import EncodedBatch
from txnlog.storage.batches.small_batch_form import CODECS, ROWS_MAX
from txnlog.storage.store.errors import store_errors
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.seals import Span, make_seal, split_footer

ROW_GROUP_BYTES = 16 << 20
SNAPPY_BELOW_BYTES = 64 << 10
_NOT_SMALL_BYTES = 2 * SNAPPY_BELOW_BYTES
_SMALL_CODECS = (None, *CODECS)
SAMPLE_BYTES = 32 << 10
ZSTD_PAYS_BELOW = 0.8
DICTIONARY_BYTES = 64 << 10
SAMPLE_KEYS = 8192

_TIMED = ["offset_delta", "timestamp"]
_SETTINGS: Mapping[str, Any] = {
    "dictionary_pagesize_limit": DICTIONARY_BYTES,
    "column_encoding": dict.fromkeys(_TIMED, "DELTA_BINARY_PACKED"),
    "write_statistics": _TIMED,
    "write_batch_size": 8192,
    "data_page_size": 128 << 10,
    "sorting_columns": [pq.SortingColumn(0)],
}


class BatchFile(Struct, frozen=True, kw_only=True):
    """Facts of a record batch file for its log. Timestamps in microseconds, 0 if none."""

    path: str
    size_bytes: int
    num_records: int
    timestamp_min_us: int
    timestamp_max_us: int

    def staged(self, topic: str, topic_id: str, partition: int, *, staged_ms: int) -> StagedBatch:
        """For the manifest. `staged_ms` is before the upload: stores may date it by its start."""
        return StagedBatch(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            path=self.path.rpartition("/")[2],
            size_bytes=self.size_bytes,
            num_records=self.num_records,
            timestamp_min_us=self.timestamp_min_us,
            timestamp_max_us=self.timestamp_max_us,
            staged_ms=staged_ms,
        )


def new_batch_name(partition: int) -> str:
    """A unique file name.

    Not from `random`: a process that seeds it could repeat a name and overwrite a committed file.
    """
    return f"part-{partition}-{os.urandom(16).hex()}.parquet"


def write_batch_file(
    store: ObjectStore,
    path: str,
    records: pa.Table | pa.RecordBatch | RecordLists,
    *,
    compression: str | None = None,
) -> BatchFile:
    """Write records (RECORD_SCHEMA, headers may be missing; in offset order) as one file, one put.

    The whole encoded file is in memory: for a batch of unknown size use BatchFileWriter. The file
    has no column `headers` if no record has any. `compression` is none, snappy, lz4 or zstd; the
    default depends on the size. `path` must be a new name.
    Raises InvalidRecordError for no records, StorageError.
    """
    small = _small(records, compression)
    if small is not None:
        pages, footer, low, high = small_batch.encode(small, compression or "snappy")
    else:
        table = _to_table(records)
        if table.num_rows == 0 or table.nbytes > ROW_GROUP_BYTES:
            return _write_row_groups(store, path, table, compression)
        small_codec = "snappy" if table.nbytes < SNAPPY_BELOW_BYTES else None
        codec = compression or small_codec or _codec_for(table)
        pages, footer, low, high = _encode(table, codec)
    name = path.rpartition("/")[2]
    seal = make_seal([Span(len(pages), crc32(pages))], footer, name=name)
    whole = b"".join((pages, seal, footer))
    store.put_new(path, whole)
    return BatchFile(
        path=path,
        size_bytes=len(whole),
        num_records=records.num_rows,
        timestamp_min_us=low,
        timestamp_max_us=high,
    )


def _small(
    records: pa.Table | pa.RecordBatch | RecordLists, compression: str | None
) -> RecordLists | None:
    """The records if `small_batch` encodes them: few, small, no headers, dense offsets."""
    if not 0 < records.num_rows <= ROWS_MAX or compression not in _SMALL_CODECS:
        return None
    if not isinstance(records, RecordLists):
        if "offset_delta" in records.schema.names or not _has_no_headers(records):
            return None
        # nbytes is exact for slices, and takes thirty times as long.
        if records.get_total_buffer_size() > _NOT_SMALL_BYTES < records.nbytes:
            return None
        records = from_arrow(records)
    if records.headers is not None or records.data_bytes >= SNAPPY_BELOW_BYTES:
        return None
    return records


def _has_no_headers(records: pa.Table | pa.RecordBatch) -> bool:
    if "headers" not in records.schema.names:
        return True
    headers = records.column("headers")
    return bool(headers.null_count == len(headers))


def _to_table(records: pa.Table | pa.RecordBatch | RecordLists) -> pa.Table:
    """As an Arrow table; without the column headers if no record has any."""
    if isinstance(records, RecordLists):
        records = records.to_arrow()
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    if "headers" in table.column_names and _has_no_headers(table):
        table = table.drop_columns(["headers"])
    return table


def _write_row_groups(
    store: ObjectStore, path: str, table: pa.Table, compression: str | None
) -> BatchFile:
    headers = "headers" in table.column_names
    writer = BatchFileWriter(store, path, compression=compression, headers=headers)
    rows = max(1, ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1))
    for start in range(0, table.num_rows, rows):
        writer.write(table.slice(start, rows))
    return writer.close()


def _encode(table: pa.Table, codec: str) -> EncodedBatch:
    sink = pa.BufferOutputStream()
    numbered = _numbered(table, 0)
    with _encoder(sink, numbered.schema, codec, repeating=_keys_repeat(table)) as encoder:
        encoder.write_table(numbered)
    encoded = memoryview(sink.getvalue()).cast("B")
    end = split_footer(encoded)
    return EncodedBatch(encoded[:end], encoded[end:], *_timestamp_range(table))


class BatchFileWriter:
    """Writes one record batch file, one row group at a time, for batches larger than memory.

    Encoded bytes are kept (`held_bytes`) until `stream` sends them, and all that follow, through
    `store.open_writer`; without `stream` the file is one put. Nothing can be read before `close`;
    a writer that is dropped without `discard` may leave a part that no reader accepts as a file.
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
        self._schema = DATA_SCHEMA if headers else BARE_SCHEMA
        self._codec = compression
        self._encoder: pq.ParquetWriter | None = None

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
        if self._encoder is None:
            codec = self._codec or _codec_for(table)
            self._encoder = self._open(codec, repeating=_keys_repeat(table))
        self._append(self._encoder, numbered)
        low, high = _timestamp_range(table)
        self._low_us = low if self._low_us is None else min(self._low_us, low)
        self._high_us = high if self._high_us is None else max(self._high_us, high)
        self.num_records += table.num_rows

    def stream(self) -> None:
        """Send the held bytes, and from now on all bytes, directly to the store."""
        if not self.streaming:
            self._sink.send_to(self._store.open_writer(self.path))

    def close(self, *, may_be_empty: bool = False) -> BatchFile:
        """Finish the file and make it visible. Raises InvalidRecordError if it has no records.

        `may_be_empty`: a segment without records still covers the offsets of those removed.
        """
        if self._encoder is None:
            if not may_be_empty:
                raise InvalidRecordError(
                    f"A record batch needs at least one record; {self.path} has none."
                )
            self._encoder = self._open("zstd", repeating=False)
            self._append(self._encoder, self._schema.empty_table())
        self._encoder.close()
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

    def discard(self) -> None:
        """Leave nothing of a file that no log refers to; what cannot be deleted is for vacuum."""
        if not self.streaming:
            return
        # Else an object store keeps, and charges, an upload that was not ended.
        with suppress(Exception):
            self._sink.finish(is_whole=False)
        with suppress(TxnLogError):
            self._store.delete([self.path])

    def _open(self, codec: str, *, repeating: bool) -> pq.ParquetWriter:
        sink = pa.PythonFile(self._sink, mode="w")
        return _encoder(sink, self._schema, codec, repeating=repeating)

    def _append(self, encoder: pq.ParquetWriter, numbered: pa.Table) -> None:
        self._sink.begin_row_group()
        encoder.write_table(numbered, row_group_size=max(1, numbered.num_rows))
        self._sink.end_row_group()


class _Sink(io.RawIOBase):
    """The Parquet encoder's output: into memory first, later into the store's writer.

    Keeps the checksum of each row group. Bytes after a row group are kept separately until it is
    sealed, and `close` does not close the store's writer: the encoder writes a footer and closes
    its sink even if it is dropped after an error, and half a file would look complete.
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
        """Write the seal and the footer."""
        footer = b"".join(self._footer or ())
        if split_footer(footer) != 0:
            raise StorageError(
                f"{self._path}: this version of pyarrow writes more than a footer when it closes "
                "a file, so the file cannot be sealed. Use a pyarrow txnlog was tested with.",
                path=self._path,
                retriable=False,
                fatal=True,
            )
        self._pass_on(make_seal(self._spans, footer, name=self._path.rpartition("/")[2]))
        self._pass_on(footer)

    def send_to(self, target: BinaryIO) -> None:
        self.target = target
        with store_errors(self._path, "upload"):
            target.write(self.take())

    def finish(self, *, is_whole: bool = True) -> None:
        """Make the streamed file visible. Not `is_whole`: what the encoder has left is dropped."""
        if not is_whole:
            self._footer = []
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
            try:
                self.target.write(data)
            except BaseException:
                # Called for each page, so the context is entered only where it has work.
                with store_errors(self._path, "upload"):
                    raise
        self.position += len(data)


def _codec_for(records: pa.Table | pa.RecordBatch) -> str:
    """zstd if the first values have repeats, else none."""
    values = records.column("value")
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0)
    _, ends, data = values.buffers()
    if data is None or not len(values):
        return "zstd"
    start = int(np.frombuffer(ends, np.int32)[values.offset])
    sample = data.slice(start, min(SAMPLE_BYTES, data.size - start))
    packed = pa.compress(sample, codec="snappy")
    return "zstd" if packed.size <= ZSTD_PAYS_BELOW * sample.size else "none"


def _keys_repeat(records: pa.Table | pa.RecordBatch) -> bool:
    """Whether a dictionary of the first keys is small enough to be kept."""
    if records.num_rows < SAMPLE_KEYS:
        return True
    keys = records.column("key").slice(0, SAMPLE_KEYS)
    size_bytes = pc.sum(pc.binary_length(keys)).as_py() or 0
    # Parquet stores each distinct key with its length.
    key_bytes = size_bytes / max(1, SAMPLE_KEYS - keys.null_count) + 4
    return bool(pc.count_distinct(keys).as_py() * key_bytes <= DICTIONARY_BYTES)


def _encoder(sink: Any, schema: pa.Schema, codec: str, *, repeating: bool) -> pq.ParquetWriter:
    """A dictionary for `repeating` keys only.

    Arrow's schema is stored only if Parquet's is incomplete: for the names in headers.
    """
    return pq.ParquetWriter(
        sink,
        schema,
        **_SETTINGS,
        use_dictionary=["key"] if repeating else False,
        compression=codec,
        compression_level=1 if codec == "zstd" else None,
        store_schema="headers" in schema.names,
    )


def _numbered(table: pa.Table, first_delta: int) -> pa.Table:
    schema = DATA_SCHEMA if "headers" in table.column_names else BARE_SCHEMA
    if "offset_delta" in table.column_names:
        return table.select(schema.names)
    deltas = number_array(np.arange(first_delta, first_delta + table.num_rows, dtype=np.int64))
    columns = [table.column(name) for name in schema.names[1:]]
    return pa.Table.from_arrays([deltas, *columns], schema=schema)


def _timestamp_range(table: pa.Table) -> tuple[int, int]:
    extremes = pc.min_max(table.column("timestamp"))
    return extremes["min"].value or 0, extremes["max"].value or 0
