"""The names under which Delta tables of others are enlisted in a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from msgspec.structs import replace

from txnlog.errors import ConfigError, UnknownTableError
from txnlog.protocol.decoding import TABLE_NAME, Codec, Int64, JsonObject
from txnlog.protocol.enlisted.parts import staging_folder
from txnlog.protocol.metadata import Staging


class EnlistedTable(JsonObject, frozen=True, kw_only=True):
    """A Delta table that transactions may write to; `table_id` is the id in its metaData.

    `staging`: rows are staged where no VACUUM of other tools looks, or in the table's own folders.
    """

    url: str
    table_id: str
    since_ms: Int64
    staging: Staging = "hidden"

    def staging_folder(self, cluster_id: str) -> str:
        """Where rows are staged, below the table's folder; "": there."""
        return "" if self.staging == "visible" else staging_folder(cluster_id)


ENLISTED_TABLE: Codec[EnlistedTable] = Codec(EnlistedTable)


def check_table_name(name: str) -> str:
    """Check a name, nearly by the rules of topics. Raises ConfigError."""
    if not re.match(TABLE_NAME, name):
        raise ConfigError(
            f"Table name {name[:249]!r} is not valid: 1 to 249 of the characters a-z, A-Z, 0-9, "
            "'.', '_' and '-', and neither '.' nor '-' first.",
            table=name,
        )
    return name


def checked_staging(value: str) -> Staging:
    """Raises ConfigError."""
    for known in get_args(Staging):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"staging is {value[:100]!r}, and must be 'hidden' or 'visible'.")


def prepare_enlist(
    known: Mapping[str, EnlistedTable], name: str, table: EnlistedTable
) -> EnlistedTable | None:
    """What is to be recorded; None if it is. A table has one name. Raises ConfigError."""
    for other, there in sorted(known.items()):
        is_same = (there.url, there.table_id) == (table.url, table.table_id)
        if other == name and is_same:
            if there.staging == table.staging:
                return None
            return replace(there, staging=table.staging)
        if other == name:
            raise ConfigError(
                f"{name!r} is enlisted with another table, {there.url} (id {there.table_id}). "
                f"Choose another name, or first `txnlog tables delist {name}`.",
                table=name,
            )
        if there.url == table.url or there.table_id == table.table_id:
            raise ConfigError(
                f"The table {there.url} (id {there.table_id}) is enlisted as {other!r}. Use that "
                f"name, or first `txnlog tables delist {other}`.",
                table=other,
            )
    return table


def find_enlisted(known: Mapping[str, EnlistedTable], name: str) -> EnlistedTable:
    """Raises UnknownTableError that names what there is."""
    found = known.get(name)
    if found is None:
        there = ", ".join(sorted(known)) or "none"
        raise UnknownTableError(
            f"No table {name!r} is enlisted; there are: {there}. Enlist it with "
            f"`txnlog tables enlist {name} URL`, or correct the name.",
            table=name,
        )
    return found
