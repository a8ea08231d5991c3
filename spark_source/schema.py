"""The source's schema, that of Spark's Kafka connector. Its Arrow form is MESSAGE_SCHEMA."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_source.settings import source_settings
from txnlog.connector.causes import reports_causes
from txnlog.errors import ConfigError
from txnlog.settings.table import Scope

SPARK_COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SPARK_COLUMNS_WITH_HEADERS = StructType(
    [*SPARK_COLUMNS.fields, StructField("headers", ArrayType(HEADER))]
)


@reports_causes
def source_schema(options: Mapping[str, str]) -> StructType:
    """The schema for the options of a batch or a stream (Spark does not say which here).

    Raises: ConfigError if the options are valid for neither.
    """
    only_batch = any(name.lower().startswith("ending") for name in options)
    first: tuple[Scope, Scope] = ("read", "readStream")
    operation, other = first if only_batch else first[::-1]
    try:
        settings = source_settings(options, operation)
    except ConfigError as error:
        try:
            settings = source_settings(options, other)
        except ConfigError:
            raise error from None
    return spark_schema(include_headers=settings.include_headers)


def spark_schema(*, include_headers: bool) -> StructType:
    """Column names and Spark types, all nullable."""
    return SPARK_COLUMNS_WITH_HEADERS if include_headers else SPARK_COLUMNS


def check_schema(given: StructType, *, include_headers: bool) -> None:
    """Raise ConfigError if the schema set with .schema(...) is not the source's.

    The error shows both.
    """
    ours = spark_schema(include_headers=include_headers)
    if _shape(given) == _shape(ours):
        return
    raise ConfigError(
        f"The schema of format txnlog is fixed: {ours.simpleString()}. Given was "
        f"{given.simpleString()}. Remove .schema(...), and select or cast columns after load()"
        f"{'' if include_headers else '; option includeHeaders=true adds headers'}."
    )


def _shape(schema: StructType) -> list[tuple[str, DataType, bool]]:
    return [(field.name, field.dataType, field.nullable) for field in schema.fields]
