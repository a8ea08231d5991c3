"""Format `txnlog_watched`: our sink, which also reports what its workers' collector has frozen.

Spark pickles these classes by their names, so that workers import this module.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_txnlog import DefaultSource
from spark_sink.sink import stream_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

WATCHED = "txnlog_watched"


class WatchedTxnLog(DefaultSource):
    """Our sink; the file of option `notes` gets a line before each call in a worker."""

    @classmethod
    def name(cls) -> str:
        return WATCHED

    def streamWriter(self, schema: StructType, overwrite: bool) -> _WatchedWriter:
        options = {name: value for name, value in self.options.items() if name != "notes"}
        notes = Path(self.options["notes"])
        _note(notes, "plan")
        return _WatchedWriter(stream_writer(options, schema, overwrite), notes)


class _WatchedWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamArrowWriter, notes: Path) -> None:
        self._writer = writer
        self._notes = notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _note(self._notes, "write")
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _note(self._notes, "commit")
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)


def _note(notes: Path, call: str) -> None:
    with notes.open("a") as file:
        file.write(f"{call} {gc.get_freeze_count()}\n")
