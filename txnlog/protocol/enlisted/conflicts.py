"""Whether a change that depends on what was read of a table may still be committed.

By the rules of Delta's ConflictChecker, without its predicates: what was read is all that was live
in the partitions that the change names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from txnlog.protocol.enlisted.actions import LiveFile, Removed, decode_lines
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.enlisted.schemas import partition_fields


class _Info(msgspec.Struct, rename="camel"):
    is_blind_append: bool | None = None
    operation: str | None = None


class _Added(LiveFile, frozen=True, kw_only=True):
    data_change: bool = True


class _Line(msgspec.Struct, rename="camel"):
    commit_info: _Info | None = None
    protocol: Any = None
    meta_data: Any = None
    add: _Added | None = None
    remove: Removed | None = None


_LINES = msgspec.json.Decoder(_Line)


def conflict(part: Part, commits: Iterable[bytes]) -> str | None:
    """Why a merge may not follow `commits`, those since it has read; None if it may.

    Files that were rewritten without a change of data, as by OPTIMIZE, are a conflict only if the
    merge removes them. Raises ValueError, msgspec.MsgspecError for a commit that is garbled.
    """
    fields = partition_fields(part.definition)
    changed = {unquote(file.path) for file in part.removes}
    is_weak = part.definition.metadata.get("delta.isolationLevel") == "WriteSerializable"
    for version, commit in enumerate(commits, part.read_version + 1):
        lines = decode_lines(_LINES, commit)
        info = next((line.commit_info for line in lines if line.commit_info), _Info())
        by = f"version {version} ({info.operation or 'unknown operation'})"
        if any(each is not None for line in lines for each in (line.protocol, line.meta_data)):
            return f"{by} changed the schema, the properties or the protocol"
        is_free = is_weak and info.is_blind_append
        for file in (each for line in lines for each in (line.add, line.remove) if each):
            if unquote(file.path) in changed:
                return f"{by} changed the file {file.path}, which is changed here, too"
            # A removal need not say its partition.
            values = file.partition_values
            was_read = (
                values is None or not fields.keys() <= values.keys() or part.has(values, fields)
            )
            if file.data_change and was_read and not is_free:
                return f"{by} changed rows of what was read"
    return None
