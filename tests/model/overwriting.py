"""What an overwrite of a partition removes, and which row ids it gives out: at the decision, or
where it lands. On `publication` and `unpublishable` of the project.

The partition has files 1 and 2. O replaces all rows of it by its own file. Foreign writers append,
OPTIMIZE, DELETE with a deletion vector, and make the table append-only, each once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.protocol.enlisted.actions import (
    ROW_TRACKING,
    AddFile,
    DeletionVector,
    DomainMetadata,
    LiveFile,
    Protocol,
    RemoveFile,
    TableMetadata,
    TableState,
)
from txnlog.protocol.enlisted.compatibility import unpublishable
from txnlog.protocol.enlisted.parts import Decided, Part, publication

LISTED = "what is removed is listed at the decision"
NO_DELETION_VECTOR = "a remove does not repeat the deletion vector"
IDS_EARLY = "row ids are given out at the decision"
OVER_APPEND_ONLY = "append-only is not looked at again"

_SCHEMA = {"type": "struct", "fields": []}
_METADATA = TableMetadata(id="id", schema_string=json.dumps(_SCHEMA), partition_columns=())
_PROTOCOL = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=("deletionVectors",),
    writer_features=("appendOnly", "deletionVectors", "domainMetadata", "rowTracking"),
)
_OURS = AddFile(
    path="ours",
    partition_values={},
    size=1,
    modification_time=0,
    data_change=True,
    stats='{"numRecords":1}',
)
_DECIDED = Decided(app_id="txnlog/c/1", epoch=1, decided_ms=0)


class File(NamedTuple):
    """A live file; `rows` are those it had when the model began."""

    name: str
    deletion_vector: str
    rows: str
    base_row_id: int


class State(NamedTuple):
    """The table, and how far O is: it lists at the decision, and puts at the version `at` + 1."""

    live: frozenset[File] = frozenset({File("1", "", "1", 0), File("2", "", "2", 1)})
    version: int = 0
    high_water_mark: int = 1
    append_only: bool = False
    o: str = "decide"
    listed: frozenset[File] = frozenset()
    base_row_id: int = -1
    at: int = -1
    used: frozenset[str] = frozenset()


def table_of(state: State) -> TableState:
    """The table as its log says."""
    switch = {"delta.appendOnly": "true"} if state.append_only else {}
    return TableState(
        "memory://",
        state.version,
        protocol=_PROTOCOL,
        metadata=replace(_METADATA, configuration=switch),
        domains={ROW_TRACKING: json.dumps({"rowIdHighWaterMark": state.high_water_mark})},
        files={file.name: _live(file) for file in state.live},
    )


def _live(file: File) -> LiveFile:
    vector = None
    if file.deletion_vector:
        vector = DeletionVector(
            storage_type="u", path_or_inline_dv=file.deletion_vector, size_in_bytes=1, cardinality=1
        )
    return LiveFile(
        path=file.name,
        partition_values={},
        size=1,
        deletion_vector=vector,
        base_row_id=file.base_row_id,
    )


class Overwriting:
    """The model; with `appends` O only appends."""

    def __init__(self, broken: frozenset[str] = frozenset(), *, appends: bool = False) -> None:
        self.broken = broken
        self.part = Part(
            mode="append" if appends else "overwrite",
            read_version=0,
            definition=table_of(State()).definition,
            adds=(_OURS,),
        )

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._owner(state)
        yield from self._foreign(state)

    def _owner(self, state: State) -> Iterator[tuple[str, State]]:
        refused = unpublishable(self.part, table_of(state).definition)
        if state.o == "decide" and not refused:
            base = state.high_water_mark + 1
            yield "O decides", state._replace(o="tail", listed=state.live, base_row_id=base)
        elif state.o == "tail" and (not refused or OVER_APPEND_ONLY in self.broken):
            yield "O tails", state._replace(o="put", at=state.version)
        elif state.o == "put" and state.version != state.at:
            yield "O meets a conflict", state._replace(o="tail")
        elif state.o == "put":
            yield "O publishes", self._published(state)

    def _published(self, state: State) -> State:
        seen = table_of(state._replace(live=state.listed) if LISTED in self.broken else state)
        live, high_water_mark = set(state.live), state.high_water_mark
        for action in publication(
            self.part, seen, _DECIDED, write_id="w", engine="model", now_ms=0
        ):
            if isinstance(action, RemoveFile):
                vector = action.deletion_vector
                key = action.path, "" if vector is None else vector.path_or_inline_dv
                if NO_DELETION_VECTOR in self.broken:
                    key = action.path, ""
                live = {file for file in live if (file.name, file.deletion_vector) != key}
            elif isinstance(action, AddFile):
                assert action.base_row_id is not None
                base = state.base_row_id if IDS_EARLY in self.broken else action.base_row_id
                live.add(File(action.path, "", "", base))
            elif isinstance(action, DomainMetadata):
                high_water_mark = json.loads(action.configuration)["rowIdHighWaterMark"]
        return state._replace(
            o="end",
            live=frozenset(live),
            version=state.version + 1,
            high_water_mark=high_water_mark,
        )

    def _foreign(self, state: State) -> Iterator[tuple[str, State]]:
        live, base = state.live, state.high_water_mark + 1
        first = [file for file in live if file.name in ("1", "2")]
        merged = "".join(sorted(file.rows for file in first))

        def wrote(what: str, now: set[File], ids: int = 0) -> tuple[str, State]:
            return f"foreign {what}", state._replace(
                live=frozenset(now),
                version=state.version + 1,
                high_water_mark=state.high_water_mark + ids,
                used=state.used | {what},
                append_only=state.append_only or what == "append-only",
            )

        if "append" not in state.used:
            yield wrote("append", {*live, File("3", "", "", base)}, 1)
        if "optimize" not in state.used and len(first) == 2:
            yield wrote("optimize", {*live, File("4", "", merged, base)} - {*first}, 1)
        deleted = [file for file in first if file.name == "1" and not file.deletion_vector]
        if "delete" not in state.used and not state.append_only and deleted:
            marked = {file._replace(deletion_vector="dv") for file in deleted}
            yield wrote("delete", {*live, *marked} - {*deleted})
        if "append-only" not in state.used:
            yield wrote("append-only", {*live})

    def unsafe(self, before: State, after: State) -> str | None:
        is_overwrite = self.part.mode == "overwrite"
        if after.o == "end" and before.o != "end" and is_overwrite:
            left = {row for file in after.live for row in file.rows}
            if left:
                return f"rows {sorted(left)} survive the overwrite"
            if before.append_only:
                return "rows of an append-only table were removed"
        ids = [file.base_row_id for file in after.live]
        if len(ids) != len(set(ids)):
            return "two files have one row id"
        return None

    def stuck(self, state: State) -> str | None:
        return None
