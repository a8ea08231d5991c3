"""Delta log actions as typed structs, and their JSON lines (Delta protocol reader 1, writer 2).

Only the actions that txnlog's tables use. A line with an unknown action is skipped, but counted:
the commitInfo of txnlog's commits holds the number of lines that follow and their checksum, so a
truncated or changed file is detected (R66).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from txnlog.errors import RESTORE_FILE, CorruptLogError, RecordTooLargeError
from txnlog.process.version import VERSION
from txnlog.protocol.decoding import Int64, Natural, NestingError, nesting_error

ENGINE = f"txnlog/{VERSION}"

COMMIT_BYTES_MAX = 256 << 20
"""Largest commit: removes about two million files. Decoded, it takes several times the memory."""


class Protocol(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The protocol versions and features that a reader and a writer must support."""

    min_reader_version: Int64
    min_writer_version: Int64
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Format(msgspec.Struct, frozen=True):
    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Schema (Spark's JSON), partition columns and table properties; `id` is the topic id."""

    id: str
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str] = {}
    created_time: Int64 | None = None
    format: Format = Format()


class Add(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A live file and its header; adding a path again replaces its header."""

    path: str
    partition_values: dict[str, str | None]
    size: Natural
    modification_time: Int64
    data_change: bool | None = None
    stats: str | None = None


class Adds(msgspec.Struct, frozen=True):
    """The live files of a checkpoint, an Arrow array per column; `values` are strings."""

    paths: Any
    sizes: Any
    modification_times: Any
    stats: Any
    values: Mapping[str, Any]

    def __iter__(self) -> Iterator[Add]:
        names = list(self.values)
        rows = zip(*(column.to_pylist() for column in self.values.values()), strict=True)
        columns = (self.paths, self.sizes, self.modification_times, self.stats)
        files = zip(*(column.to_pylist() for column in columns), strict=True)
        for (path, size, at, stats), row in zip(files, rows, strict=True):
            found = zip(names, row, strict=True)
            values = {name: value for name, value in found if value is not None}
            yield Add(path, values, size, at, False, stats)


class Remove(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A file that is no longer live; it remains in the store until vacuum."""

    path: str
    deletion_timestamp: Int64 | None = None
    data_change: bool | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: Int64 | None = None


class Txn(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The newest version that an application has written; replaces the one before."""

    app_id: str
    version: Int64
    last_updated: Int64 | None = None


class CommitInfo(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The writer and operation of a commit.

    `write_id` identifies it after a lost reply. `previous` is the digest of the previous commit:
    commits form a chain. Commits of other tools have neither.
    """

    timestamp: Int64 = 0
    operation: str = ""
    engine_info: str = ""
    operation_parameters: dict[str, str] = {}
    write_id: str = msgspec.field(default="", name="txnlogWriteId")
    previous: str = msgspec.field(default="", name="txnlogPrevious")
    actions: Int64 = msgspec.field(default=-1, name="txnlogActions")
    checksum: Int64 = msgspec.field(default=-1, name="txnlogCrc32")


class Line(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One line of a commit: exactly one field is set."""

    commit_info: CommitInfo | None = None
    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    add: Add | None = None
    remove: Remove | None = None
    txn: Txn | None = None


Action = Protocol | Metadata | Add | Adds | Remove | Txn

_INFO_BYTES_MAX = 1 << 20
_LINES_FREE = 1_000
_LINE_BYTES_MIN = 16
_FIELD = {Protocol: "protocol", Metadata: "metaData", Add: "add", Remove: "remove", Txn: "txn"}
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


class Commit(msgspec.Struct, frozen=True):
    """One commit as read: its info and its actions in order (`Adds` only for a checkpoint).

    `digest` is that of the commit file's bytes; for a checkpoint, that of the commit at its
    version, "" if the checkpoint does not hold it.
    """

    version: int
    info: CommitInfo
    actions: tuple[Action, ...]
    digest: str = ""


def digest_of(data: bytes) -> str:
    """The digest of a commit file, which the next commit holds: BLAKE2b, 16 bytes, in hex."""
    return blake2b(data, digest_size=16).hexdigest()


def encode_commit(info: CommitInfo, actions: Sequence[Action]) -> bytes:
    """The JSON of a commit, one action per line; commitInfo holds the checksum of the others.

    Raises RecordTooLargeError for a commit that readers would refuse.
    """
    body = _ENCODER.encode_lines([{_FIELD[type(action)]: action} for action in actions])
    if len(body) > COMMIT_BYTES_MAX - _INFO_BYTES_MAX:
        raise RecordTooLargeError(
            f"A commit of {len(actions)} actions would have {len(body)} bytes, and readers accept "
            f"{COMMIT_BYTES_MAX}. Nothing was written. Change less at once: fewer files in one "
            "transaction, or let compaction merge files before the topic is deleted."
        )
    sealed = msgspec.structs.replace(info, actions=len(actions), checksum=crc32(body))
    return _ENCODER.encode_lines([{"commitInfo": sealed}]) + body


def decode_commit(data: bytes, *, version: int, source: str) -> Commit:
    """Parse a commit. Raises CorruptLogError naming `source` if it is truncated or garbled."""
    info = CommitInfo()
    actions: list[Action] = []
    if len(data) > COMMIT_BYTES_MAX:
        raise _corrupt(source, f"it has {len(data)} bytes, maximum {COMMIT_BYTES_MAX}")
    try:
        lines = _decode_lines(data, source)
    except (msgspec.MsgspecError, UnicodeDecodeError, NestingError) as error:
        raise _corrupt(source, str(error)) from error
    for line in lines:
        if line.commit_info is not None:
            info = line.commit_info
            continue
        action = line.add or line.txn or line.remove or line.meta_data or line.protocol
        if action is not None:
            actions.append(action)
    if not lines:
        raise _corrupt(source, "it is empty")
    # Other tools' commits have neither chain nor checksum, so any JSON would pass for one of them.
    if version > 0 and not info.operation:
        raise _corrupt(source, "it names no operation, which every writer of Delta does")
    if info.actions >= 0 and info.actions != len(lines) - 1:
        raise _corrupt(source, f"{info.actions} actions were written, {len(lines) - 1} are there")
    if info.checksum >= 0 and crc32(data.partition(b"\n")[2]) != info.checksum:
        raise _corrupt(source, "its lines do not have the checksum they were written with")
    return Commit(version, info, tuple(actions), digest_of(data))


def _decode_lines(data: bytes, source: str) -> list[Line]:
    # Each line shorter than any action would become objects of a hundred times its size.
    if data.count(b"\n") > _LINES_FREE + len(data) // _LINE_BYTES_MIN:
        raise _corrupt(source, "its lines are too short for actions")
    try:
        return _DECODER.decode_lines(data)
    except RecursionError as error:
        raise nesting_error(data, error) from error


def _corrupt(source: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"{source}: this commit is truncated or garbled ({why}). Nothing after it can "
        f"be read without it. {RESTORE_FILE}",
        file=source,
    )
