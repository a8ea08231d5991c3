"""Staging of Arrow tables as Parquet files of an enlisted table, in its schema."""

from __future__ import annotations

import pyarrow as pa

from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.storage.store.objects import ObjectStore


def stage(
    store: ObjectStore, rows: pa.Table, definition: Definition, *, cluster_id: str, now_ms: int
) -> tuple[AddFile, ...]:
    """Write rows below the table's staging folder, a file per partition, which no commit names.

    Columns are cast to the table's types, absent nullable ones are null. Raises TableDataError for
    rows that do not fit, TableFeatureError for a table whose rows need an engine: constraints,
    generated columns, defaults.
    """
    raise NotImplementedError
