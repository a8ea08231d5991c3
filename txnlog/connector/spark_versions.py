"""What differs between the Sparks that source and sink run on, 4.0 to 4.3; the rest is as for 4.2.

Features are looked for, never version numbers: platforms bring features to older versions. Each
`except ImportError` says which Spark it is for, and goes when the last one of them does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyspark

try:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader
    from pyspark.sql.datasource import DataSourceStreamWriter as _StreamWriter
except ImportError:
    raise ImportError(f"txnlog needs pyspark 4.0 or newer, found {pyspark.__version__}.") from None
from pyspark.util import local_connect_and_auth

from txnlog.errors import ConfigError
from txnlog.settings.config import warn_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "for_this_spark",
    "warn_of_tcp",
]

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0, which passes record batches to every DataSourceArrowWriter.

    class DataSourceStreamArrowWriter(_StreamWriter, DataSourceArrowWriter):  # type: ignore
        pass


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # Spark 4.0 and 4.1
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        def __init__(self, max_rows: int | None = None) -> None:
            self.max_rows = max_rows

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        pass

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow form of a schema, with instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    # Spark 4.0 and 4.1: instants are in UTC unless the caller wants otherwise.
    return to_arrow_schema(schema)


def warn_of_tcp() -> None:
    """Warn once in a worker without Unix sockets, which Spark 4.0 does not have."""
    over_tcp = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() != "true"
    has_sockets = "conn_info" in signature(local_connect_and_auth).parameters
    if over_tcp and has_sockets and os.environ.get("PYTHON_WORKER_FACTORY_SECRET"):
        warn_once(
            "Spark connects to its Python workers over TCP, where delayed acknowledgements cost "
            "40 ms a hop. Start it with --conf spark.python.unix.domain.socket.enabled=true."
        )


def for_this_spark(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """The reader itself, or for Spark 4.0 and 4.1 one that takes their calls."""
    return reader if HAS_READ_LIMITS else StartKeepingReader(reader)


class StartKeepingReader(DataSourceStreamReader):
    """Gives a reader the start that Spark 4.0 and 4.1 do not pass to latestOffset.

    They tell it by another call: partitions(at, at) before the first batch of a query that
    continues. From then on, what latestOffset returns is the end of the next batch, if it differs
    from its start, and so where the one after it starts (D138).
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._start: Mapping[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        start: dict[str, Any] = self._reader.initialOffset()
        return start

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """The end of all that is available: a limit cannot be honest here.

        Spark tells no Python source its trigger, and ends AvailableNow after one batch.
        """
        if not isinstance(self._reader.getDefaultReadLimit(), ReadAllAvailable):
            warn_once(
                "Options maxOffsetsPerTrigger and minOffsetsPerTrigger are ignored: with Spark "
                f"{pyspark.__version__} a limited Trigger.AvailableNow would end after one batch. "
                "Each batch reads all that is available; maxRecordsPerPartition cuts it into "
                "tasks. Spark 4.2 takes limits."
            )
        start = self._reader.initialOffset() if self._start is None else self._start
        end: dict[str, Any] = self._reader.latestOffset(start, ReadAllAvailable())
        self._start = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end and self._start is not None and self._start != start:
            raise ConfigError(
                "Spark asked for the end of a batch before it said where the query continues: with "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true this Spark "
                f"({pyspark.__version__}) would begin anew. Set it to false.",
                option="trigger",
            )
        if start == end or self._start is None:
            self._start = end
        planned: Sequence[InputPartition] = self._reader.partitions(start, end)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Runs on executors."""
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches
