"""Staging of Arrow tables as Parquet files of an enlisted table, in its schema."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.errors import TableDataError, TableFeatureError
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.protocol.enlisted.schemas import (
    DEFAULT,
    INVARIANTS,
    TEXT_LENGTH,
    Field,
    StructType,
    fields_below,
    partition_fields,
    partition_text,
    schema_of,
)
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_columns import FileField, fit
from txnlog.storage.tables.enlisted_stats import indexed_columns, stats_of

FILE_BYTES = 256 << 20
"""Arrow bytes that are staged at a time: a file is encoded in memory."""
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def stage(
    store: ObjectStore, rows: pa.Table, definition: Definition, *, folder: str, now_ms: int
) -> tuple[AddFile, ...]:
    """Write rows below a folder of the table ("": its own), a file per partition, which no commit
    names.

    Columns are cast to the table's types, absent nullable ones are null. Raises TableDataError for
    rows that do not fit, TableFeatureError for a table whose rows need an engine: constraints,
    generated columns, defaults of absent columns.
    """
    schema = schema_of(definition)
    _check_without_engine(store.url, definition, schema, rows)
    try:
        fields = [FileField.of(field, definition.column_mapping) for field in schema.fields]
        indexed = indexed_columns(definition)
    except (ValueError, msgspec.MsgspecError) as error:
        raise TableFeatureError(
            f"{store.url}: rows of this table can only be written by an engine such as Spark: "
            f"{error}.",
            url=store.url,
        ) from error
    store.check_folder("_delta_log")
    adds = []
    step = max(1, FILE_BYTES * rows.num_rows // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, step):
        fitted = _fitted(store.url, rows.slice(start, step), fields)
        for values, chunk in _split(store.url, fitted, partition_fields(definition)):
            folders = [_folder(name, value) for name, value in values.items()]
            path, size_bytes = _put(store, "/".join(filter(None, (folder, *folders))), chunk)
            adds.append(
                AddFile(
                    path=quote(path, safe="/=._-"),
                    partition_values=values,
                    size=size_bytes,
                    modification_time=now_ms,
                    data_change=True,
                    stats=stats_of(chunk, indexed),
                )
            )
    return tuple(adds)


def _check_without_engine(
    url: str, definition: Definition, schema: StructType, rows: pa.Table
) -> None:
    """Raise TableFeatureError for what only an engine can evaluate."""
    constraints = [
        name for name in definition.metadata.configuration if name.startswith("delta.constraints.")
    ]
    columns = [
        field.name
        for field in fields_below(schema)
        if field.is_computed or not {INVARIANTS, TEXT_LENGTH}.isdisjoint(field.metadata)
    ]
    # Engines disagree on how to write these.
    partitions = partition_fields(definition).values()
    columns += [field.name for field in partitions if field.type == "binary"]
    columns += [
        field.name
        for field in schema.fields
        if DEFAULT in field.metadata and field.name not in rows.column_names
    ]
    if constraints or columns:
        raise TableFeatureError(
            f"{url}: only an engine such as Spark can write rows of this table, because it "
            f"evaluates {', '.join(map(repr, constraints + columns))}: constraints, generated or "
            "default values, lengths of text, binary partitions. Transactions cannot write to it.",
            url=url,
        )


def _fitted(url: str, rows: pa.Table, fields: list[FileField]) -> pa.Table:
    """The rows in the table's schema, with names and ids of data files."""
    names = rows.column_names
    known = {field.name for field in fields}
    if unknown := sorted({name for name in names if name not in known or names.count(name) > 1}):
        why = f"the table has no column {unknown[0]!r}, or the rows have it twice"
        raise _unfit(url, f"{why}. It has {', '.join(sorted(known))}")
    arrays = []
    for field in fields:
        given = None
        if field.name in names:
            given = rows.column(field.name).combine_chunks()
        try:
            arrays.append(fit(given, field, rows.num_rows))
        except (pa.ArrowException, ValueError) as error:
            raise _unfit(url, str(error)) from error
    return pa.Table.from_arrays(arrays, schema=pa.schema([field.arrow for field in fields]))


def _unfit(url: str, why: str) -> TableDataError:
    return TableDataError(f"{url}: these rows cannot be in the table: {why}.", url=url)


def _split(
    url: str, rows: pa.Table, partitions: Mapping[str, Field]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The values of each partition, and its rows without them."""
    data = rows.drop_columns(list(partitions))
    for places in _groups(rows, list(partitions)):
        values = {}
        for name, field in partitions.items():
            try:
                values[name] = partition_text(rows.column(name)[int(places[0])].as_py())
            except (ValueError, OverflowError) as error:
                raise _unfit(url, f"a value of {field.name!r}: {error}") from error
            if values[name] is None and not field.nullable:
                raise _unfit(url, f"{field.name!r} may not be null, nor an empty text")
        yield values, data.take(number_array(places)) if partitions else data


def _groups(rows: pa.Table, names: list[str]) -> Iterator[np.ndarray]:
    """The places of the rows of each partition, in their order."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        indices = np.from_dlpack(encoded.indices).astype(np.int64)
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    yield from np.split(order, ends)


def _folder(name: str, value: str | None) -> str:
    """A folder of a partition as Hive names it."""
    return f"{quote(name, safe='')}={_NULL_FOLDER if value is None else quote(value, safe='')}"


def _put(store: ObjectStore, folder: str, rows: pa.Table) -> tuple[str, int]:
    """Write a file; its path and size in bytes."""
    path = "/".join(filter(None, (folder, f"part-{os.urandom(16).hex()}.parquet")))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy", store_schema=False)
    data = sink.getvalue().to_pybytes()
    store.make_folder(folder)
    store.put_new(path, data)
    return path, len(data)
