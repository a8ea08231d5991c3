"""Definitions of Delta tables for tests, from a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txnlog.protocol.enlisted.actions import (
    AddFile,
    Definition,
    Protocol,
    TableMetadata,
    TableState,
)

URL = "s3://lake/orders"


def column(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> Any:
    """A column; `physical` is its physical name, other keywords are metadata with _ for a dot."""
    found = {key.replace("_", "."): value for key, value in metadata.items() if key != "physical"}
    if "physical" in metadata:
        found["delta.columnMapping.physicalName"] = metadata["physical"]
    return {"name": name, "type": kind, "nullable": nullable, "metadata": found}


def struct(*columns: Any) -> Any:
    return {"type": "struct", "fields": list(columns)}


def definition(
    *columns: Any,
    features: tuple[str, ...] = (),
    partitions: tuple[str, ...] = (),
    writer: int = 7,
    reader: int = 1,
    table_id: str = "t-1",
    domains: Mapping[str, str] | None = None,
    **properties: str,
) -> Definition:
    """A table; keywords are properties with _ for a dot."""
    metadata = TableMetadata(
        id=table_id,
        schema_string=json.dumps(struct(*(columns or (column("id"),)))),
        partition_columns=partitions,
        configuration={name.replace("_", "."): value for name, value in properties.items()},
    )
    protocol = Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        writer_features=features if writer == 7 else None,
    )
    return Definition(protocol, metadata, domains or {})


def state_of(found: Definition, **rest: Any) -> TableState:
    """A table at version 4."""
    return TableState(URL, 4, found.protocol, found.metadata, dict(found.domains), **rest)


def add(
    path: str = "_txnlog/c/part-1.parquet", *, rows: int = 2, nulls: Any = None, **values: str
) -> AddFile:
    """A staged file; keywords are its partition values."""
    return AddFile(
        path=path,
        partition_values={name: text or None for name, text in values.items()},
        size=100,
        modification_time=1,
        data_change=True,
        stats=json.dumps({"numRecords": rows, "nullCount": nulls or {}}),
    )
