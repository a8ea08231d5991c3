"""The part of one transaction in one enlisted table, and the commit that publishes it.

Staged files are listed in a part file before the decision: with it and the table's log any process
can publish them. Row ids, versions and timestamps are filled in then, from the log only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec.structs import asdict, replace

from txnlog.errors import CorruptLogError, TableDataError
from txnlog.protocol.decoding import Int64, Natural
from txnlog.protocol.enlisted.actions import (
    ROW_TRACKING,
    Action,
    AddFile,
    ChangesFile,
    Definition,
    DomainMetadata,
    LiveFile,
    Protocol,
    PublicationInfo,
    RemoveFile,
    TableMetadata,
    TableState,
    Txn,
    decode_lines,
    file_name,
    file_names,
)
from txnlog.protocol.enlisted.features import features_of
from txnlog.protocol.enlisted.schemas import (
    Field,
    is_in_partition,
    named_partition,
    partition_fields,
)

STAGING = "_txnlog"
"""Folder of a table for staged files and part files, by cluster id; VACUUM of others leaves it."""

FENCE = "/fence"

Mode = Literal["append", "overwrite", "merge"]
Partition = dict[str, str | None]
"""Some or all partition columns, by physical name, with values as an add has them."""

_LEAVES_TABLE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/|(?:.*/)?\.\.(?:/|\Z)", re.DOTALL)


class Operation(msgspec.Struct, frozen=True):
    """What an engine says of its change, for the history of the table."""

    operation: str
    parameters: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    tags: dict[str, Any] | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add; with mode overwrite, what is live in `partitions` then (None: all) is removed.

    With mode merge `removes` is removed, and what is live in `partitions` was read, at version
    `read_version`, whose commit has `read_digest` ("": it was not there); `adds` has files of
    `removes`, too, with other deletion vectors. `definition` is the table's when the files were
    staged, at that version. `former` are the names of files that these replace, and that a late
    process may still publish.
    """

    mode: Mode
    partitions: tuple[Partition, ...] | None = None
    read_version: Natural
    definition: Definition
    adds: tuple[AddFile, ...]
    former: tuple[str, ...] = ()
    change: Operation | None = None
    removes: tuple[LiveFile, ...] = ()
    cdc: tuple[ChangesFile, ...] = ()
    read_digest: str = ""

    def has(self, values: Partition, fields: Mapping[str, Field]) -> bool:
        """Whether a file of these partition values is in `partitions`."""
        return self.partitions is None or any(
            is_in_partition(values, partition, fields) for partition in self.partitions
        )

    @property
    def new_adds(self) -> list[AddFile]:
        """Those of files that the table has not had."""
        known = {file.path for file in self.removes}
        return [add for add in self.adds if add.path not in known]

    @property
    def new_paths(self) -> set[str]:
        """Of all files that the table has not had: rows, deletion vectors, change feeds."""
        known = {file.deletion_vector for file in self.removes}
        vectors = {add.deletion_vector for add in self.adds} - known
        paths = {one.path for one in vectors if one is not None} - {""}
        files: list[LiveFile | ChangesFile] = [*self.new_adds, *self.cdc]
        return paths | {unquote(file.path) for file in files}

    @property
    def file_names(self) -> frozenset[str]:
        """Names of all files by which a table may have the part."""
        staged = file_names(*self.adds) - file_names(*self.removes)
        changes = {file_name(file.path) for file in self.cdc}
        return frozenset((*staged, *changes, *self.former))

    @property
    def is_visible(self) -> bool:
        """Whether VACUUM of other tools may delete the files, if they are old enough."""
        return any(not add.path.startswith(f"{STAGING}/") for add in self.new_adds)

    @property
    def num_records(self) -> int:
        return sum(map(num_records, self.new_adds))

    @property
    def size_bytes(self) -> int:
        return sum(add.size for add in self.new_adds)


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What the decided transaction says of its parts. `decided_ms` is by the root's store."""

    app_id: str
    epoch: int
    decided_ms: int


def new_part(
    state: TableState,
    adds: Sequence[AddFile],
    *,
    mode: Mode,
    partitions: Sequence[Mapping[str, object]] | None = None,
    **rest: Any,
) -> Part:
    """The part of files that were staged under `state`; `rest` are further fields.

    `partitions`, which an overwrite replaces, or a merge has read, are values by the names of
    partition columns, of all or of some. Raises TableDataError for names or rows that are not of
    these partitions.
    """
    fields = partition_fields(state.definition)
    physical = {field.name: name for name, field in fields.items()}
    try:
        if partitions is not None and mode == "append":
            raise ValueError("only an overwrite replaces partitions")
        if unknown := sorted({name for each in partitions or () for name in each} - set(physical)):
            columns = ", ".join(map(repr, physical)) or "none"
            raise ValueError(f"{unknown[0]!r} is no partition column; it has {columns}")
        replaced = None
        if partitions is not None:
            replaced = tuple(
                {(key := physical[name]): named_partition(one[name], fields[key]) for name in one}
                for one in partitions
            )
        part = Part(
            mode=mode,
            partitions=replaced,
            read_version=state.version,
            read_digest=state.digest if mode == "merge" else "",
            definition=state.definition,
            adds=tuple(adds),
            **rest,
        )
        check_part(part)
    except ValueError as error:
        raise TableDataError(
            f"{state.url}: {error}. Nothing was written.", url=state.url
        ) from error
    return part


def app_id_of(cluster_id: str, producer_id: int) -> str:
    """The appId of a producer in every enlisted table; its version is the transaction's epoch."""
    return f"{app_ids_of(cluster_id)}{producer_id}"


def app_ids_of(cluster_id: str) -> str:
    """What the appIds of a cluster begin with."""
    return f"txnlog/{cluster_id}/"


def fence_app_id(app_id: str) -> str:
    """The appId of the transaction that has lost the table where it was to be decided (R77)."""
    return f"{app_id}{FENCE}"


def fence(part: Part, decided: Decided) -> tuple[Part, Decided]:
    """A change without files in place of a part that is to decide: a commit of both would be in no
    order, so who puts the part later meets the fence.
    """
    nothing = replace(part, adds=(), removes=(), cdc=(), change=Operation(operation="FENCE"))
    return nothing, replace(decided, app_id=fence_app_id(decided.app_id))


def lost_part(state: TableState) -> Part:
    """In place of a change whose part file is lost, so that a fence can be put."""
    return new_part(state, (), mode="merge", change=Operation(operation="FENCE"))


def republished_app_id(app_id: str, epoch: int) -> str:
    """The appId of one transaction whose publication was lost, in the table; its version is 0."""
    return f"{app_id}/{epoch}"


def staging_folder(cluster_id: str) -> str:
    """Where a cluster stages files of a table, below the table's folder."""
    return f"{STAGING}/{cluster_id}"


class _Stats(msgspec.Struct, rename="camel"):
    num_records: Natural


_STATS = msgspec.json.Decoder(_Stats)


def num_records(add: AddFile) -> int:
    """The rows of a file. Raises msgspec.MsgspecError for a file without their number."""
    return _STATS.decode(add.stats).num_records


# -- the part file -------------------------------------------------------------------------------


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: Literal[1]
    mode: Mode
    partitions: tuple[Partition, ...] | None
    read_version: Natural
    former: tuple[str, ...] = ()
    change: Operation | None = None
    read_digest: str = ""


class _Line(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    txnlog_part: _Head | None = None
    protocol: Protocol | None = None
    meta_data: TableMetadata | None = None
    domain_metadata: DomainMetadata | None = None
    add: AddFile | None = None
    remove: LiveFile | None = None
    cdc: ChangesFile | None = None


_LINES = msgspec.json.Decoder(_Line)


def encode_part(part: Part) -> bytes:
    """The part file: a line about the part, the table's definition, the files."""
    definition = part.definition
    head = _Head(
        1, part.mode, part.partitions, part.read_version, part.former, part.change, part.read_digest
    )
    lines: list[dict[str, object]] = [
        {"txnlogPart": head},
        {"protocol": definition.protocol},
        {"metaData": definition.metadata},
    ]
    lines += [
        {"domainMetadata": DomainMetadata(domain=name, configuration=text)}
        for name, text in sorted(definition.domains.items())
    ]
    lines += [{"add": add} for add in part.adds]
    lines += [{"remove": file} for file in part.removes]
    lines += [{"cdc": file} for file in part.cdc]
    return msgspec.json.Encoder().encode_lines(lines)


def decode_part(data: bytes, *, source: str) -> Part:
    """Parse a part file. Raises CorruptLogError naming `source` if it is invalid."""
    try:
        return _part(decode_lines(_LINES, data))
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptLogError(
            f"{source}: this file of a decided transaction is truncated or garbled ({error}). Its "
            "rows cannot be published without it. Restore this very file from a backup of the "
            "table.",
            file=source,
        ) from error


def _part(lines: Sequence[_Line]) -> Part:
    heads = [line.txnlog_part for line in lines if line.txnlog_part is not None]
    protocols = [line.protocol for line in lines if line.protocol is not None]
    metadata = [line.meta_data for line in lines if line.meta_data is not None]
    if not len(heads) == len(protocols) == len(metadata) == 1:
        raise ValueError("it must have one line txnlogPart, one protocol and one metaData")
    domains = [line.domain_metadata for line in lines if line.domain_metadata is not None]
    part = Part(
        mode=heads[0].mode,
        partitions=heads[0].partitions,
        read_version=heads[0].read_version,
        definition=Definition(
            protocols[0], metadata[0], {each.domain: each.configuration for each in domains}
        ),
        adds=tuple(line.add for line in lines if line.add is not None),
        former=heads[0].former,
        change=heads[0].change,
        read_digest=heads[0].read_digest,
        removes=tuple(line.remove for line in lines if line.remove is not None),
        cdc=tuple(line.cdc for line in lines if line.cdc is not None),
    )
    check_part(part)
    return part


def is_outside(path: str) -> bool:
    """Whether a path of a log, without its escapes, is not below the table."""
    return _LEAVES_TABLE.match(path) is not None


def check_part(part: Part) -> None:
    """Raise ValueError, msgspec.MsgspecError for a part that could not be published."""
    if (part.mode == "merge") != (part.change is not None):
        raise ValueError(f"its mode is {part.mode}, its operation {part.change}")
    fields = partition_fields(part.definition)
    for partition in part.partitions or ():
        if unknown := partition.keys() - fields.keys():
            raise ValueError(f"{sorted(unknown)} are no partition columns")
    for add in part.adds:
        num_records(add)
    files: list[LiveFile | ChangesFile] = [*part.adds, *part.removes, *part.cdc]
    for file in files:
        if is_outside(unquote(file.path)):
            raise ValueError(f"the path {file.path!r} is not below the table")
        if file.partition_values.keys() != fields.keys():
            raise ValueError(f"{file.path!r} has no value of each partition column")
        if not part.has(file.partition_values, fields):
            raise ValueError(f"rows of {file.partition_values} are in no partition to {part.mode}")


# -- the publication -----------------------------------------------------------------------------


def publication(
    part: Part, state: TableState, decided: Decided, *, write_id: str, engine: str, now_ms: int
) -> list[Action]:
    """The actions of the commit that publishes a part as the next version after `state`.

    The part is compatible with the state; an overwrite needs `state.files`. Raises ValueError,
    msgspec.MsgspecError for a log whose row ids or in-commit timestamps cannot be continued.
    """
    definition = state.definition
    tracks_rows = "rowTracking" in features_of(definition.protocol) and not (
        definition.metadata.is_on("delta.rowTrackingSuspended")
    )
    removes = [
        RemoveFile(
            **asdict(replace(file, stats=None)),
            deletion_timestamp=now_ms,
            data_change=True,
            extended_file_metadata=True,
        )
        for file in _removes(part, state)
    ]
    columns = definition.metadata.partition_columns
    done = part.change or _write(part, columns, len(removes), tracks_rows=tracks_rows)
    info = PublicationInfo(
        in_commit_timestamp=_in_commit_ms(state, now_ms),
        timestamp=now_ms,
        operation=done.operation,
        operation_parameters=done.parameters,
        operation_metrics=done.metrics,
        # The application may have read the table: UPDATEs of others are not ordered around it.
        is_blind_append=False,
        engine_info=engine,
        txn_id=write_id,
        write_id=write_id,
        read_version=state.version,
        tags=done.tags,
    )
    txn = Txn(app_id=decided.app_id, version=decided.epoch, last_updated=now_ms)
    files: list[Action] = [*removes, *part.cdc]
    if not tracks_rows:
        return [info, txn, *files, *part.adds]
    adds, next_id = [], _highest_row_id(state) + 1
    for add in part.adds:
        if add.base_row_id is not None:
            # A file of the table, whose rows have ids.
            adds.append(add)
            continue
        version = state.version + 1
        adds.append(replace(add, base_row_id=next_id, default_row_commit_version=version))
        next_id += num_records(add)
    highest = msgspec.json.encode({"rowIdHighWaterMark": next_id - 1}).decode()
    return [info, txn, DomainMetadata(domain=ROW_TRACKING, configuration=highest), *files, *adds]


def _write(part: Part, columns: Sequence[str], num_removed: int, *, tracks_rows: bool) -> Operation:
    return Operation(
        operation="WRITE",
        parameters={
            "mode": "Append" if part.mode == "append" else "Overwrite",
            "partitionBy": msgspec.json.encode(columns).decode(),
        },
        metrics={
            "numFiles": str(len(part.adds)),
            "numOutputRows": str(part.num_records),
            "numOutputBytes": str(part.size_bytes),
            "numRemovedFiles": str(num_removed),
        },
        tags={"delta.rowTracking.preserved": "true"} if tracks_rows else None,
    )


def _in_commit_ms(state: TableState, now_ms: int) -> int | None:
    """The next in-commit timestamp, above that of the newest commit; None where they are off."""
    if not state.definition.metadata.is_on("delta.enableInCommitTimestamps"):
        return None
    if state.in_commit_ms is None:
        raise ValueError("its newest commit has no in-commit timestamp, and the table has them")
    return max(now_ms, state.in_commit_ms + 1)


class _RowTracking(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: Int64


_ROW_TRACKING = msgspec.json.Decoder(_RowTracking)


def _highest_row_id(state: TableState) -> int:
    text = state.domains.get(ROW_TRACKING)
    return -1 if text is None else _ROW_TRACKING.decode(text).row_id_high_water_mark


def _removes(part: Part, state: TableState) -> Iterable[LiveFile]:
    """Of an overwrite what is live in its partitions now, with its deletion vectors."""
    if part.mode != "overwrite":
        return part.removes
    assert state.files is not None
    fields = partition_fields(state.definition)
    return [
        live for _, live in sorted(state.files.items()) if part.has(live.partition_values, fields)
    ]
