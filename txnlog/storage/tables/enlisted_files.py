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
from txnlog.protocol.enlisted.parts import staging_folder
from txnlog.protocol.enlisted.schemas import (
    DEFAULT,
    GENERATION,
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
"""Arrow bytes of one file: a file is encoded in memory."""
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def stage(
    store: ObjectStore, rows: pa.Table, definition: Definition, *, cluster_id: str, now_ms: int
) -> tuple[AddFile, ...]:
    """Write rows below the table's staging folder, a file per partition, which no commit names.

    Columns are cast to the table's types, absent nullable ones are null. Raises TableDataError for
    rows that do not fit, TableFeatureError for a table whose rows need an engine: constraints,
    generated columns, defaults of absent columns.
    """
    schema = schema_of(definition)
    _check_without_engine(store.url, definition, schema, rows)
    fitted = _fitted(store.url, rows, schema, definition.column_mapping)
    partitions = partition_fields(definition)
    try:
        indexed = indexed_columns(definition)
    except (ValueError, msgspec.MsgspecError) as error:
        raise TableFeatureError(
            f"{store.url}: which columns have statistics cannot be told: {error}.", url=store.url
        ) from error
    store.check_folder("_delta_log")
    adds = []
    for values, chunk in _split(store.url, fitted, partitions):
        folder = "/".join(
            (staging_folder(cluster_id), *(_folder(*pair) for pair in values.items()))
        )
        path = f"{folder}/part-{os.urandom(16).hex()}.parquet"
        data = _encode(chunk)
        store.make_folder(folder)
        store.put_new(path, data)
        adds.append(
            AddFile(
                path=quote(path, safe="/=._-"),
                partition_values=values,
                size=data.size,
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
        if field.is_computed
        or field.type == "variant"
        or not {INVARIANTS, GENERATION, TEXT_LENGTH}.isdisjoint(field.metadata)
    ]
    columns += [
        field.name
        for field in schema.fields
        if DEFAULT in field.metadata and field.name not in rows.column_names
    ]
    if constraints or columns:
        raise TableFeatureError(
            f"{url}: only an engine such as Spark can write rows of this table, because it "
            f"evaluates {', '.join(map(repr, constraints + columns))}: constraints, generated or "
            "default values, lengths of text, or variants. Append from Spark.",
            url=url,
        )


def _fitted(url: str, rows: pa.Table, schema: StructType, mapping: str) -> pa.Table:
    """The rows in the table's schema, with names and ids of data files."""
    names = rows.column_names
    known = {field.name for field in schema.fields}
    if unknown := sorted({name for name in names if name not in known or names.count(name) > 1}):
        raise _unfit(
            url, f"the table has no column {unknown[0]!r}, or the rows have it twice. It has "
            f"{', '.join(sorted(known))}",
        )  # fmt: skip
    arrays, fields = [], []
    for field in schema.fields:
        target = FileField.of(field, mapping)
        given = rows.column(field.name).combine_chunks() if field.name in names else None
        if isinstance(given, pa.ChunkedArray):
            given = pa.concat_arrays(given.chunks) if given.num_chunks else None
        try:
            arrays.append(fit(given, target, rows.num_rows))
        except (pa.ArrowException, ValueError) as error:
            raise _unfit(url, str(error)) from error
        fields.append(target.arrow)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _unfit(url: str, why: str) -> TableDataError:
    return TableDataError(f"{url}: these rows cannot be in the table: {why}.", url=url)


def _split(
    url: str, rows: pa.Table, partitions: Mapping[str, Field]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Each partition's values, and its rows without them; several times if there are many."""
    data = rows.drop_columns(list(partitions))
    for places in _groups(rows, list(partitions)):
        first = {name: rows.column(name)[int(places[0])].as_py() for name in partitions}
        values = {name: partition_text(value) for name, value in first.items()}
        for name, field in partitions.items():
            if values[name] is None and not field.nullable:
                raise _unfit(url, f"{field.name!r} may not be null, nor an empty text")
        chunk = data if len(places) == rows.num_rows else data.take(number_array(places))
        step = max(1, FILE_BYTES * chunk.num_rows // max(chunk.nbytes, 1))
        for start in range(0, chunk.num_rows, step):
            yield values, chunk.slice(start, step)


def _groups(rows: pa.Table, names: list[str]) -> Iterator[np.ndarray]:
    """The places of the rows of each partition, in their order."""
    if not rows.num_rows:
        return
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


def _encode(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy", store_schema=False)
    return sink.getvalue()
