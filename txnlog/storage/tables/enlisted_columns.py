"""Columns of Arrow data in the types of an enlisted table, with the names that its files have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from txnlog.process import arrow_compute as pc
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.enlisted.schemas import (
    DECIMAL,
    ArrayType,
    DataType,
    Field,
    MapType,
    StructType,
)

_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class FileField(Struct, frozen=True):
    """A column, or a field of one: `name` is what users call it, `arrow` what files have.

    In files each is nullable: Arrow refuses NOT NULL fields of structs of which some are null. One
    that is read has it the other way round, and `takes_others`: fields that the table has no more
    are left out.
    """

    name: str
    arrow: pa.Field
    nullable: bool
    below: tuple[FileField, ...] = ()
    takes_others: bool = False

    @classmethod
    def to_read(cls, field: Field, mapping: str) -> FileField:
        """Raises ValueError for a type that is unknown here."""
        return _reversed(cls.of(field, mapping))

    @classmethod
    def of(cls, field: Field, mapping: str) -> FileField:
        """Raises ValueError for a type that is unknown here."""
        found = _field(field.name, field.type, field.nullable, mapping)
        number = field.metadata.get("delta.columnMapping.id")
        metadata = None
        if mapping != "none" and number is not None:
            metadata = {"PARQUET:field_id": str(number)}
        arrow = found.arrow.with_name(field.name_under(mapping)).with_metadata(metadata)
        return cls(field.name, arrow, field.nullable, found.below)


def _field(name: str, kind: DataType, nullable: bool, mapping: str) -> FileField:
    below: tuple[FileField, ...] = ()
    arrow: pa.DataType
    match kind:
        case StructType():
            below = tuple(FileField.of(field, mapping) for field in kind.fields)
            arrow = pa.struct([field.arrow for field in below])
        case ArrayType():
            below = (_field("element", kind.element_type, kind.contains_null, mapping),)
            arrow = pa.list_(below[0].arrow)
        case MapType():
            below = (
                _field("key", kind.key_type, False, mapping),
                _field("value", kind.value_type, kind.value_contains_null, mapping),
            )
            arrow = pa.map_(below[0].arrow.with_nullable(False), below[1].arrow)
        case _:
            arrow = _primitive(kind)
    return FileField(name, pa.field(name, arrow), nullable, below)


def _reversed(field: FileField) -> FileField:
    below = tuple(map(_reversed, field.below))
    kind = field.arrow.type
    if pa.types.is_struct(kind):
        kind = pa.struct([each.arrow for each in below])
    elif pa.types.is_map(kind):
        kind = pa.map_(below[0].arrow.with_nullable(False), below[1].arrow)
    elif pa.types.is_list(kind):
        kind = pa.list_(below[0].arrow)
    return FileField(field.arrow.name, pa.field(field.name, kind), True, below, True)


def _primitive(kind: str) -> pa.DataType:
    if match := DECIMAL.match(kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    if kind not in _PRIMITIVES:
        raise ValueError(f"it has a column of type {kind!r}")
    return _PRIMITIVES[kind]


def fit(values: pa.Array | None, field: FileField, length: int) -> pa.Array:
    """The values in the type of a column; None: the rows do not have it.

    Raises ValueError, pa.ArrowException for values that do not fit.
    """
    if values is None:
        values = pa.nulls(length)
    elif pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    fitted = _converted(values, field)
    if fitted.null_count and not field.nullable:
        raise ValueError(f"column {field.name!r} may not be null")
    return fitted


def _converted(values: pa.Array, field: FileField) -> pa.Array:
    wanted = field.arrow.type
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(values.type):
        return _struct(values, field)
    if pa.types.is_map(wanted) and pa.types.is_map(values.type):
        pairs = values.cast(pa.list_(pa.struct([
            pa.field("key", values.type.key_type, False), ("value", values.type.item_type)
        ])))  # fmt: skip
        found = pairs.flatten().flatten()
        keys, items = (fit(v, f, len(v)) for v, f in zip(found, field.below, strict=True))
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items, wanted)
    if pa.types.is_list(wanted) and _is_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
        below = values.flatten()
        elements = fit(below, field.below[0], len(below))
        return pa.ListArray.from_arrays(_offsets(values), elements, wanted)
    is_ambiguous = not field.takes_others and _is_ambiguous(values.type, wanted)
    if pa.types.is_nested(wanted) or is_ambiguous:
        raise ValueError(f"column {field.name!r} is {wanted}, and its values are {values.type}")
    try:
        fitted = values.cast(wanted)
        if not _is_same(values, fitted):
            raise ValueError(f"values of {values.type} would lose data as {wanted}")
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"column {field.name!r}: {error}") from error
    return fitted


def _is_same(values: pa.Array, fitted: pa.Array) -> bool:
    """Whether Arrow's cast has kept what it does not check: numbers as booleans and as `float`,
    times as dates.
    """
    kind = fitted.type
    if pa.types.is_float32(kind):
        return bool(pc.is_inf(fitted).equals(pc.is_inf(values.cast(pa.float64()))))
    is_cut = pa.types.is_primitive(values.type) and (
        pa.types.is_boolean(kind) or pa.types.is_date(kind)
    )
    return not is_cut or bool(fitted.cast(values.type).equals(values))


def _struct(values: pa.StructArray, field: FileField) -> pa.Array:
    given = [each.name for each in values.type]
    known = {each.name for each in field.below}
    unknown = [name for name in given if name not in known or given.count(name) > 1]
    if unknown and not field.takes_others:
        raise ValueError(f"column {field.name!r} has no field {unknown[0]!r}, or it is there twice")
    # Fields of what is null itself may be null.
    there = values.drop_null()
    present = dict(zip(given, there.flatten(), strict=True))
    children = [fit(present.get(each.name), each, len(there)) for each in field.below]
    fields = [each.arrow for each in field.below]
    built = pa.StructArray.from_arrays(children, fields=fields)
    if not values.null_count:
        return built
    valid = _mask(values)
    return built.take(number_array(np.cumsum(valid) - 1, valid))


def _mask(values: pa.Array) -> Any:
    """Which values are not null."""
    return np.from_dlpack(values.is_valid().cast(pa.uint8())).astype(bool)


def _offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets of lists into their flattened values, null for a list that is null."""
    lengths = np.from_dlpack(pc.fill_null(pc.list_value_length(lists), 0))
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return number_array(ends, np.append(_mask(lists), True))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_ambiguous(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast would guess, or round: times with and without a zone, to decimals."""
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return bool((given.tz is None) != (wanted.tz is None))
    return bool(pa.types.is_floating(given) and pa.types.is_decimal(wanted))
