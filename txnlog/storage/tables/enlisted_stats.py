"""Statistics of a staged file, by which readers of its table skip files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from txnlog.process import arrow_compute as pc
from txnlog.protocol.enlisted.actions import Definition
from txnlog.protocol.enlisted.schemas import StructType, by_name, schema_of

CLUSTERING = "delta.clustering"
_COUNT, _COUNT_DEFAULT = "delta.dataSkippingNumIndexedCols", "32"
_NAMES = "delta.dataSkippingStatsColumns"
_TEXT_MAX = 32
_HIGHEST = "\U0010ffff"
_COLUMN = re.compile(r"(?:`(?:[^`]|``)*`|[^,`])+")
_NAME = re.compile(r"`(?:[^`]|``)*`|[^.`]+")

Path = tuple[str, ...]


def indexed_columns(definition: Definition) -> frozenset[Path]:
    """The columns that have statistics in the table, by physical paths."""
    schema, mapping = schema_of(definition), definition.column_mapping
    partitions = set(definition.metadata.partition_columns)
    leaves = [
        (logical, physical)
        for logical, physical in _leaves(schema, mapping, (), ())
        if logical[0] not in partitions
    ]
    named = definition.metadata.get(_NAMES)
    if named:
        wanted = [_path(text) for text in _COLUMN.findall(named)]
        chosen = {p for leaf, p in leaves if any(leaf[: len(w)] == w for w in wanted)}
    else:
        count = int(definition.metadata.get(_COUNT, _COUNT_DEFAULT))
        chosen = {p for _, p in leaves[: len(leaves) if count < 0 else count]}
    clustering = definition.domains.get(CLUSTERING)
    if clustering is not None:
        chosen |= {tuple(path) for path in _CLUSTERING.decode(clustering).clustering_columns}
    return frozenset(chosen)


class _Clustering(msgspec.Struct, rename="camel"):
    clustering_columns: tuple[tuple[str, ...], ...] = ()


_CLUSTERING = msgspec.json.Decoder(_Clustering)


def _path(text: str) -> Path:
    """The names in a column's path as a user writes it, some in backquotes."""
    names = [name.strip() for name in _NAME.findall(text.strip())]
    return tuple(name[1:-1].replace("``", "`") if name.startswith("`") else name for name in names)


def _leaves(
    kind: StructType, mapping: str, logical: Path, physical: Path
) -> Iterator[tuple[Path, Path]]:
    for name, field in by_name(kind, mapping).items():
        paths = (*logical, field.name), (*physical, name)
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, mapping, *paths)
        else:
            yield paths


def stats_of(rows: pa.Table, indexed: frozenset[Path]) -> str:
    """Number of rows; of the indexed columns number of nulls, least and greatest value."""
    found: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}

    def note(values: pa.ChunkedArray | pa.Array, path: Path) -> None:
        if pa.types.is_struct(values.type):
            for number, field in enumerate(values.type):
                note(pc.struct_field(values, [number]), (*path, field.name))
        elif path in indexed:
            _put(found["nullCount"], path, values.null_count)
            low, high = _bounds(values)
            if low is not None:
                _put(found["minValues"], path, low)
                _put(found["maxValues"], path, high)

    for name in rows.column_names:
        note(rows.column(name), (name,))
    return msgspec.json.encode({"numRecords": rows.num_rows, **found}).decode()


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bounds(values: pa.ChunkedArray | pa.Array) -> tuple[Any, Any]:
    """The least and greatest value as JSON, or (None, None) where they are not given."""
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
        return None, None
    # NaN is the greatest value for Spark, and has no JSON.
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        return None, None
    bounds = pc.min_max(values)
    try:
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
    except (ValueError, OverflowError):
        # A date or a time that Python does not have.
        return None, None
    if low is None or (isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high))):
        return None, None
    if isinstance(low, float):
        # Some readers order -0.0 before 0.0.
        low, high = low or -0.0, high or 0.0
    return _json(low), _json(high) if not isinstance(high, str) else _cut(high)


def _json(value: Any) -> Any:
    match value:
        case str():
            return value[:_TEXT_MAX]
        case datetime():
            text = value.replace(tzinfo=None).isoformat("T", "microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return msgspec.Raw(format(value, "f").encode())
    return value


def _cut(text: str) -> str:
    """The text, or a short one that is greater."""
    is_whole = len(text) <= _TEXT_MAX or text[_TEXT_MAX] == _HIGHEST
    return text if is_whole else text[:_TEXT_MAX] + _HIGHEST
