"""Format `do_nothing`: the cost of Spark's Python interface itself.

Spark pickles these classes by name, so workers import this module; it imports nothing of txnlog,
since that would add to the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
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
            columns=to_arrow_schema(schema, timezone="UTC"),
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> _NothingWriter:
        return _NothingWriter()


class _NothingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, *, batches: int, tasks: int, rows: int, columns: pa.Schema) -> None:
        self._batches = batches
        self._tasks = tasks
        self._rows = rows
        self._columns = columns

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
        samples = {"key": b"key-12345", "value": b"v" * 100, "topic": "topic"}
        left = self._rows // self._tasks
        while left:
            rows = min(left, BATCH_ROWS)
            arrays = [
                pa.repeat(pa.scalar(samples.get(column.name, 0), column.type), rows)
                for column in self._columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._columns)
            left -= rows


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
