"""Records as lists equal records as Arrow, in both directions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.record_lists import (
    Headers,
    RecordLists,
    RecordRuns,
    concatenate,
    from_arrow,
    gather,
)
from txnlog.storage.batches.records import DATA_SCHEMA, RECORD_SCHEMA
from txnlog.storage.batches.small_batch_form import ROWS_MAX
from txnlog.storage.batches.writer import SNAPPY_BELOW_BYTES, write_batch_file
from txnlog.storage.store.objects import ObjectStore

HEADERS = st.none() | st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2
)
BYTES = st.none() | st.binary(max_size=9)
ROW = st.tuples(st.none() | st.integers(0, 2**60), BYTES, BYTES, HEADERS)
ROWS = st.lists(ROW, min_size=1, max_size=30)
Row = tuple[int | None, bytes | None, bytes | None, Headers | None]


def lists_of(rows: list[Row]) -> RecordLists:
    times, keys, values, headers = (list(column) for column in zip(*rows, strict=True))
    return RecordLists(
        times, keys, values, headers if any(h is not None for h in headers) else None
    )


@given(runs=st.lists(st.tuples(st.integers(0, 50), ROWS), min_size=1, max_size=6))
def test_runs_become_one_batch_with_the_offsets_of_each(
    runs: list[tuple[int, list[Row]]],
) -> None:
    """Between two runs offsets may be missing: a batch that was aborted is not read (R22)."""
    together, offsets, rows = RecordRuns(), [], []
    for gap, run in runs:
        start = (offsets[-1] + 1 if offsets else 0) + gap
        together.add(start, lists_of(run))
        offsets += range(start, start + len(run))
        rows += run
    assert together.num_rows == len(rows)
    assert together.data_bytes == lists_of(rows).data_bytes
    found, batch = together.to_arrow()
    assert found.tolist() == offsets
    assert batch.equals(lists_of(rows).to_arrow())


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 3), ROWS, st.booleans()), min_size=1
    ),
    rows_max=st.integers(1, 60),
)
def test_parts_of_files_come_in_order_and_small_ones_together(
    parts: list[tuple[int, int, list[Row], bool]], rows_max: int
) -> None:
    """A record that moved, or a task that holds all small files at once (R22)."""
    read: list[tuple[int, int, pa.RecordBatch | RecordLists]] = []
    offsets: list[int] = []
    rows: list[Row] = []
    for gap, first_delta, part, is_big in parts:
        base_offset = (offsets[-1] + 1 if offsets else 0) + gap
        deltas = range(first_delta, first_delta + len(part))
        lists = lists_of(part)
        columns = [pa.array(deltas, pa.int64()), *lists.to_arrow().columns]
        big = pa.RecordBatch.from_arrays(columns, schema=DATA_SCHEMA)
        read.append((base_offset, first_delta, big if is_big else lists))
        offsets += [base_offset + delta for delta in deltas]
        rows += part
    found = list(gather(read, rows_max=rows_max, bytes_max=1 << 20))
    assert [offset for some, _ in found for offset in some.tolist()] == offsets
    assert all(len(some) == batch.num_rows < rows_max + 30 for some, batch in found)
    batches = [batch for _, batch in found]
    expected = pa.Table.from_batches([lists_of(rows).to_arrow()])
    assert pa.Table.from_batches(batches).equals(expected)
    if not any(is_big for *_, is_big in parts) and len(rows) < rows_max:
        assert len(found) == 1


@given(rows=ROWS)
def test_lists_become_arrow_and_lists_again(rows: list[Row]) -> None:
    """Nulls of every column, and no headers against none in this row (R66)."""
    lists = lists_of(rows)
    batch = lists.to_arrow()
    assert batch.schema.equals(RECORD_SCHEMA)
    batch.validate(full=True)
    assert from_arrow(batch) == lists
    assert from_arrow(pa.Table.from_batches([batch, batch])) == concatenate([lists, lists])
    if len(rows) > 1:
        assert from_arrow(batch.slice(1)) == lists_of(rows[1:])


@given(rows=ROWS, data=st.data())
def test_taking_rows_of_lists_is_taking_them_of_arrow(rows: list[Row], data: st.DataObject) -> None:
    lists = lists_of(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    assert lists.take(chosen).to_arrow().equals(lists.to_arrow().take(pa.array(chosen)))


@given(rows=ROWS, codec=st.sampled_from([None, "none", "snappy", "lz4", "zstd"]))
def test_files_made_of_lists_and_of_arrow_hold_the_same(rows: list[Row], codec: str | None) -> None:
    """A producer hands over lists, Spark Arrow; compaction and readers must see no difference."""
    store = ObjectStore.from_url("memory://")
    lists = lists_of(rows)
    first = write_batch_file(store, "t/1/same", lists, compression=codec)
    second = write_batch_file(store, "t/2/same", lists.to_arrow(), compression=codec)
    assert store.get("t/1/same") == store.get("t/2/same")
    assert (first.size_bytes, first.num_records) == (second.size_bytes, len(rows))
    read = read_batch_file(store, FileSpan("t/1/same"), columns=RECORD_SCHEMA.names)
    found = pa.Table.from_batches(read)
    assert found.select(RECORD_SCHEMA.names).equals(pa.Table.from_batches([lists.to_arrow()]))


@pytest.mark.parametrize(
    ("rows", "value_bytes", "is_small"),
    [(ROWS_MAX, 10, True), (ROWS_MAX + 1, 10, False), (2, SNAPPY_BELOW_BYTES // 2, False)],
)
def test_only_small_files_are_encoded_by_our_own_code(
    rows: int, value_bytes: int, is_small: bool
) -> None:
    """A loop over many records, or a page of megabytes, is pyarrow's to make."""
    store = ObjectStore.from_url("memory://")
    lists = RecordLists([1] * rows, [None] * rows, [b"v" * value_bytes] * rows)
    for name, records in (("lists", lists), ("arrow", lists.to_arrow())):
        write_batch_file(store, name, records)
        created_by = pq.ParquetFile(pa.BufferReader(store.get(name))).metadata.created_by
        assert created_by.startswith("txnlog") == is_small
