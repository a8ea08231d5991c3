"""Staging tables: an engine writes the files of a part as those of a Delta table of its own.

It lies below the enlisted table, whose definition it has, so the engine casts, computes and checks
rows as it would there. Its files become those of the part where they are.
To change what is there, it begins as a shallow clone, with the files of the enlisted table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from txnlog.protocol.enlisted.actions import (
    ROW_TRACKING,
    AddFile,
    ChangesFile,
    Definition,
    DeletionVector,
    DomainMetadata,
    LiveFile,
    Removed,
    TableState,
    decode_lines,
)
from txnlog.protocol.enlisted.parts import Operation, Part, is_outside, new_part
from txnlog.protocol.enlisted.schemas import partition_fields

_CLUSTERING = "delta.clustering"
_IN_COMMIT_TIMESTAMP = ("delta.enableInCommitTimestamps", "delta.inCommitTimestamp")
"""They concern commits, not files, and ask for more of the first commit."""


_CLONED = "'{}' is not in the table's folder, as in a shallow clone"


def first_commit(definition: Definition, table_id: str, files: Iterable[AddFile] = ()) -> bytes:
    """Version 0 of a staging table."""
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
    for domain in (_CLUSTERING, ROW_TRACKING):
        if (found := definition.domains.get(domain)) is not None:
            action = DomainMetadata(domain=domain, configuration=found)
            lines.append({"domainMetadata": action})
    lines += [{"add": file} for file in files]
    return msgspec.json.Encoder().encode_lines(lines)


class _Info(msgspec.Struct, rename="camel"):
    operation: str = ""
    operation_parameters: dict[str, Any] = {}
    operation_metrics: dict[str, Any] = {}
    tags: dict[str, Any] | None = None

    @property
    def mode(self) -> Any:
        return self.operation_parameters.get("mode")


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _Info | None = None
    protocol: Any = None
    meta_data: Any = None
    add: AddFile | None = None
    remove: Removed | None = None
    cdc: ChangesFile | None = None


_LINES = msgspec.json.Decoder(_Line)


def _decoded(commit: bytes) -> tuple[_Info, list[_Line]]:
    """Raises ValueError for a commit that changes more than rows."""
    try:
        lines = decode_lines(_LINES, commit)
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"the engine's commit cannot be adopted ({error}); files need their statistics: "
            "spark.databricks.delta.stats.collect=true"
        ) from error
    if any(each is not None for line in lines for each in (line.protocol, line.meta_data)):
        raise ValueError(
            "the rows have other columns than the table, and Delta is set to add them "
            "(spark.databricks.delta.schema.autoMerge.enabled): add them to the table first"
        )
    return next((line.commit_info for line in lines if line.commit_info), _Info()), lines


def adopted(commits: Sequence[bytes], folder: str) -> tuple[AddFile, ...]:
    """The files of a staging table after its later commits, as those of the enlisted table.

    `folder` is the staging table's, below the enlisted one. Row ids are given out at publication.
    Raises ValueError for commits that did anything else than append.
    """
    live: dict[str, AddFile] = {}
    for commit in commits:
        info, lines = _decoded(commit)
        adds = [line.add for line in lines if line.add is not None]
        # Delta may compact what was appended: such a commit changes no data.
        if info.mode != "Append" and any(add.data_change for add in adds):
            raise ValueError(f"only an append can be staged: {info.operation}, mode {info.mode}")
        for line in lines:
            if line.remove is not None:
                live.pop(line.remove.path, None)
        live.update((add.path, add) for add in adds)
    return tuple(_adopted(add, folder) for add in live.values())


def _adopted(add: AddFile, folder: str) -> AddFile:
    return replace(
        add,
        path=f"{folder}/{add.path}",
        data_change=True,
        tags=None,
        base_row_id=None,
        default_row_commit_version=None,
    )


# -- a shallow clone -----------------------------------------------------------------------------


def cloned(part: Part, state: TableState, *, base: str) -> Iterator[AddFile]:
    """The live files of `state` in the partitions of an empty part, for `first_commit`.

    `base` is the URL of the table, with escapes, as the engine has it: Spark's for Hadoop. Raises
    ValueError for a file outside of the table, or without statistics.
    """
    fields = partition_fields(state.definition)
    for live in (state.files or {}).values():
        if is_outside(unquote(live.path)):
            raise ValueError(_CLONED.format(live.path))
        if not part.has(live.partition_values, fields):
            continue
        if live.stats is None:
            raise ValueError(f"the log has no statistics of {live.path!r}")
        yield AddFile(
            path=f"{base}/{live.path}",
            partition_values=live.partition_values,
            size=live.size,
            modification_time=0,
            data_change=True,
            stats=live.stats,
            tags=live.tags,
            deletion_vector=_absolute(live.deletion_vector, base),
            base_row_id=live.base_row_id,
            default_row_commit_version=live.default_row_commit_version,
        )


def _absolute(vector: DeletionVector | None, base: str) -> DeletionVector | None:
    if vector is None or vector.storage_type == "i":
        return vector
    if not vector.path:
        raise ValueError(_CLONED.format(vector.path_or_inline_dv))
    return replace(vector, storage_type="p", path_or_inline_dv=f"{base}/{quote(vector.path)}")


def adopted_change(
    state: TableState,
    commits: Sequence[bytes],
    folder: str,
    *,
    base: str,
    partitions: Sequence[Mapping[str, object]] | None,
) -> Part | None:
    """The change that an engine made in a shallow clone of `state`; None: it changed no row.

    `commits` are those of the clone after version 0, `folder` and `base` as above. A removal of one
    of the table's files is made again from what the table's log says of it. Raises ValueError for
    anything but one change of rows.
    """
    found = [_decoded(commit) for commit in commits]
    changes = [each for each in found if any(map(_is_change, each[1]))]
    if not changes:
        return None
    # What follows without a change of data is the engine's own: it compacts.
    if len(changes) > 1 or changes[0] is not found[0]:
        names = ", ".join(info.operation for info, _ in found)
        raise ValueError(f"make one change, as one MERGE; these are several: {names}")
    ((info, lines),) = changes
    known = {_spelled(f"{base}/{path}"): live for path, live in (state.files or {}).items()}
    gone = [_spelled(line.remove.path) for line in lines if line.remove is not None]
    if unknown := sorted(set(gone) - known.keys()):
        raise ValueError(f"{unknown[0]!r} is none of the table's files")
    removes = {path: known[path] for path in gone}
    adds = [line.add for line in lines if line.add is not None]
    return new_part(
        state,
        [_changed(add, removes.get(_spelled(add.path)), folder) for add in adds],
        mode="merge",
        partitions=partitions,
        change=Operation(
            info.operation, info.operation_parameters, info.operation_metrics, info.tags
        ),
        removes=tuple(removes.values()),
        cdc=tuple(
            replace(line.cdc, path=f"{folder}/{line.cdc.path}")
            for line in lines
            if line.cdc is not None
        ),
    )


def _is_change(line: _Line) -> bool:
    return (line.add is not None and line.add.data_change) or (
        line.remove is not None and line.remove.data_change
    )


def _spelled(path: str) -> str:
    """One spelling of each absolute path: engines escape more or fewer characters."""
    return re.sub("^file:/+", "file:/", unquote(path))


def _changed(add: AddFile, live: LiveFile | None, folder: str) -> AddFile:
    """An added file of a clone; `live` is the table's, if it is that with more rows deleted."""
    vector = add.deletion_vector
    if vector is not None and vector.storage_type != "i":
        if not vector.path:
            raise ValueError(_CLONED.format(vector.path_or_inline_dv))
        # A name without a folder is appended to the folder's, as the protocol has it.
        separator = "/" if "/" in vector.path else ""
        place = f"{folder}{separator}{vector.path_or_inline_dv}"
        vector = replace(vector, path_or_inline_dv=place)
    if live is None and is_outside(unquote(add.path)):
        raise ValueError(_CLONED.format(add.path))
    if live is None:
        return replace(_adopted(add, folder), deletion_vector=vector)
    return replace(
        add,
        path=live.path,
        partition_values=live.partition_values,
        deletion_vector=vector,
        tags=live.tags,
        base_row_id=live.base_row_id,
        default_row_commit_version=live.default_row_commit_version,
    )
