"""The schema of an enlisted table, in Spark's JSON, and values of its partition columns as text."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from txnlog.protocol.decoding import decode
from txnlog.protocol.enlisted.actions import Definition

PHYSICAL_NAME = "delta.columnMapping.physicalName"
GENERATION = "delta.generationExpression"
INVARIANTS = "delta.invariants"
IDENTITY = "delta.identity."
TEXT_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
DEFAULT = "CURRENT_DEFAULT"
DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)\Z")

_FRACTION = re.compile(r"\.\d{1,6}")

DataType: TypeAlias = "str | StructType | ArrayType | MapType"


class Field(msgspec.Struct, frozen=True):
    """A column, or a field of one."""

    name: str
    type: DataType
    nullable: bool
    metadata: dict[str, Any] = {}

    def name_under(self, mapping: str) -> str:
        """Its name in data files and statistics, under a mode of column mapping."""
        return self.name if mapping == "none" else str(self.metadata.get(PHYSICAL_NAME, self.name))

    @property
    def is_computed(self) -> bool:
        """Whether writers compute its values."""
        return GENERATION in self.metadata or any(key.startswith(IDENTITY) for key in self.metadata)


class StructType(msgspec.Struct, frozen=True, tag_field="type", tag="struct"):
    fields: tuple[Field, ...]


class ArrayType(msgspec.Struct, frozen=True, tag_field="type", tag="array", rename="camel"):
    element_type: DataType
    contains_null: bool


class MapType(msgspec.Struct, frozen=True, tag_field="type", tag="map", rename="camel"):
    key_type: DataType
    value_type: DataType
    value_contains_null: bool


_SCHEMA: msgspec.json.Decoder[StructType] = msgspec.json.Decoder(StructType)


def schema_of(definition: Definition) -> StructType:
    """The columns of a table. Raises ValueError, msgspec.MsgspecError for what is no schema."""
    return decode(_SCHEMA, definition.metadata.schema_string)


def fields_below(kind: DataType) -> Iterator[Field]:
    """All columns and fields, at every depth."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield field
                yield from fields_below(field.type)
        case ArrayType():
            yield from fields_below(kind.element_type)
        case MapType():
            yield from fields_below(kind.key_type)
            yield from fields_below(kind.value_type)


def by_name(kind: StructType, mapping: str) -> dict[str, Field]:
    """The fields by their names in data files."""
    return {field.name_under(mapping): field for field in kind.fields}


def partition_fields(definition: Definition) -> dict[str, Field]:
    """The partition columns by their physical names, in the table's order.

    Raises ValueError for one that is no column.
    """
    fields = {field.name: field for field in schema_of(definition).fields}
    names = definition.metadata.partition_columns
    if missing := [name for name in names if name not in fields]:
        raise ValueError(f"partition columns {missing} are not in the schema")
    mapping = definition.column_mapping
    return {fields[name].name_under(mapping): fields[name] for name in names}


def partition_text(value: Any) -> str | None:
    """A value of a partition column as Delta's log has it; null and "" are the same there."""
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            suffix = "" if value.tzinfo is None else "Z"
            at = value if value.tzinfo is None else value.astimezone(timezone.utc)
            separator = " " if value.tzinfo is None else "T"
            text = at.replace(tzinfo=None).isoformat(separator, "microseconds")
            return text + suffix
        case Decimal():
            return format(value, "f")
        case None:
            return None
    return str(value) or None


def partition_value(text: str | None, kind: DataType) -> Any:
    """The value that a text of the log stands for, so that two spellings of it are equal."""
    try:
        return _parsed(text, kind)
    except (LookupError, ValueError, ArithmeticError):
        return text


def _parsed(text: str | None, kind: DataType) -> Any:
    if not text:
        return None
    match kind:
        case "byte" | "short" | "integer" | "long":
            return int(text)
        case "float" | "double" if text.lower() == "nan":
            return "NaN"
        case "float":
            return struct.unpack("f", struct.pack("f", float(text)))
        case "double":
            return float(text)
        case "boolean":
            return {"true": True, "false": False}[text.lower()]
        case "date":
            return date.fromisoformat(text)
        case "timestamp" | "timestamp_ntz":
            # Python 3.10 reads fractions of 3 and 6 digits only.
            whole = _FRACTION.sub(lambda found: found[0].ljust(7, "0"), text)
            at = datetime.fromisoformat(whole.replace("Z", "+00:00"))
            return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        case str() if DECIMAL.match(kind):
            return Decimal(text)
    return text


def named_partition(value: Any, field: Field) -> str | None:
    """`partition_text` of a value that a user has named. Raises ValueError for one of another type:
    it would be that of no partition.
    """
    text = partition_text(value)
    is_time = isinstance(value, datetime)
    # Which text, or which zone, is meant.
    is_guess = {
        "string": is_time or not isinstance(value, (str, int, date, type(None))),
        "timestamp": is_time and value.tzinfo is None,
        "timestamp_ntz": is_time and value.tzinfo is not None,
    }.get(str(field.type), isinstance(value, bytes))
    try:
        if not is_guess:
            _parsed(text, field.type)
            return text
    except (LookupError, ValueError, ArithmeticError):
        pass
    raise ValueError(f"the partition column {field.name!r} is {field.type}, not {value!r:.100}")


def is_in_partition(
    values: Mapping[str, str | None],
    partition: Mapping[str, str | None],
    fields: Mapping[str, Field],
) -> bool:
    """Whether a file of these partition values is in a partition, which may name some columns."""
    return all(
        partition_value(values.get(name), fields[name].type)
        == partition_value(text, fields[name].type)
        for name, text in partition.items()
    )
