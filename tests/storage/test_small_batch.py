"""Small record batch files have an encoder of their own: every Parquet reader must read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from hypothesis import given
from hypothesis import strategies as st

from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.record_lists import from_arrow
from txnlog.storage.batches.records import BARE_SCHEMA, DATA_SCHEMA
from txnlog.storage.batches.small_batch import encode
from txnlog.storage.batches.small_batch_form import ROWS_MAX
from txnlog.storage.batches.small_batch_reader import decode
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.seals import read_seal, split_footer

FIELDS = [field for field in BARE_SCHEMA if field.name != "offset_delta"]
TIMES = st.none() | st.integers(-(2**62), 2**62)
VALUES = st.none() | st.binary(max_size=12) | st.sampled_from([b"same", b"size", b""])
ROWS = st.lists(st.tuples(TIMES, VALUES, VALUES), min_size=1, max_size=70)


def to_table(rows: list[tuple[int | None, bytes | None, bytes | None]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, FIELDS, strict=True)],
        schema=pa.schema(FIELDS),
    )


def numbered(table: pa.Table) -> pa.Table:
    return table.add_column(0, BARE_SCHEMA.field(0), pa.array(range(table.num_rows), pa.int64()))


@given(rows=ROWS, codec=st.sampled_from(["none", "snappy"]), data=st.data())
def test_small_batch_reads_back_as_written(
    rows: list[tuple[int | None, bytes | None, bytes | None]], codec: str, data: st.DataObject
) -> None:
    """Slices, chunks, nulls and empty values are all kinds of Arrow memory (R66)."""
    whole = to_table(rows)
    table = whole.slice(data.draw(st.integers(0, len(rows) - 1)))
    cut = data.draw(st.integers(0, table.num_rows))
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    encoded = encode(from_arrow(table), codec)
    file = pq.ParquetFile(pa.BufferReader(encoded.pages + encoded.footer))
    assert file.read().equals(numbered(table))
    times = [time for time in table.column("timestamp").cast(pa.int64()).to_pylist() if time]
    present = table.column("timestamp").cast(pa.int64()).drop_null().to_pylist()
    low, high = (min(present), max(present)) if present else (0, 0)
    assert (encoded.timestamp_min_us, encoded.timestamp_max_us) == (low, high), times


@given(rows=ROWS, codec=st.sampled_from(["none", "snappy"]), data=st.data())
def test_small_batch_is_read_back_without_pyarrow_as_pyarrow_reads_it(
    rows: list[tuple[int | None, bytes | None, bytes | None]], codec: str, data: st.DataObject
) -> None:
    """Any part of it, any columns (R66)."""
    store = ObjectStore.from_url("memory://")
    table = to_table(rows)
    written = write_batch_file(store, "t/small.parquet", table, compression=codec)
    whole = store.get("t/small.parquet")
    seal = read_seal(lambda start, end: whole[start:end], len(whole), name="small.parquet")
    assert seal is not None
    found = decode(whole, seal.spans[0].end, split_footer(whole))
    assert found is not None
    assert found == from_arrow(table)
    first = data.draw(st.integers(0, len(rows) + 1))
    end = data.draw(st.none() | st.integers(0, len(rows) + 1))
    columns = data.draw(st.none() | st.sets(st.sampled_from(DATA_SCHEMA.names), min_size=1))
    wanted = [field for field in DATA_SCHEMA if columns is None or field.name in columns]

    def read(size_bytes: int | None) -> pa.Table:
        span = FileSpan(
            "t/small.parquet",
            first_delta=first,
            end_delta=end,
            num_records=len(rows),
            size_bytes=size_bytes,
        )
        batches = read_batch_file(store, span, columns=columns and sorted(columns))
        return pa.Table.from_batches(batches, pa.schema(wanted)).combine_chunks()

    # Only a file of a known small size is decoded by our own reader.
    assert read(written.size_bytes).equals(read(None))


def test_foreign_files_are_left_to_pyarrow() -> None:
    """Without our footer, cut short, or a page of another kind."""
    table = numbered(to_table([(5, b"a", None), (3, None, b"xyz")]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy", use_dictionary=False, store_schema=False)
    theirs = sink.getvalue().to_pybytes()
    assert decode(theirs, split_footer(theirs), split_footer(theirs)) is None
    encoded = encode(from_arrow(to_table([(5, b"a", None), (3, None, b"xyz")])), "none")
    ours = bytes(encoded.pages) + bytes(encoded.footer)
    end = len(encoded.pages)
    assert decode(ours, end, end) is not None
    for at in range(4, end):
        changed = bytearray(ours)
        changed[at] ^= 0x04
        found = decode(bytes(changed), end, end)
        assert found is None or all(len(column) == 2 for column in found[:3])
        assert decode(ours[:at] + bytes(encoded.footer), at, at) is None


def test_small_batch_metadata_says_what_pyarrow_would(tmp_path: Path) -> None:
    """Readers plan with statistics, sizes and sorting."""
    table = to_table([(5, b"a", None), (3, None, b"xyz"), (None, b"b", b"")])
    encoded = encode(from_arrow(table), "none")
    ours = pq.ParquetFile(pa.BufferReader(encoded.pages + encoded.footer)).metadata
    path = tmp_path / "theirs.parquet"
    pq.write_table(
        numbered(table),
        path,
        use_dictionary=False,
        compression="none",
        sorting_columns=[pq.SortingColumn(0)],
        store_schema=False,
    )
    theirs = pq.ParquetFile(path).metadata
    assert ours.schema.equals(theirs.schema)
    assert (ours.num_rows, ours.format_version) == (theirs.num_rows, theirs.format_version)
    group, other = ours.row_group(0), theirs.row_group(0)
    assert group.sorting_columns == other.sorting_columns
    for index in range(4):
        column, wanted = group.column(index), other.column(index)
        assert column.physical_type == wanted.physical_type
        assert column.path_in_schema == wanted.path_in_schema
        assert column.num_values == wanted.num_values
        assert column.statistics.null_count == wanted.statistics.null_count
        assert column.total_compressed_size == column.total_uncompressed_size
        if index < 2:
            assert column.statistics.min == wanted.statistics.min
            assert column.statistics.max == wanted.statistics.max
    assert group.total_byte_size == sum(group.column(i).total_uncompressed_size for i in range(4))
    assert group.total_byte_size == len(encoded.pages) - 4


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_small_batch_is_read_by_data_fusion(tmp_path: Path, codec: str) -> None:
    """arrow-rs is a Parquet reader of its own; Spark's reads such files in tests/interop."""
    table = to_table(
        [(i if i % 3 else None, b"k" * (i % 5), None if i % 7 else b"v") for i in range(300)]
    )
    encoded = encode(from_arrow(table), codec)
    data = encoded.pages + encoded.footer
    (tmp_path / "data.parquet").write_bytes(data)
    action = AddAction("data.parquet", len(data), {}, 0, data_change=True, stats="{}")
    create_table_with_add_actions(
        str(tmp_path), Schema.from_arrow(BARE_SCHEMA), [action], mode="error", partition_by=[]
    )
    query = QueryBuilder().register("t", DeltaTable(tmp_path))
    found = pa.table(query.execute("SELECT * FROM t ORDER BY offset_delta").read_all())
    assert found.cast(BARE_SCHEMA).to_pylist() == numbered(table).to_pylist()


def test_write_batch_file_leaves_to_pyarrow_what_is_not_small_and_plain() -> None:
    store = ObjectStore.from_url("memory://")
    row = (1, b"k", b"v")
    small, many = to_table([row]), to_table([row] * (ROWS_MAX + 1))
    headers = pa.array(
        [[{"key": "h", "value": b"x"}]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    cases = {
        "small": (small, None),
        "many": (many, None),
        "headers": (small.append_column("headers", headers), None),
        "zstd": (small, "zstd"),
    }
    for name, (table, compression) in cases.items():
        write_batch_file(store, name, table, compression=compression)
        created_by = pq.ParquetFile(pa.BufferReader(store.get(name))).metadata.created_by
        assert created_by.startswith("txnlog") == (name == "small"), name
        [batch] = read_batch_file(store, FileSpan(name), batch_rows=ROWS_MAX * 2)
        assert batch.select(table.column_names).to_pylist() == table.to_pylist()
