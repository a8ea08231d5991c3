"""Actions of the log of an enlisted table, which other tools write, and the table's state.

Fields of these actions that nothing here depends on are skipped: such a table may have any feature
of Delta that `features` knows. A value of another type is refused when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from txnlog.protocol.decoding import Int64, Natural

ROW_TRACKING = "delta.rowTracking"
"""The domain that holds the highest row id."""


class _Action(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
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


class AddFile(_Action, frozen=True):
    """A data file: staged, or live. Partition columns are named physically."""

    path: str
    partition_values: dict[str, str | None]
    size: Natural
    modification_time: Int64 = 0
    data_change: bool | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Natural | None = None
    default_row_commit_version: Natural | None = None


class RemoveFile(_Action, frozen=True):
    """A file that is no longer live."""

    path: str
    deletion_timestamp: Int64 | None = None
    data_change: bool | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: Int64 | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Natural | None = None
    default_row_commit_version: Natural | None = None


class CommitInfo(_Action, frozen=True):
    """Of any writer's commitInfo what is needed here; `write_id` is in those of txnlog."""

    in_commit_timestamp: Int64 | None = None
    write_id: str = msgspec.field(default="", name="txnlogWriteId")


Action = Protocol | TableMetadata | DomainMetadata | Txn | AddFile | RemoveFile | CommitInfo


class Definition(msgspec.Struct, frozen=True):
    """What decides whether a file fits a table: staged under one, published under another."""

    protocol: Protocol
    metadata: TableMetadata
    domains: Mapping[str, str] = {}


@dataclass(slots=True)
class TableState:
    """What the log at `url` says of its table, up to `version` (-1: nothing was read).

    `in_commit_ms` is the in-commit timestamp of the newest commit. `files`: live files by path, and
    `removed`: names of files that it still has tombstones of; None if they were not asked for.
    """

    url: str
    version: int = -1
    protocol: Protocol | None = None
    metadata: TableMetadata | None = None
    domains: dict[str, str] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    in_commit_ms: int | None = None
    files: dict[str, AddFile] | None = None
    removed: set[str] | None = None

    @property
    def definition(self) -> Definition:
        """Raises ValueError for a log without protocol or metaData."""
        if self.protocol is None or self.metadata is None:
            raise ValueError(f"no {'protocol' if self.protocol is None else 'metaData'} is there")
        return Definition(self.protocol, self.metadata, dict(self.domains))

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Apply a commit, or a checkpoint as one."""
        raise NotImplementedError
