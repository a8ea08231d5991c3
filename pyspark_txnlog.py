"""Registers format `txnlog`: Spark imports every top-level module named `pyspark_*`.

A failing import would hide all Python data sources: only pyspark.sql.datasource is at the top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    import txnlog.connector.spark_versions  # noqa: F401  raises: which pyspark it needs

    raise

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Format `txnlog`: batch and stream, source and sink. No method does I/O."""

    @classmethod
    def name(cls) -> str:
        return "txnlog"

    def schema(self) -> StructType:
        from spark_source.schema import source_schema

        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_source.batch import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_source.stream import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
