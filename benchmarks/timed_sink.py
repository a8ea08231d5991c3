"""Format `txnlog_timed`: txnlog's sink with a timed commit.

Spark pickles these classes by name, so workers import this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_txnlog import DefaultSource
from spark_sink.sink import stream_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TIMED = "txnlog_timed"


class TimedTxnLog(DefaultSource):
    """txnlog's sink; appends each commit's duration in ms to the file of option `timings`."""

    @classmethod
    def name(cls) -> str:
        return TIMED

    def streamWriter(self, schema: StructType, overwrite: bool) -> _TimedWriter:
        options = {name: value for name, value in self.options.items() if name != "timings"}
        writer = stream_writer(options, schema, overwrite)
        return _TimedWriter(writer, Path(self.options["timings"]))


class _TimedWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, timings: Path) -> None:
        self._writer = writer
        self._timings = timings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        started = time.perf_counter()
        self._writer.commit(messages, batchId)
        took_ms = (time.perf_counter() - started) * 1000
        with self._timings.open("a") as file:
            file.write(f"{took_ms}\n")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)
