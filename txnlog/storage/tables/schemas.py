"""Schema actions of our tables, and the one-row files of row tables.

A row table (`__transaction_state-<n>`, `__consumer_offsets-<n>`) keeps one live one-row file per
id; a transition re-adds that file with new partition values, so Delta readers see exactly one row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.process.arrow_arrays import number_array
from txnlog.storage.delta.actions import Action, Add, Metadata
from txnlog.storage.delta.table_protocol import PROTOCOL

CONFIG_PREFIX = "txnlog."
ROW_DATA_COLUMNS: Mapping[str, str] = {"created_at": "timestamp"}


def create_actions(
    *,
    table_id: str,
    data_columns: Mapping[str, object],
    partition_columns: Mapping[str, str],
    config: Mapping[str, str],
    created_ms: int,
) -> list[Action]:
    """Protocol and metaData of a new table; `config` gets the prefix `txnlog.`."""
    return [
        PROTOCOL,
        metadata_action(table_id, data_columns, partition_columns, config, created_ms),
    ]


def metadata_action(
    table_id: str,
    data_columns: Mapping[str, object],
    partition_columns: Mapping[str, str],
    config: Mapping[str, str],
    created_ms: int,
) -> Metadata:
    """A metaData action: Spark's schema JSON, partition columns, our properties."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {**partition_columns, **data_columns}.items()
    ]
    schema = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    return Metadata(
        id=table_id,
        schema_string=schema,
        partition_columns=list(partition_columns),
        configuration={CONFIG_PREFIX + key: value for key, value in config.items()},
        created_time=created_ms,
    )


def config_of(metadata: Metadata) -> dict[str, str]:
    """Our properties of a table, without the prefix."""
    return {
        key[len(CONFIG_PREFIX) :]: value
        for key, value in metadata.configuration.items()
        if key.startswith(CONFIG_PREFIX)
    }


def new_row_file(created_ms: int) -> tuple[str, bytes]:
    """Name and bytes of the one-row Parquet file behind a new row."""
    created_us = number_array(np.array([created_ms * 1000]))
    column = created_us.view(pa.timestamp("us", tz="UTC"))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"created_at": column}), sink)
    return f"row-{uuid.uuid4()}.parquet", sink.getvalue().to_pybytes()


def row_add(path: str, values: Mapping[str, str], *, size_bytes: int, now_ms: int) -> Add:
    """(Re-)add a row's file with these values."""
    return Add(
        path,
        dict(values),
        size_bytes,
        now_ms,
        data_change=True,
        stats='{"numRecords":1}',
    )
