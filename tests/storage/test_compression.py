"""The codec of a data file, and the dictionary of its keys."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.writer import SAMPLE_KEYS, BatchFileWriter, write_batch_file
from txnlog.storage.store.objects import ObjectStore

TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(("repeats", "codec"), [(True, "ZSTD"), (False, "UNCOMPRESSED")])
def test_batch_file_values_without_repeats_are_not_compressed(
    big: bool, repeats: bool, codec: str
) -> None:
    """Hashes would take four times everything else; what is asked for is done all the same."""
    store = ObjectStore.from_url("memory://")
    digits = [b"%0100x" % random.Random(i).getrandbits(400) for i in range(2_000)]
    values = [b"GET /index.html 200 %d" % i * 4 for i in range(2_000)] if repeats else digits
    columns = [pa.array([0] * 2_000, TIME), pa.nulls(2_000, pa.binary()), pa.array(values)]
    table = pa.table(columns, ["timestamp", "key", "value"]).slice(100)
    for asked, expect in ((None, codec), ("gzip", "GZIP")):
        path = f"{asked}.parquet"
        if big:
            writer = BatchFileWriter(store, path, compression=asked, headers=False)
            writer.write(table)
            writer.close()
        else:
            write_batch_file(store, path, table, compression=asked)
        file = pq.ParquetFile(pa.BufferReader(store.get(path)))
        assert file.metadata.row_group(0).column(3).compression == expect
        found = pa.Table.from_batches(read_batch_file(store, FileSpan(path)))
        assert found.column("value").to_pylist() == values[100:]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("keys", "distinct", "encoding"),
    [
        pytest.param(20_000, 20_000, "PLAIN", id="all differ"),
        pytest.param(20_000, 100, "RLE_DICTIONARY", id="few"),
        pytest.param(SAMPLE_KEYS - 1, SAMPLE_KEYS, "RLE_DICTIONARY", id="too few to judge"),
        pytest.param(20_000, 0, "RLE_DICTIONARY", id="nulls"),
    ],
)
def test_batch_file_has_a_dictionary_of_keys_that_repeat(
    big: bool, keys: int, distinct: int, encoding: str
) -> None:
    """One that outgrows its limit is built for each row group, and given up; readers see none."""
    store = ObjectStore.from_url("memory://")
    named = [b"key-%d" % (i % distinct) if distinct else None for i in range(keys)]
    columns = [pa.array([0] * keys, TIME), pa.array(named, pa.binary()), pa.array([b"v"] * keys)]
    table = pa.table(columns, ["timestamp", "key", "value"])
    if big:
        writer = BatchFileWriter(store, "file.parquet", headers=False)
        writer.write(table)
        writer.write(table)
        writer.close()
    else:
        write_batch_file(store, "file.parquet", table)
    metadata = pq.ParquetFile(pa.BufferReader(store.get("file.parquet"))).metadata
    assert metadata.num_row_groups == 1 + big
    for group in range(metadata.num_row_groups):
        assert encoding in metadata.row_group(group).column(2).encodings
        assert metadata.row_group(group).column(2).has_dictionary_page == (encoding != "PLAIN")
    found = pa.Table.from_batches(read_batch_file(store, FileSpan("file.parquet")))
    assert found.column("key").to_pylist() == named * (1 + big)
