"""A few records as Python lists: building Arrow arrays would cost more than everything else.

A Python producer buffers its records as lists, and small files are encoded from lists and decoded
to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.messages import Headers
from txnlog.process.arrow_arrays import binary_array, number_array
from txnlog.storage.batches.records import HEADERS_TYPE, RECORD_SCHEMA

Offsets = npt.NDArray[np.int64]


class RecordLists(NamedTuple):
    """Records in order, a list per column, all of one length; `headers` is None if none."""

    timestamps_us: list[int | None]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.values)

    @property
    def data_bytes(self) -> int:
        """Size of timestamps, keys and values."""
        return 8 * len(self.values) + sum(map(len, filter(None, chain(self.keys, self.values))))

    def slice(self, start: int, end: int | None) -> RecordLists:
        """The records from `start` to `end`, exclusive."""
        times_us, keys, values, headers = self
        end = len(values) if end is None else max(0, end)
        if start == 0 and end >= len(values):
            return self
        return RecordLists(
            times_us[start:end],
            keys[start:end],
            values[start:end],
            None if headers is None else headers[start:end],
        )

    def take(self, rows: list[int]) -> RecordLists:
        """The records at these positions, in that order."""
        times_us, keys, values, headers = self
        return RecordLists(
            [times_us[row] for row in rows],
            [keys[row] for row in rows],
            [values[row] for row in rows],
            None if headers is None else [headers[row] for row in rows],
        )

    def to_arrow(self) -> pa.RecordBatch:
        """One batch with RECORD_SCHEMA."""
        rows = len(self.values)
        if None in self.timestamps_us:
            times = pa.array(self.timestamps_us, pa.int64())
        else:
            times = number_array(np.array(self.timestamps_us, dtype=np.int64))
        headers = pa.nulls(rows, HEADERS_TYPE)
        if self.headers is not None:
            named = [
                None if found is None else [{"key": name, "value": value} for name, value in found]
                for found in self.headers
            ]
            headers = pa.array(named, HEADERS_TYPE)
        return pa.RecordBatch.from_arrays(
            [
                times.view(RECORD_SCHEMA.field("timestamp").type),
                binary_array(self.keys),
                binary_array(self.values),
                headers,
            ],
            schema=RECORD_SCHEMA,
        )


class RecordRuns:
    """Lists of several files, each a run of consecutive offsets, for one Arrow batch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[RecordLists] = []
        self.num_rows = 0
        self.data_bytes = 0

    def add(self, start: int, run: RecordLists) -> None:
        """Add records with consecutive offsets from `start` on."""
        self._starts.append(start)
        self._runs.append(run)
        self.num_rows += run.num_rows
        self.data_bytes += run.data_bytes

    def to_arrow(self) -> tuple[Offsets, pa.RecordBatch]:
        """The offsets, and the records with RECORD_SCHEMA."""
        counts = [run.num_rows for run in self._runs]
        begins = np.cumsum([0, *counts[:-1]])
        offsets = np.repeat(np.array(self._starts) - begins, counts) + np.arange(self.num_rows)
        return offsets, concatenate(self._runs).to_arrow()


def gather(
    read: Iterable[tuple[int, int, pa.RecordBatch | RecordLists]], *, rows_max: int, bytes_max: int
) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The offsets, and the records with the columns that were read; small files are joined.

    `read` are parts of files as `read_records` yields them, in order, each with the base offset of
    its file and the delta of its first record. Lists are joined until they have `rows_max` rows or
    `bytes_max` bytes: building Arrow arrays for each file would take longer than reading it.
    """
    small = RecordRuns()
    for base_offset, first_delta, records in read:
        if isinstance(records, RecordLists):
            small.add(base_offset + first_delta, records)
            if small.num_rows < rows_max and small.data_bytes < bytes_max:
                continue
        if small.num_rows:
            yield small.to_arrow()
            small = RecordRuns()
        if not isinstance(records, RecordLists):
            offsets = records.column("offset_delta").to_numpy() + base_offset
            yield offsets, records.drop_columns(["offset_delta"])
    if small.num_rows:
        yield small.to_arrow()


def from_arrow(records: pa.Table | pa.RecordBatch) -> RecordLists:
    """Lists of the columns of RECORD_SCHEMA, in any order; headers may be missing."""
    headers: list[Headers | None] | None = None
    if "headers" in records.schema.names:
        column = records.column("headers")
        if column.null_count < len(column):
            headers = [
                None if found is None else [(pair["key"], pair["value"]) for pair in found]
                for found in column.to_pylist()
            ]
    times = records.column("timestamp")
    if isinstance(times, pa.ChunkedArray):
        times = times.chunk(0) if times.num_chunks == 1 else times.combine_chunks()
    return RecordLists(
        times.view(pa.int64()).to_pylist(),
        records.column("key").to_pylist(),
        records.column("value").to_pylist(),
        headers,
    )


def concatenate(parts: Sequence[RecordLists]) -> RecordLists:
    """The records of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    headers: list[Headers | None] | None = None
    if any(part.headers is not None for part in parts):
        headers = [h for part in parts for h in part.headers or [None] * part.num_rows]
    return RecordLists(
        [time for part in parts for time in part.timestamps_us],
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        headers,
    )
