"""The stream reader as Spark drives it: latestOffset, partitions, read; offsets go through JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_source.schema import spark_schema
from spark_source.stream import TxnLogStreamReader, open_reader
from txnlog.connector.spark_versions import ReadAllAvailable

ALL = ReadAllAvailable()


def reader_of(topics, **options: str) -> TxnLogStreamReader:
    names = {name.replace("_", "."): value for name, value in options.items()}
    given = {"path": topics.root, "subscribe": "t", **names}
    if given.keys() & {"assign", "subscribePattern"}:
        del given["subscribe"]
    return open_reader(given, spark_schema(include_headers=False))


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as read from Spark's offset log."""
    copy: dict[str, Any] = json.loads(json.dumps(offset))
    return copy


def next_end(reader: TxnLogStreamReader, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    return logged(reader.latestOffset(logged(start), limit))


def values(reader: TxnLogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions(logged(start), logged(end)):
        batches += reader.read(partition)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def positions(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {topic: offset[topic] for topic in offset if topic != "@"}
