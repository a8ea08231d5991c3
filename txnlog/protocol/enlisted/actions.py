"""Actions of the log of an enlisted table, which other tools write, and the table's state.

Of others' actions only fields are decoded that something here depends on: such a table may have any
feature of Delta that `features` knows. A value of another type is refused when it is read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec

from txnlog.protocol.decoding import Int64, Natural, nesting_error

ROW_TRACKING = "delta.rowTracking"
"""The domain that holds the highest row id."""

RECENT_MAX = 1_000
_LINES_FREE = 1_000
_LINE_BYTES_MIN = 8
_BASE85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {digit: value for value, digit in enumerate(_BASE85)}
_UUID_CHARS, _UUID_BYTES = 20, 16
_UUID_PARTS = (0, 8, 12, 16, 20, 32)


class _Action(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel", omit_defaults=True
):
    """An action in Delta's spelling; absent and null fields are not written."""


class Protocol(_Action, frozen=True):
    """The protocol versions and features that readers and writers must support."""

    min_reader_version: Natural
    min_writer_version: Natural
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Format(_Action, frozen=True):
    provider: str = "parquet"


class TableMetadata(_Action, frozen=True):
    """Schema (Spark's JSON), partition columns and table properties."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str | None] = {}
    format: Format = Format()

    def get(self, name: str, default: str = "") -> str:
        """A table property."""
        return self.configuration.get(name) or default

    def is_on(self, name: str) -> bool:
        """Whether a table property is true."""
        return self.get(name).lower() == "true"


class DomainMetadata(_Action, frozen=True):
    """Metadata of one feature; replaces that of the same domain."""

    domain: str
    configuration: str
    removed: bool = False


class Txn(_Action, frozen=True):
    """The newest version that an application has written; replaces the one before."""

    app_id: str
    version: Int64
    last_updated: Int64 | None = None


class DeletionVector(_Action, frozen=True):
    """The rows of a file that are deleted; with the path it is the key of a live file."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: Natural
    cardinality: Natural
    offset: Natural | None = None

    @property
    def path(self) -> str:
        """Of its file, below the table; "" if it is elsewhere, or has no name."""
        if self.storage_type != "u":
            return ""
        text = self.path_or_inline_dv
        folder, encoded = text[:-_UUID_CHARS], text[-_UUID_CHARS:]
        try:
            spelled = base85(encoded).hex()
        except ValueError:
            return ""
        if len(spelled) != 2 * _UUID_BYTES:
            return ""
        uuid = "-".join(spelled[a:b] for a, b in pairwise(_UUID_PARTS))
        name = f"deletion_vector_{uuid}.bin"
        return f"{folder}/{name}" if folder else name


class LiveFile(_Action, frozen=True):
    """A file of the table, with what its removal repeats. Partition columns have physical names."""

    path: str
    partition_values: dict[str, str | None]
    size: Natural
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Natural | None = None
    default_row_commit_version: Natural | None = None
    stats: str | None = None


class AddFile(LiveFile, frozen=True, kw_only=True):
    """A file to add."""

    modification_time: Int64
    data_change: bool
    stats: str


class RemoveFile(LiveFile, frozen=True, kw_only=True):
    """A live file to remove."""

    deletion_timestamp: Int64
    data_change: bool
    extended_file_metadata: bool


class ChangesFile(_Action, frozen=True):
    """A file of the change data feed."""

    path: str
    partition_values: dict[str, str | None]
    size: Natural
    data_change: bool
    tags: dict[str, str | None] | None = None


class Removed(_Action, frozen=True):
    """Of the removal of a file, by any writer, what is read."""

    path: str
    deletion_vector: DeletionVector | None = None
    partition_values: dict[str, str | None] | None = None
    data_change: bool = True


class CommitInfo(_Action, frozen=True):
    """Of any writer's commitInfo what is read; `write_id` is in those of txnlog."""

    in_commit_timestamp: Int64 | None = None
    write_id: str = msgspec.field(default="", name="txnlogWriteId")


class PublicationInfo(CommitInfo, frozen=True, kw_only=True):
    """The commitInfo of a publication."""

    timestamp: Int64
    operation: str
    operation_parameters: dict[str, Any]
    operation_metrics: dict[str, Any]
    is_blind_append: bool
    engine_info: str
    txn_id: str
    read_version: Natural
    tags: dict[str, Any] | None = None


class Sidecar(_Action, frozen=True):
    """A file beside a checkpoint, with actions of it."""

    path: str


Action = (
    Protocol
    | TableMetadata
    | DomainMetadata
    | Txn
    | LiveFile
    | AddFile
    | RemoveFile
    | ChangesFile
    | Removed
    | Sidecar
    | CommitInfo
    | PublicationInfo
)

_FIELDS: Mapping[type, str] = {
    Protocol: "protocol",
    TableMetadata: "metaData",
    DomainMetadata: "domainMetadata",
    Txn: "txn",
    AddFile: "add",
    RemoveFile: "remove",
    ChangesFile: "cdc",
    PublicationInfo: "commitInfo",
}


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a commit; others' kinds of actions are skipped."""

    commit_info: CommitInfo | None = None
    protocol: Protocol | None = None
    meta_data: TableMetadata | None = None
    txn: Txn | None = None
    domain_metadata: DomainMetadata | None = None


class _LineWithFiles(_Line, frozen=True):
    add: LiveFile | None = None
    remove: Removed | None = None
    sidecar: Sidecar | None = None


_LINES = msgspec.json.Decoder(_Line)
_LINES_WITH_FILES = msgspec.json.Decoder(_LineWithFiles)


def decode_actions(data: bytes, *, files: bool) -> list[Action]:
    """The actions of a commit; those of files only if asked for.

    Raises ValueError, msgspec.MsgspecError for a commit that is truncated or garbled.
    """
    lines = decode_lines(_LINES_WITH_FILES if files else _LINES, data)
    if not lines:
        raise ValueError("it is empty")
    found = (getattr(line, name) for line in lines for name in line.__struct_fields__)
    return [action for action in found if action is not None]


def decode_lines(decoder: msgspec.json.Decoder[Any], data: bytes) -> list[Any]:
    """JSON lines. Raises ValueError, msgspec.MsgspecError."""
    # Each line shorter than any action would become an object of many times its size.
    if data.count(b"\n") > _LINES_FREE + len(data) // _LINE_BYTES_MIN:
        raise ValueError("its lines are too short for actions")
    try:
        return decoder.decode_lines(data)
    except RecursionError as error:
        raise nesting_error(data, error) from error


def encode_actions(actions: Iterable[Action]) -> bytes:
    """One action per line."""
    lines = [{_FIELDS[type(action)]: action} for action in actions]
    return msgspec.json.Encoder().encode_lines(lines)


def file_name(path: str) -> str:
    """The last part of a path, which is unique; writers may spell the folders differently."""
    return path.rpartition("/")[2]


def file_names(*files: LiveFile | Removed) -> set[str]:
    """The names of files, and of those with their deletion vectors."""
    vectors = [file.deletion_vector.path for file in files if file.deletion_vector is not None]
    return {*map(file_name, [file.path for file in files]), *map(file_name, vectors)} - {""}


def base85(text: str) -> bytes:
    """Z85: five digits for four bytes. Raises ValueError."""
    found = bytearray()
    try:
        for at in range(0, len(text), 5):
            number = 0
            for digit in text[at : at + 5]:
                number = number * 85 + _DIGITS[digit]
            found += struct.pack(">I", number)
    except (KeyError, struct.error) as error:
        raise ValueError(f"{text[:100]!r} is not in Z85") from error
    return bytes(found)


class Definition(msgspec.Struct, frozen=True):
    """What decides whether a file fits a table: staged under one, published under another."""

    protocol: Protocol
    metadata: TableMetadata
    domains: Mapping[str, str] = {}

    @property
    def column_mapping(self) -> str:
        """none, name or id."""
        return self.metadata.get("delta.columnMapping.mode", "none").lower()


@dataclass(slots=True)
class TableState:
    """What the log at `url` says of its table, up to `version` (-1: nothing was read).

    `digest` is that of the newest commit's bytes, "" if only a checkpoint of it was there,
    `in_commit_ms` its in-commit timestamp. `recent`: the newest txns of commits that were read one
    by one: version of the table, appId, version.
    `files`: live files by path, and `removed`: names of files that it still has tombstones of; None
    if they were not asked for.
    """

    url: str
    version: int = -1
    protocol: Protocol | None = None
    metadata: TableMetadata | None = None
    domains: dict[str, str] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    recent: deque[tuple[int, str, int]] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    in_commit_ms: int | None = None
    files: dict[str, LiveFile] | None = None
    removed: set[str] | None = None
    digest: str = ""

    @property
    def definition(self) -> Definition:
        """Raises ValueError for a log without protocol or metaData."""
        if self.protocol is None or self.metadata is None:
            raise ValueError(f"no {'protocol' if self.protocol is None else 'metaData'} is there")
        return Definition(self.protocol, self.metadata, dict(self.domains))

    def as_staged_under(self) -> TableState:
        """A copy that no later commit changes, of what a part needs: no files, no txns."""
        return replace(self, domains=dict(self.domains), txns={}, files=None, removed=None)

    def apply(
        self, version: int, actions: Iterable[Action], *, is_checkpoint: bool = False
    ) -> None:
        """Apply a commit, or a checkpoint as one."""
        self.in_commit_ms = None
        adds: list[LiveFile] = []
        for action in actions:
            match action:
                case CommitInfo():
                    self.in_commit_ms = action.in_commit_timestamp
                case Protocol():
                    self.protocol = action
                case TableMetadata():
                    self.metadata = action
                case Txn():
                    self.txns[action.app_id] = action.version
                    if not is_checkpoint:
                        self.recent.append((version, action.app_id, action.version))
                case DomainMetadata(removed=True):
                    self.domains.pop(action.domain, None)
                case DomainMetadata():
                    self.domains[action.domain] = action.configuration
                case Removed() if self.files is not None:
                    self.files.pop(action.path, None)
                    if self.removed is not None:
                        self.removed.update(file_names(action))
                case LiveFile():
                    adds.append(action)
        # A commit that changes a file's deletion vector removes the path and adds it, in any order.
        if self.files is not None:
            self.files.update((add.path, add) for add in adds)
        self.version = version
