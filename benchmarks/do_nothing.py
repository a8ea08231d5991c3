"""Format `do_nothing`: what Spark's Python interface itself costs.

Spark pickles these classes by their names, so that workers import this module; it imports nothing
of txnlog, or a worker that does nothing would pay for that, too.
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
# Those of our source, which are those of Spark's Kafka source.
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


class DoNothing(DataSource):
    """A source of `batches` micro-batches of `rows` equal rows, and a sink that drops its rows."""

    @classmethod
    def name(cls) -> str:
        return NOTHING

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        columns = to_arrow_schema(schema, timezone="UTC")
        return _NothingReader(int(self.options["batches"]), int(self.options["rows"]), columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> _NothingWriter:
        return _NothingWriter()


class _NothingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Each micro-batch is one task and one Arrow batch."""

    def __init__(self, batches: int, rows: int, columns: pa.Schema) -> None:
        self._batches = batches
        self._rows = rows
        self._columns = columns

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is fixed anyway."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(None)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        samples = {pa.binary(): b"v" * 100, pa.string(): "topic"}
        arrays = [
            pa.array([samples.get(column.type, 0)] * self._rows, column.type)
            for column in self._columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._columns)


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
