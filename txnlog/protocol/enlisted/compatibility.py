"""Whether files that were staged under one definition of a table fit another one.

Foreign writers may change a table between the decision of a transaction and its publication. Files
are published if they are as right after the change as they would have been before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.protocol.enlisted.features import features_of, unknown_features
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.enlisted.schemas import (
    DECIMAL,
    DEFAULT,
    GENERATION,
    INVARIANTS,
    TEXT_LENGTH,
    ArrayType,
    DataType,
    Field,
    MapType,
    StructType,
    by_name,
    fields_below,
    partition_fields,
    schema_of,
)

_WIDER: Mapping[str, tuple[str, ...]] = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
_INTEGER_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that Delta asks of a decimal to which an integer type is widened."""


def unpublishable(part: Part, now: Definition) -> str | None:
    """As `incompatible`, of a whole part: an append-only table takes no overwrite."""
    if part.mode == "overwrite" and now.metadata.is_on("delta.appendOnly"):
        return "the table is append-only (delta.appendOnly), and this is an overwrite"
    return incompatible(part.definition, now, part.adds)


def renamed(was: Definition, now: Definition) -> str | None:
    """Why rows that were given by the names of `was` would have other columns or values now.

    Asked before the decision, as a process may stage by what it read long ago.
    """
    if was.metadata == now.metadata:
        return None
    before, after = _names(was), _names(now)
    changed = before - after | {each for each in after - before if each[2]}
    names = sorted(name for name, _, _ in changed)
    return f"column {names[0]!r} was dropped or renamed, or has a new default" if names else None


def _names(definition: Definition) -> set[tuple[str, str, str]]:
    """Of each column: its name, that in data files, its default."""
    mapping = definition.column_mapping
    return {
        (field.name, field.name_under(mapping), str(field.metadata.get(DEFAULT, "")))
        for field in fields_below(schema_of(definition))
    }


def incompatible(was: Definition, now: Definition, adds: Sequence[AddFile]) -> str | None:
    """Why `adds`, staged under `was`, may not be added under `now`; None if they may.

    Both have the same metaData.id: with another one the table was dropped and made again.
    """
    if unknown := unknown_features(now):
        return f"the table needs {', '.join(map(repr, unknown))}, which txnlog does not know"
    if was == now:
        return None
    before, after = was.column_mapping, now.column_mapping
    if before != after and (after == "id" or before != "none"):
        return f"its column mapping changed from {before!r} to {after!r}"
    if set(partition_fields(was)) != set(partition_fields(now)):
        return "it has other partition columns"
    difference = _Comparison(was, now, adds).columns(schema_of(was), schema_of(now), ())
    return difference or _new_rule(was, now)


class _Comparison:
    """Column by column, by physical name: the first difference that matters, as a sentence."""

    def __init__(self, was: Definition, now: Definition, adds: Sequence[AddFile]) -> None:
        self._was, self._now = was.column_mapping, now.column_mapping
        self._adds = adds
        self._widens = any(name.startswith("typeWidening") for name in features_of(now.protocol))

    def columns(self, was: StructType, now: StructType, path: tuple[str, ...]) -> str | None:
        """Of the columns, or of the fields of the column at `path`."""
        before, after = by_name(was, self._was), by_name(now, self._now)
        gone = before.keys() - after.keys()
        if gone and self._now == "none":
            return _of((*path, min(gone)), "is gone, without column mapping")
        for name, field in after.items():
            old, here = before.get(name), (*path, name)
            why = self._added(field, here) if old is None else self._kept(old, field, here)
            if why:
                return why
        return None

    def _added(self, field: Field, path: tuple[str, ...]) -> str | None:
        if field.is_computed:
            return _of(path, "is new, and writers compute it")
        return None if field.nullable else _of(path, "is new, and may not be null")

    def _kept(self, was: Field, now: Field, path: tuple[str, ...]) -> str | None:
        if was.nullable and not now.nullable and not all(_has_no_null(a, path) for a in self._adds):
            return _of(path, "may not be null any more")
        return self._type(was.type, now.type, path)

    def _type(self, was: DataType, now: DataType, path: tuple[str, ...]) -> str | None:
        match was, now:
            case StructType(), StructType():
                return self.columns(was, now, path)
            case ArrayType(), ArrayType():
                is_stricter = was.contains_null and not now.contains_null
                parts = [("element", was.element_type, now.element_type)]
            case MapType(), MapType():
                is_stricter = was.value_contains_null and not now.value_contains_null
                parts = [
                    ("key", was.key_type, now.key_type),
                    ("value", was.value_type, now.value_type),
                ]
            case str(), str() if was == now or (self._widens and _is_wider(was, now)):
                return None
            case _:
                return _of(path, "has another type")
        if is_stricter:
            return _of(path, "may not hold nulls any more")
        found = (self._type(old, new, (*path, name)) for name, old, new in parts)
        return next(filter(None, found), None)


def _of(path: tuple[str, ...], what: str) -> str:
    return f"column {'.'.join(path)!r} {what}"


def _is_wider(was: str, now: str) -> bool:
    """Whether Delta's type widening reads values of `was` as `now`."""
    wide = DECIMAL.match(now)
    if wide is None:
        return now in _WIDER.get(was, ())
    narrow = DECIMAL.match(was)
    scale = int(narrow[2]) if narrow else 0
    digits = int(narrow[1]) - scale if narrow else _INTEGER_DIGITS.get(was, 99)
    return int(wide[2]) >= scale and int(wide[1]) - int(wide[2]) >= digits


def _has_no_null(add: AddFile, path: tuple[str, ...]) -> bool:
    """Whether a file certainly has no null in a column."""
    if path[0] in add.partition_values:
        return bool(add.partition_values[path[0]])
    found: Any = msgspec.json.decode(add.stats).get("nullCount")
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found == 0 and isinstance(found, int)


def _new_rule(was: Definition, now: Definition) -> str | None:
    """A rule with which the rows of the files were not checked."""
    before = _rules_of(was)
    for (kind, name), rule in _rules_of(now).items():
        if before.get((kind, name)) != rule:
            return f"{name!r} has a new rule: {rule[:200]}"
    return None


def _rules_of(definition: Definition) -> dict[tuple[str, str], str]:
    """What each row must satisfy: (kind, name of a constraint or path of a column) -> rule."""
    found: dict[tuple[str, str], str] = {
        ("CHECK", name): text or ""
        for name, text in definition.metadata.configuration.items()
        if name.startswith("delta.constraints.")
    }

    def collect(kind: DataType, path: tuple[str, ...]) -> None:
        match kind:
            case StructType():
                for name, field in by_name(kind, definition.column_mapping).items():
                    here = ".".join((*path, name))
                    for rule in (INVARIANTS, GENERATION, TEXT_LENGTH):
                        if rule in field.metadata:
                            found[rule, here] = str(field.metadata[rule])
                    collect(field.type, (*path, name))
            case ArrayType():
                collect(kind.element_type, (*path, "element"))
            case MapType():
                collect(kind.key_type, (*path, "key"))
                collect(kind.value_type, (*path, "value"))

    collect(schema_of(definition), ())
    return found
