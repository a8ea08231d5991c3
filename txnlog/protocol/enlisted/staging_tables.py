"""Staging tables: an engine writes the files of a part as those of a Delta table of its own.

It lies below the enlisted table, whose definition it has, so the engine casts, computes and checks
rows as it would there. Its files become those of the part where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from txnlog.protocol.enlisted.actions import (
    AddFile,
    Definition,
    DomainMetadata,
    Removed,
    decode_lines,
)

_CLUSTERING = "delta.clustering"
_IN_COMMIT_TIMESTAMP = ("delta.enableInCommitTimestamps", "delta.inCommitTimestamp")
"""They concern commits, not files, and ask for more of the first commit."""


def first_commit(definition: Definition, table_id: str) -> bytes:
    """Version 0 of an empty staging table."""
    metadata = definition.metadata
    properties = {
        name: value
        for name, value in metadata.configuration.items()
        if not name.startswith(_IN_COMMIT_TIMESTAMP)
    }
    lines: list[object] = [
        {"protocol": definition.protocol},
        {
            "metaData": {
                "id": table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": metadata.schema_string,
                "partitionColumns": metadata.partition_columns,
                "configuration": properties,
            }
        },
    ]
    if (clustering := definition.domains.get(_CLUSTERING)) is not None:
        action = DomainMetadata(domain=_CLUSTERING, configuration=clustering)
        lines.append({"domainMetadata": action})
    return msgspec.json.Encoder().encode_lines(lines)


class _Info(msgspec.Struct, rename="camel"):
    operation: str = ""
    operation_parameters: dict[str, Any] = {}

    @property
    def mode(self) -> Any:
        return self.operation_parameters.get("mode")


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _Info | None = None
    protocol: Any = None
    meta_data: Any = None
    add: AddFile | None = None
    remove: Removed | None = None


_LINES = msgspec.json.Decoder(_Line)


def adopted(commits: Sequence[bytes], folder: str) -> tuple[AddFile, ...]:
    """The files of a staging table after its later commits, as those of the enlisted table.

    `folder` is the staging table's, below the enlisted one. Row ids are given out at publication.
    Raises ValueError for commits that did anything else than append.
    """
    live: dict[str, AddFile] = {}
    for commit in commits:
        try:
            lines = decode_lines(_LINES, commit)
        except msgspec.MsgspecError as error:
            raise ValueError(
                f"the engine's commit cannot be adopted ({error}); files need their statistics: "
                "spark.databricks.delta.stats.collect=true"
            ) from error
        info = next((line.commit_info for line in lines if line.commit_info), _Info())
        if any(line.protocol or line.meta_data for line in lines):
            raise ValueError(
                "the rows have other columns than the table, and Delta is set to add them "
                "(spark.databricks.delta.schema.autoMerge.enabled): add them to the table first"
            )
        adds = [line.add for line in lines if line.add is not None]
        # Delta may compact what was appended: such a commit changes no data.
        if info.mode != "Append" and any(add.data_change for add in adds):
            raise ValueError(f"only an append can be staged: {info.operation}, mode {info.mode}")
        for line in lines:
            if line.remove is not None:
                live.pop(line.remove.path, None)
        live.update((add.path, add) for add in adds)
    return tuple(
        replace(
            add,
            path=f"{folder}/{add.path}",
            data_change=True,
            tags=None,
            base_row_id=None,
            default_row_commit_version=None,
        )
        for add in live.values()
    )
