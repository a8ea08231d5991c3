"""Filters of reads: checked before a file is opened, and used to leave out files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from txnlog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow.compute as pc

T = TypeVar("T")


def check_columns(columns: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """The names of the columns to read, all by default. Raises ConfigError for another one."""
    names = list(known) if columns is None else list(columns)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"There is no column {unknown[0]!r}; there are: {', '.join(known)}.",
            option="columns",
        )
    if columns is not None and not names:
        raise ConfigError("columns is empty: give at least one, or None for all.", option="columns")
    return names


def check_filter(filter: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """The columns that a filter uses.

    Raises ConfigError for one that does not fit the columns, TypeError for what is none.
    """
    if filter is None:
        return []
    from pyarrow.compute import Expression

    if not isinstance(filter, Expression):
        raise TypeError(f"filter must be an Expression of pyarrow.compute, not {filter!r:.80}.")
    if "FieldPath(" in str(filter):
        # Its number would be another column's in what is read.
        raise ConfigError(
            "The filter has a column by its number: give its name, as in pyarrow.compute.field"
            f"({schema.names[0]!r}).",
            option="filter",
        )
    if error := _misfit(filter, schema):
        raise ConfigError(
            f"The filter does not fit the columns: {error}", option="filter"
        ) from error
    return [name for at, name in enumerate(schema.names) if _misfit(filter, schema.remove(at))]


def _misfit(filter: pc.Expression, schema: pa.Schema) -> pa.ArrowException | None:
    # Some types are compared only where there is a row.
    row = [pa.nulls(1, kind) for kind in schema.types]
    try:
        pa.table(row, schema=schema).filter(filter)
    except pa.ArrowException as error:
        return error
    return None


def matching(
    items: Iterable[T],
    schema: pa.Schema,
    filter: pc.Expression | None,
    bounds: Callable[[T], Any],
) -> list[T]:
    """Without those whose bounds, an expression that holds for each row, rule out every row.

    Arrow decides it, and opens no file.
    """
    known = list(items)
    if filter is None:
        return known
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    file_format, nowhere = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = [
        file_format.make_fragment(str(number), nowhere, partition_expression=bounds(item))
        for number, item in enumerate(known)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, file_format, nowhere)
    return [known[int(fragment.path)] for fragment in dataset.get_fragments(filter)]
