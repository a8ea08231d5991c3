"""The tables of a moment as columns of Arrow, hence of pandas.

Times are in milliseconds, UTC; a name that ends in `_ms`, `_bytes` or `_per_s` says its unit.
What is unknown is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

_TIME: Final = pa.timestamp("ms", tz="UTC")
_NAME, _INT, _PARTITION = pa.string(), pa.int64(), pa.int32()
MOMENT_TABLES: Final[Mapping[str, pa.Schema]] = {
    "partitions": pa.schema(
        {
            "topic": _NAME,
            "partition": _PARTITION,
            "log_start_offset": _INT,
            "last_stable_offset": _INT,
            "high_watermark": _INT,
            "num_files": _INT,
            "num_records": _INT,
            "size_bytes": _INT,
            "last_timestamp": _TIME,
        }
    ),
    "rates": pa.schema({"topic": _NAME, "at": _TIME, "records_per_s": pa.float64()}),
    "positions": pa.schema(
        {
            "group_id": _NAME,
            "topic": _NAME,
            "partition": _PARTITION,
            "offset": _INT,
            "end_offset": _INT,
            "lag_records": _INT,
            "lag_ms": _INT,
            "held_records": _INT,
        }
    ),
    "lags": pa.schema({"group_id": _NAME, "at": _TIME, "lag_records": pa.float64()}),
    "transactions": pa.schema(
        {
            "transactional_id": _NAME,
            "title": _NAME,
            "owner": _NAME,
            "producer_id": _INT,
            "epoch": _INT,
            "phase": _NAME,
            "since": _TIME,
            "until": _TIME,
        }
    ),
    "events": pa.schema({"transactional_id": _NAME, "at": _TIME, "kind": _NAME, "text": _NAME}),
    "batches": pa.schema(
        {
            "query_id": _NAME,
            "title": _NAME,
            "batch_id": _INT,
            "at": _TIME,
            "producer_id": _INT,
            "epoch": _INT,
            "records": _INT,
            "files": _INT,
        }
    ),
    "phases": pa.schema(
        {"query_id": _NAME, "batch_id": _INT, "phase": _NAME, "duration_ms": pa.float64()}
    ),
}
"""Of `Moment.to_arrow`."""
WRITTEN: Final = pa.schema(
    {
        "topic": _NAME,
        "partition": _PARTITION,
        "first_offset": _INT,
        "last_offset": _INT,
        "num_records": _INT,
        "files": pa.list_(_NAME),
    }
)


def as_table(rows: Iterable[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Rows in the order of the columns; -1 is unknown."""
    columns: list[list[Any]] = [[] for _ in schema]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(None if value == -1 else value)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
