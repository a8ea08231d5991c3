"""Checkpoints as another tool writes them: without a seal, damage shows in decoding only."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def unsealed(checkpoint: bytes) -> bytes:
    """The same rows in a Parquet file of another writer."""
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(checkpoint)), sink)
    return bytes(sink.getvalue())


def garbled(checkpoint: bytes, column: str) -> bytes:
    """The same, with other bytes in the pages of a column such as "add.path"."""
    data = bytearray(unsealed(checkpoint))
    group = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (found,) = [each for each in columns if each.path_in_schema == column]
    start = found.dictionary_page_offset or found.data_page_offset
    for at in range(start, start + found.total_compressed_size):
        data[at] ^= 0x5A
    return bytes(data)
