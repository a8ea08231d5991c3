"""Format `txnlog_timed`: txnlog's source and sink, whose work for each micro-batch is timed.

Spark pickles these classes by name, so workers import this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from pyspark_txnlog import DefaultSource
from spark_sink.sink import stream_writer
from spark_source.settings import SourceSettings, source_settings
from spark_source.stream import TxnLogStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

TIMED = "txnlog_timed"
STEPS = ("latestOffset", "partitions", "read", "write", "plan of the writer", "commit")
"""What Spark calls for a micro-batch, in this order."""


class _Steps:
    """Appends the ms of each step to a file; several processes write it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    @contextmanager
    def timed(self, step: str) -> Iterator[list[float]]:
        """The caller may add waiting times, in seconds, which do not count."""
        waits_s: list[float] = []
        began_s = time.perf_counter()
        yield waits_s
        took_ms = (time.perf_counter() - began_s - sum(waits_s)) * 1000
        with self._path.open("a") as file:
            file.write(f"{step}\t{took_ms}\n")


def steps_ms(path: Path) -> dict[str, list[float]]:
    """Step -> the ms of each micro-batch."""
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    for line in path.read_text().splitlines():
        step, took_ms = line.split("\t")
        found[step].append(float(took_ms))
    return found


class TimedTxnLog(DefaultSource):
    """Has one option more: `timings`, a file."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name != "timings"})
        self._steps = _Steps(options["timings"])

    @classmethod
    def name(cls) -> str:
        return TIMED

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _TimedReader(source_settings(self.options, "readStream"), self._steps)

    def streamWriter(self, schema: StructType, overwrite: bool) -> _TimedWriter:
        with self._steps.timed("plan of the writer"):
            writer = stream_writer(self.options, schema, overwrite)
        return _TimedWriter(writer, self._steps)


class _TimedReader(TxnLogStreamReader):
    """A task's `read` is timed up to its first batch; the others are none of 100 records."""

    def __init__(self, settings: SourceSettings, steps: _Steps) -> None:
        super().__init__(settings)
        self._steps = steps

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self._steps.timed("latestOffset"):
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with self._steps.timed("partitions"):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self._steps.timed("read"):
            batches = super().read(partition)
            first = list(islice(batches, 1))
        yield from chain(first, batches)


class _TimedWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, steps: _Steps) -> None:
        self._writer = writer
        self._steps = steps

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._steps.timed("write") as waits_s:
            return self._writer.write(_waited(iterator, waits_s))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self._steps.timed("commit"):
            self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)


def _waited(iterator: Iterator[pa.RecordBatch], waits_s: list[float]) -> Iterator[pa.RecordBatch]:
    while True:
        began_s = time.perf_counter()
        batch = next(iterator, None)
        waits_s.append(time.perf_counter() - began_s)
        if batch is None:
            return
        yield batch
