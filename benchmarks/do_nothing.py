"""Format `do_nothing`: the cost of Spark's Python interface itself, and so a limit.

It has all that makes txnlog's source and sink fast, each in its cheapest form, so that nothing of
ours can be faster: its workers keep freed memory and show nothing to the garbage collection that
Spark calls after each task, plan and commit (txnlog only collects what is new, D50); its batches
are made once per process, and nothing imports pandas; what is pickled for a task are three numbers.
A second thread (D120) would have nothing to do.

Spark pickles these classes by name, so workers import this module; it imports nothing of txnlog,
since that would add to the cost.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOTHING = "do_nothing"
# The rows in an Arrow batch of txnlog's source.
BATCH_ROWS = 32_768
# Those of txnlog's source, which are those of Spark's Kafka source.
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
SAMPLE = {"key": b"key-12345", "value": b"v" * 100, "topic": b"topic"}
# As much as txnlog's workers keep (txnlog/connector/worker_memory.py).
BLOCK_BYTES = 31 << 20


@cache
def _batch(rows: int) -> pa.RecordBatch:
    """A batch of equal rows."""
    return pa.RecordBatch.from_arrays([_column(field, rows) for field in SCHEMA], schema=SCHEMA)


def _column(field: pa.Field, rows: int) -> pa.Array:
    """Without pa.scalar and pa.array, which would import pandas into each worker."""
    value = SAMPLE.get(field.name)
    if value is None:
        data = [pa.py_buffer(bytes(field.type.bit_width // 8 * rows))]
    else:
        ends = np.arange(rows + 1, dtype=np.int32) * len(value)
        data = [pa.py_buffer(ends), pa.py_buffer(value * rows)]
    return pa.Array.from_buffers(field.type, rows, [None, *data])


@cache
def _keep_freed_memory() -> None:
    bytes(BLOCK_BYTES)


class DoNothing(DataSource):
    """A source of `batches` micro-batches of `rows` equal rows, split among `tasks` tasks (default
    1), and a sink that drops its rows.
    """

    @classmethod
    def name(cls) -> str:
        return NOTHING

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _NothingReader(
            batches=int(self.options["batches"]),
            tasks=int(self.options.get("tasks", 1)),
            rows=int(self.options["rows"]),
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> _NothingWriter:
        gc.freeze()
        return _NothingWriter()


class _NothingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, *, batches: int, tasks: int, rows: int) -> None:
        self._batches = batches
        self._tasks = tasks
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to do: the end is fixed."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _keep_freed_memory()
        left = self._rows // self._tasks
        while left:
            rows = min(left, BATCH_ROWS)
            yield _batch(rows)
            left -= rows
        gc.freeze()


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _keep_freed_memory()
        for _ in iterator:
            pass
        gc.freeze()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        gc.freeze()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
