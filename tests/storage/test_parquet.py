"""Record batch files: records read back as written; damage is an error that names the file."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnlog.errors import (
    CorruptLogError,
    InvalidRecordError,
    ObjectNotFoundError,
    StorageError,
)
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.records import (
    DATA_SCHEMA,
    HEADER_OVERHEAD_BYTES,
    HEADERS_TYPE,
    RECORD_OVERHEAD_BYTES,
    RECORD_SCHEMA,
    record_sizes,
)
from txnlog.storage.batches.writer import BatchFileWriter, write_batch_file
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.seals import TAIL_BYTES

PATH = "orders/part-0-file.parquet"
FIRST_US = 1_700_000_000_000_000


def records(count: int, *, seed: int = 1) -> pa.Table:
    """Records with null keys, values and headers among them; timestamps rise by 1 ms."""
    rng = random.Random(seed)
    rows = [
        {
            "timestamp": FIRST_US + i * 1000,
            "key": None if i % 7 == 3 else b"key-%d" % (i % 13),
            "value": None if i % 11 == 5 else rng.randbytes(rng.randrange(60)),
            "headers": None
            if i % 3
            else [{"key": "h", "value": b"%d" % i}, {"key": "none", "value": None}],
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


def read(
    store: ObjectStore,
    path: str = PATH,
    *,
    columns: list[str] | None = None,
    batch_rows: int = 16_384,
    **span: int,
) -> pa.Table:
    found = read_batch_file(store, FileSpan(path, **span), columns=columns, batch_rows=batch_rows)
    batches = list(found)
    return pa.Table.from_batches(batches, schema=batches[0].schema if batches else DATA_SCHEMA)


def put_table(store: ObjectStore, table: pa.Table, path: str = PATH, **settings: Any) -> None:
    """Write a file as another Parquet writer would."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings)
    store.put(path, sink.getvalue().to_pybytes())


def expected(table: pa.Table) -> pa.Table:
    return table.add_column(0, DATA_SCHEMA.field(0), pa.array(range(table.num_rows), pa.int64()))


# -- writing and reading -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 25, 3_000])
def test_batch_file_written_in_one_put_reads_back(store: ObjectStore, count: int) -> None:
    """A record must not change, and the header must match the file."""
    table = records(count)
    written = write_batch_file(store, PATH, table)
    assert read(store).equals(expected(table))
    assert read(store, num_records=count, size_bytes=written.size_bytes).num_rows == count
    assert written.num_records == count
    assert written.size_bytes == store.head(PATH).size_bytes
    assert written.timestamp_min_us == FIRST_US
    assert written.timestamp_max_us == FIRST_US + (count - 1) * 1000


def test_batch_file_schema_and_codec_on_disk_are_as_documented(store: ObjectStore) -> None:
    """Plain Delta readers must find the columns of the table in every file."""
    for count, codec in ((10, "SNAPPY"), (3_000, "UNCOMPRESSED")):
        path = f"{count}-{PATH.rsplit('/')[-1]}"
        write_batch_file(store, path, records(count))
        file = pq.ParquetFile(pa.BufferReader(store.get(path)))
        assert file.schema_arrow.equals(DATA_SCHEMA)
        assert not file.schema_arrow.field("offset_delta").nullable
        assert file.metadata.row_group(0).column(3).compression == codec


def test_batch_file_without_records_is_refused(store: ObjectStore) -> None:
    """An empty batch would be a header with last_offset below base_offset."""
    with pytest.raises(InvalidRecordError, match="at least one record"):
        write_batch_file(store, PATH, records(0))
    with pytest.raises(InvalidRecordError, match="at least one record"):
        BatchFileWriter(store, PATH).close()
    assert store.list("orders") == []


@pytest.mark.parametrize("stream_after", [None, 0, 2])
def test_batch_file_writer_row_groups_make_one_batch(
    store: ObjectStore, stream_after: int | None
) -> None:
    """Offsets must continue from row group to row group, streamed or not."""
    parts = [records(500, seed=seed) for seed in range(4)]
    writer = BatchFileWriter(store, PATH)
    for number, part in enumerate(parts):
        writer.write(part)
        if number == stream_after:
            writer.stream()
            assert writer.held_bytes == 0
    written = writer.close()
    assert written.num_records == 2_000
    assert written.size_bytes == store.head(PATH).size_bytes
    assert read(store).equals(expected(pa.concat_tables(parts)))


def test_batch_file_writer_dropped_leaves_nothing_that_can_be_read(store: ObjectStore) -> None:
    """A task that fails half-way must not leave a file that looks complete."""
    writer = BatchFileWriter(store, PATH)
    writer.write(records(2_000))
    writer.stream()
    writer.write(records(10))
    del writer
    with pytest.raises((ObjectNotFoundError, CorruptLogError)):
        list(read_batch_file(store, FileSpan(PATH)))


def test_batch_file_writer_failing_upload_is_a_storage_error(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the store's own writer must not reach callers that know TxnLogError only."""

    class Broken:
        def write(self, data: bytes) -> int:
            raise RuntimeError("connection reset")

    monkeypatch.setattr(store, "open_writer", lambda path: Broken())
    writer = BatchFileWriter(store, PATH)
    writer.write(records(100))
    with pytest.raises(StorageError, match="connection reset"):
        writer.stream()
    with pytest.raises(StorageError, match=r"part-0-file.*connection reset"):
        writer.write(records(100))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("columns", [["offset_delta"], ["value"], ["value", "offset_delta"]])
@pytest.mark.parametrize(
    ("first", "end"), [(0, 1), (0, 999), (998, 1002), (1500, None), (2999, 3000), (5000, None)]
)
def test_batch_file_range_reads_only_that_range(
    store: ObjectStore, first: int, end: int | None, columns: list[str], dense: bool
) -> None:
    """A range plan that gives a record twice, or loses one at a row group's edge."""
    writer = BatchFileWriter(store, PATH)
    for seed in range(3):
        writer.write(records(1000, seed=seed))
    writer.close()
    whole = pa.concat_tables(expected(records(1000, seed=seed)) for seed in range(3))
    numbered = whole.set_column(0, "offset_delta", [list(range(3000))])
    found = read(
        store,
        first_delta=first,
        end_delta=end,
        columns=columns,
        batch_rows=64,
        num_records=3000,
        is_dense=dense,
    )
    wanted = numbered.slice(first, max(0, (3000 if end is None else end) - first))
    assert found.to_pydict() == wanted.select(found.column_names).to_pydict()


def test_dense_file_of_another_writer_is_read_by_its_offsets(store: ObjectStore) -> None:
    """It has no seal, so that its rows may be in any order."""
    table = expected(records(100))
    put_table(store, table.take(pa.array(range(99, -1, -1))))
    assert read(store, num_records=100, is_dense=True).equals(table)


def test_batch_file_reads_only_the_requested_columns(store: ObjectStore) -> None:
    """Headers take time to read; without them the others still come in schema order."""
    write_batch_file(store, PATH, records(10))
    found = read(store, columns=["value", "key"])
    assert found.schema.names == ["key", "value"]
    assert found.equals(records(10).select(["key", "value"]))


def test_large_file_is_read_by_ranges(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file must not be fetched whole into memory."""
    written = write_batch_file(store, PATH, records(3_000))
    monkeypatch.setattr("txnlog.storage.batches.reader.READ_WHOLE_BELOW_BYTES", 100)
    monkeypatch.setattr("txnlog.storage.batches.reader.READ_LOCAL_WHOLE_BELOW_BYTES", 100)
    monkeypatch.setattr("txnlog.storage.batches.reader.SMALL_BYTES_MAX", 100)
    monkeypatch.setattr(store, "get", None)
    assert read(store, size_bytes=written.size_bytes).equals(expected(records(3_000)))


# -- foreign files -------------------------------------------------------------------------------


def test_erased_file_keeps_the_other_offsets(store: ObjectStore) -> None:
    """An erasure job drops rows; each other record must keep its offset."""
    table = expected(records(1000))
    kept = table.filter(pa.array([i % 10 != 4 for i in range(1000)]))
    put_table(store, kept)
    assert read(store).equals(kept)
    found = read(store, first_delta=100, end_delta=110)
    assert found.column("offset_delta").to_pylist() == [
        100, 101, 102, 103, 105, 106, 107, 108, 109,
    ]  # fmt: skip


def test_rewritten_file_columns_missing_reordered_and_widened_read_the_same(
    store: ObjectStore,
) -> None:
    """Another writer may leave out null columns, re-order and widen the others."""
    table = expected(records(300)).drop_columns(["headers"])
    foreign = pa.table(
        {
            "value": table["value"].cast(pa.large_binary()),
            "extra": pa.array(range(300)),
            "offset_delta": table["offset_delta"].cast(pa.int32()),
            "key": table["key"].cast(pa.large_binary()),
            "timestamp": table["timestamp"].cast(pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    put_table(store, foreign)
    found = read(store)
    assert found.schema.equals(DATA_SCHEMA)
    assert found.drop_columns(["headers"]).equals(table)
    assert found["headers"].null_count == 300


def test_rewritten_file_int96_timestamps_are_utc(store: ObjectStore) -> None:
    """Spark's default timestamp type has no zone in the file; it is UTC."""
    table = expected(records(50))
    put_table(store, table, use_deprecated_int96_timestamps=True)
    assert read(store)["timestamp"].equals(table["timestamp"])


def test_rewritten_file_headers_of_other_shapes_read_the_same(store: ObjectStore) -> None:
    """Large lists, other element names, fields in reverse order."""
    kind = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    rows = [None, [], [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [None]]
    plain = pa.array(rows, HEADERS_TYPE)
    table = expected(records(5).set_column(3, "headers", plain))
    put_table(store, table.set_column(4, "headers", pa.array(rows, kind)))
    assert read(store)["headers"].to_pylist() == rows


def test_rewritten_file_rows_out_of_order_come_in_offset_order(store: ObjectStore) -> None:
    """A rewriting job may shuffle; a reader that stops at a record must have seen all before it."""
    table = expected(records(2_000))
    order = np.random.default_rng(3).permutation(2_000)
    put_table(store, table.take(pa.array(order)), row_group_size=100)
    assert read(store, batch_rows=128).equals(table)
    assert read(store, first_delta=7, end_delta=9).equals(table.slice(7, 2))


@pytest.mark.parametrize("deltas", [[0, 1, 1], [1, 0, 0], [0, None, 2], [-1, 0, 1]])
def test_rewritten_file_with_impossible_offsets_is_corrupt(
    store: ObjectStore, deltas: list[int | None]
) -> None:
    """Two records of one offset, or one without, would be given out as they are (R66)."""
    put_table(store, pa.table({"offset_delta": pa.array(deltas, pa.int64())}))
    with pytest.raises(CorruptLogError, match="part-0-file"):
        read(store)


def test_file_without_offset_delta_is_corrupt(store: ObjectStore) -> None:
    """Row numbers are not offsets in a rewritten file (R66)."""
    put_table(store, records(5))
    with pytest.raises(CorruptLogError, match="no column offset_delta"):
        read(store)


def test_file_with_a_column_of_another_type_is_corrupt(store: ObjectStore) -> None:
    """A file of another table under our name must not be read as records (R66)."""
    put_table(store, pa.table({"offset_delta": [0, 1], "value": [1.5, 2.5]}))
    with pytest.raises(CorruptLogError, match="part-0-file"):
        read(store)


# -- damage --------------------------------------------------------------------------------------


def test_missing_file_is_object_not_found_and_names_it(store: ObjectStore) -> None:
    """Retention may delete a file that a slow reader still needs; that is no damage."""
    with pytest.raises(ObjectNotFoundError, match="part-0-file.*start the query again"):
        read(store)


@pytest.mark.parametrize("kept", [0, 3, 100, -1, -9])
def test_truncated_file_is_corrupt(store: ObjectStore, kept: int) -> None:
    """A half-copied file must be an error, never fewer records (R66)."""
    write_batch_file(store, PATH, records(2_000))
    store.put(PATH, store.get(PATH)[:kept])
    with pytest.raises(CorruptLogError, match="part-0-file"):
        read(store)


def test_zero_filled_file_is_corrupt(store: ObjectStore) -> None:
    """As after a disk crash: the right size, all zero, or zero in the middle (R66)."""
    size = write_batch_file(store, PATH, records(2_000)).size_bytes
    whole = store.get(PATH)
    store.put(PATH, bytes(size))
    with pytest.raises(CorruptLogError, match="part-0-file"):
        read(store, size_bytes=size)
    store.put(PATH, whole[: size // 3] + bytes(size // 3) + whole[2 * (size // 3) :])
    with pytest.raises(CorruptLogError, match="part-0-file"):
        read(store)


def test_file_that_contradicts_its_header_is_corrupt(store: ObjectStore) -> None:
    """Another intact file under this name: the log has its size (R66)."""
    size = write_batch_file(store, PATH, records(20)).size_bytes
    with pytest.raises(CorruptLogError, match=r"20 records.*says 21"):
        read(store, num_records=21)
    with pytest.raises(CorruptLogError, match=rf"{size} bytes.*says {size + 1}"):
        read(store, size_bytes=size + 1)


@pytest.mark.parametrize("count", [20, 2_000])
def test_garbled_byte_gives_an_error_or_the_same_records(store: ObjectStore, count: int) -> None:
    """Bit rot in a page is found by its CRC: never a wrong or missing record (R66)."""
    table = records(count)
    size = write_batch_file(store, PATH, table).size_bytes
    whole = store.get(PATH)
    pages_end = size - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = random.Random(5)
    messages = []
    for _ in range(300):
        at = rng.randrange(4, pages_end)
        garbled = bytearray(whole)
        garbled[at] ^= 1 << rng.randrange(8)
        store.put(PATH, bytes(garbled))
        try:
            found = read(store, num_records=count, size_bytes=size)
        except CorruptLogError as error:
            messages.append(str(error))
        else:
            assert found.equals(expected(table)), f"byte {at}"
    assert len(messages) > 290
    assert all("part-0-file" in message for message in messages)


def test_garbled_footer_is_found_before_it_is_parsed(store: ObjectStore) -> None:
    """pyarrow crashes on some damaged footers, or skips row groups (R66)."""
    table = records(200)
    size = write_batch_file(store, PATH, table).size_bytes
    whole = store.get(PATH)
    footer_at = size - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = random.Random(6)
    for _ in range(500):
        garbled = bytearray(whole)
        garbled[rng.randrange(footer_at, size)] ^= 1 << rng.randrange(8)
        store.put(PATH, bytes(garbled))
        with pytest.raises(CorruptLogError, match="part-0-file"):
            read(store)


def test_garbled_row_group_is_found_only_when_it_is_read(store: ObjectStore) -> None:
    """A range read checks its row groups and not the whole file; a full read finds it (R66)."""
    writer = BatchFileWriter(store, PATH)
    for seed in range(3):
        writer.write(records(1000, seed=seed))
    size = writer.close().size_bytes
    garbled = bytearray(store.get(PATH))
    garbled[size - 6_000] ^= 1
    store.put(PATH, bytes(garbled))
    assert read(store, first_delta=0, end_delta=1000).num_rows == 1000
    with pytest.raises(CorruptLogError, match="row group 2"):
        read(store)


def test_footer_longer_than_the_tail_is_read_whole(store: ObjectStore) -> None:
    """Many row groups make a footer of megabytes; the seal is before it."""
    writer = BatchFileWriter(store, PATH)
    for seed in range(200):
        writer.write(records(2, seed=seed))
    writer.close()
    whole = store.get(PATH)
    assert int.from_bytes(whole[-8:-4], "little") > TAIL_BYTES
    assert read(store).num_rows == 400
    changed = bytes([whole[-TAIL_BYTES] ^ 255])
    whole = whole[:-TAIL_BYTES] + changed + whole[-TAIL_BYTES + 1 :]
    store.put(PATH, whole)
    with pytest.raises(CorruptLogError, match="checksum"):
        read(store)


def test_store_errors_pass_as_they_are(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network error is retriable; as damage it would stop a query for ever."""

    def refuse(path: str) -> Iterator[bytes]:
        raise StorageError("throttled")

    monkeypatch.setattr(store, "get", refuse)
    monkeypatch.setattr(store, "local_path", lambda path: None)
    with pytest.raises(StorageError, match="throttled"):
        read(store)


# -- sizes ---------------------------------------------------------------------------------------


def test_record_sizes_count_key_value_headers_and_overhead() -> None:
    """They are compared with max.message.bytes (R65)."""
    rows = [
        {"key": b"abc", "value": b"12345", "headers": None},
        {"key": None, "value": None, "headers": []},
        {"key": b"k", "value": b"", "headers": [{"key": "h1", "value": b"vv"}]},
        {"key": None, "value": b"v", "headers": [{"key": "a", "value": None}] * 3},
    ]
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    table = pa.Table.from_pylist([{"timestamp": now, **row} for row in rows], RECORD_SCHEMA)
    batch = table.combine_chunks().to_batches()[0]
    extra = [8, 0, 1 + 4 + HEADER_OVERHEAD_BYTES, 1 + 3 * (1 + HEADER_OVERHEAD_BYTES)]
    assert record_sizes(batch).tolist() == [RECORD_OVERHEAD_BYTES + size for size in extra]
    assert record_sizes(batch.slice(2, 2)).tolist() == record_sizes(batch).tolist()[2:]
