"""Computing a checkpoint: the one before and the commits after it, by the columns of Arrow.

Nothing is judged: an action goes into the checkpoint as it is in the log. What a checkpoint holds
is Delta's action reconciliation: the newest protocol and metaData, the newest `txn` of each id, the
live files, and the tombstones that are young. The checkpoint before is read and written one row
group after the other, so memory is bounded by the two files and one row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.errors import StorageError
from txnlog.protocol.app_transactions import RETENTION_PROPERTY as TXN_RETENTION_PROPERTY
from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    TXN_PREFIX,
    is_expired,
    is_horizon,
)
from txnlog.protocol.vacuum import file_retention_ms, interval_ms
from txnlog.storage.delta.actions import Action, Add, Adds, Commit, Metadata, Protocol, Remove, Txn
from txnlog.storage.delta.checkpoint_file import (
    REQUIRED,
    SCHEMA,
    TOMBSTONES,
    groups_with,
    leaf_paths,
    open_checkpoint,
    read_actions,
    read_tombstones,
)
from txnlog.storage.delta.checkpoint_reader import count_actions
from txnlog.storage.delta.table_protocol import check_protocol
from txnlog.storage.store.seals import Span, make_seal, split_footer

_ROWS_PER_GROUP = 65_536

# Readers refuse a checkpoint with fewer bytes than rows. Zstandard makes ids and paths that follow
# each other so small; Snappy cannot, since it takes 3 bytes for each 64.
_DICTIONARY = ["add.partitionValues.key_value.key"]
_ZSTD = frozenset((*_DICTIONARY, "add.partitionValues.key_value.value", "add.stats"))
_COMPRESSION = {path: "zstd" if path in _ZSTD else "snappy" for path in leaf_paths(SCHEMA)}


class _Changes(NamedTuple):
    """What commits leave, taken together; `app_ids` are also those that a horizon took."""

    actions: list[Action]
    horizons: dict[str, int]
    app_ids: set[str]

    def of(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]


def compute_checkpoint(
    before: bytes | None,
    commits: Sequence[Commit],
    store_now_ms: Callable[[], int],
    *,
    name: str,
    note: bytes,
) -> tuple[bytes, dict[str, Any]]:
    """The Parquet file of a checkpoint, sealed with its name and a note, and its hint.

    The hint is what `_last_checkpoint` says of it.

    `before` is the checkpoint before, if there is one, `commits` are all that follow it. Tombstones
    older than the table's retention are left out by the store's time, and so are the versions of
    batch writes; it is asked for only where there are any. Raises UnsupportedProtocolError for a
    table that has more than these columns hold.
    """
    now_ms = cache(store_now_ms)
    changes = _reconciled(commits)
    file = None if before is None else open_checkpoint(before)
    protocol = _newest(file, "protocol", [_protocol_row(each) for each in changes.of(Protocol)])
    metadata = _newest(file, "metaData", [_metadata_row(each) for each in changes.of(Metadata)])
    check_protocol(Protocol(*protocol[0].as_py().values()), f"The table of {name}", table=name)
    properties = dict(metadata[0].as_py()["configuration"] or ())
    writer = _Writer()
    writer.write("protocol", protocol)
    writer.write("metaData", metadata)
    writer.write("txn", _without_old(_txns(file, changes), properties, now_ms))
    for adds in _adds(file, changes):
        writer.write("add", adds)
    writer.end_group()
    for removes in _removes(_tombstones(file, changes, properties, now_ms)):
        writer.write("remove", removes)
    sealed = _seal(writer.close(), name, note)
    _check_read_back(sealed, writer.counts)
    return sealed, {
        "size": sum(writer.counts.values()),
        "sizeInBytes": len(sealed),
        "numOfAddFiles": writer.counts["add"],
    }


# --- Commits, taken together ----------------------------------------------------------------------


def _reconciled(commits: Sequence[Commit]) -> _Changes:
    """What is left of commits taken together, by the action reconciliation of Delta's protocol.

    And the horizons among them: what was last written before one is forgotten.
    """
    left: dict[tuple[str, str], Action] = {}
    horizons: dict[str, int] = {}
    app_ids: set[str] = set()
    for commit in commits:
        for action in commit.actions:
            match action:
                case Protocol() | Metadata():
                    key = (type(action).__name__, "")
                case Txn():
                    key = ("txn", action.app_id)
                    app_ids.add(action.app_id)
                    if is_horizon(action.app_id):
                        horizons[action.app_id] = action.version
                        _forget(left, horizons)
                case Add() | Remove():
                    key = ("file", action.path)
                case Adds():
                    raise TypeError("a commit lists its files one by one")
            left[key] = action
    return _Changes(list(left.values()), horizons, app_ids)


def _forget(left: dict[tuple[str, str], Action], horizons: dict[str, int]) -> None:
    for key, action in list(left.items()):
        if isinstance(action, Txn) and _is_forgotten(action.app_id, action.last_updated, horizons):
            del left[key]


def _is_forgotten(app_id: str, updated_ms: int | None, horizons: dict[str, int]) -> bool:
    return is_expired(
        app_id,
        updated_ms,
        transactions_ms=horizons.get(EXPIRED_TRANSACTIONS, -1),
        producers_ms=horizons.get(EXPIRED_PRODUCERS, -1),
    )


# --- The state, by kind of action -----------------------------------------------------------------


def _newest(file: pq.ParquetFile | None, kind: str, rows: list[dict[str, Any]]) -> pa.StructArray:
    """The one action of its kind: the commits', else that of the checkpoint before."""
    if rows:
        return pa.array(rows, SCHEMA.field(kind).type)
    found = pa.array([], SCHEMA.field(kind).type) if file is None else read_actions(file, kind)
    if not len(found):
        raise ValueError(f"neither the checkpoint before nor a commit after it has a {kind}")
    return found.slice(len(found) - 1)


def _protocol_row(action: Protocol) -> dict[str, Any]:
    return {
        "minReaderVersion": action.min_reader_version,
        "minWriterVersion": action.min_writer_version,
        "readerFeatures": action.reader_features,
        "writerFeatures": action.writer_features,
    }


def _metadata_row(action: Metadata) -> dict[str, Any]:
    return {
        "id": action.id,
        "format": {
            "provider": action.format.provider,
            "options": list(action.format.options.items()),
        },
        "schemaString": action.schema_string,
        "partitionColumns": action.partition_columns,
        "configuration": list(action.configuration.items()),
        "createdTime": action.created_time,
    }


def _txns(file: pq.ParquetFile | None, changes: _Changes) -> pa.StructArray:
    txns = changes.of(Txn)
    columns = (
        pa.array([txn.app_id for txn in txns], pa.string()),
        pa.array([txn.version for txn in txns], pa.int64()),
        pa.array([txn.last_updated for txn in txns], pa.int64()),
    )
    later = pa.StructArray.from_arrays(columns, fields=list(SCHEMA.field("txn").type))
    if file is None:
        return later
    app_ids = pa.array(sorted(changes.app_ids), pa.string())
    before = _not_in(read_actions(file, "txn"), "appId", app_ids)
    if changes.horizons:
        before = _without_expired(before, changes.horizons)
    return pa.concat_arrays([before, later])


def _without_expired(txns: pa.StructArray, horizons: dict[str, int]) -> pa.StructArray:
    """Without those that a horizon makes forgotten; only the old ones are looked at one by one."""
    is_old = pc.less(txns.field("lastUpdated"), max(horizons.values())).fill_null(False)
    old = txns.filter(is_old)
    rows = zip(old.field("appId").to_pylist(), old.field("lastUpdated").to_pylist(), strict=True)
    forgotten = pa.array([_is_forgotten(*row, horizons) for row in rows], pa.bool_())
    return _without(txns, pc.replace_with_mask(is_old, is_old, forgotten))


def _without_old(
    txns: pa.StructArray, properties: dict[str, str], now_ms: Callable[[], int]
) -> pa.StructArray:
    """Without versions of batch writes that are older than the table's property lets them get.

    Delta's own writers leave out our actions, too: markers and ends, which must stay (R11).
    """
    retention_ms = interval_ms(properties.get(TXN_RETENTION_PROPERTY, ""))
    if retention_ms is None or not len(txns):
        return txns
    is_theirs = pc.invert(pc.starts_with(txns.field("appId"), TXN_PREFIX))
    is_old = pc.less(txns.field("lastUpdated"), now_ms() - retention_ms).fill_null(False)
    return _without(txns, pc.and_(is_theirs, is_old))


def _adds(file: pq.ParquetFile | None, changes: _Changes) -> Iterator[pa.StructArray]:
    """Live files: those of each row group of the checkpoint before, and those of the commits."""
    changed = _changed(changes)
    groups = [] if file is None else groups_with(file.metadata, "add")
    for group in groups:
        yield _not_in(read_actions(file, "add", [group]), "path", changed)
    adds: list[Add] = changes.of(Add)
    yield pa.StructArray.from_arrays(
        [
            pa.array([add.path for add in adds], pa.string()),
            pa.array(
                [list(add.partition_values.items()) for add in adds],
                SCHEMA.field("add").type.field("partitionValues").type,
            ),
            pa.array([add.size for add in adds], pa.int64()),
            pa.array([add.modification_time for add in adds], pa.int64()),
            pa.array([bool(add.data_change) for add in adds], pa.bool_()),
            pa.array([add.stats for add in adds], pa.string()),
        ],
        fields=list(SCHEMA.field("add").type),
    )


def _changed(changes: _Changes) -> pa.Array:
    """Paths of which the commits say something."""
    paths = [action.path for action in changes.actions if isinstance(action, Add | Remove)]
    return pa.array(paths, pa.string())


def _tombstones(
    file: pq.ParquetFile | None,
    changes: _Changes,
    properties: dict[str, str],
    store_now_ms: Callable[[], int],
) -> pa.Table:
    """Those that are young; one without a time is taken for one of now."""
    tombstones = TOMBSTONES.empty_table() if file is None else read_tombstones(file)
    removed: list[Remove] = changes.of(Remove)
    if not len(tombstones) and not removed:
        return tombstones
    now_ms = store_now_ms()
    later = pa.table(
        [[action.path for action in removed], [action.deletion_timestamp for action in removed]],
        TOMBSTONES,
    )
    tombstones = pa.concat_tables([_not_in(tombstones, "path", _changed(changes)), later])
    times = tombstones.column("deletionTimestamp").fill_null(now_ms)
    tombstones = tombstones.set_column(1, TOMBSTONES.field(1), times)
    retention_ms = file_retention_ms(properties)
    young = pc.greater(tombstones.column("deletionTimestamp"), now_ms - retention_ms)
    return tombstones.filter(young)


def _removes(tombstones: pa.Table) -> Iterator[pa.StructArray]:
    for some in tombstones.to_batches(max_chunksize=_ROWS_PER_GROUP):
        columns = (*some.columns, pa.repeat(False, len(some)))
        yield pa.StructArray.from_arrays(columns, fields=list(SCHEMA.field("remove").type))


def _not_in(rows: Any, name: str, values: pa.Array) -> Any:
    """The rows of an array or a table in which a field has none of these values."""
    column = rows.field(name) if isinstance(rows, pa.StructArray) else rows.column(name)
    return _without(rows, pc.is_in(column, values))


def _without(rows: Any, which: Any) -> Any:
    """The rows for which a mask is false; nothing is copied where it is false for all."""
    return rows.filter(pc.invert(which)) if pc.any(which).as_py() else rows


# --- The file -------------------------------------------------------------------------------------


class _Writer:
    """Writes actions, one kind after the other, in row groups of about the same size."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(SCHEMA.names, 0)
        self._sink = pa.BufferOutputStream()
        self._file = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression=_COMPRESSION,
            use_dictionary=_DICTIONARY,
            write_statistics=list(REQUIRED.values()),
        )
        self._waiting: list[pa.Table] = []
        self._nulls: dict[str, pa.Array] = {}

    def write(self, kind: str, actions: pa.StructArray) -> None:
        if not len(actions):
            return
        self.counts[kind] += len(actions)
        columns = [
            actions if name == kind else self._nulls_of(name, len(actions)) for name in SCHEMA.names
        ]
        self._waiting.append(pa.table(columns, schema=SCHEMA))
        if sum(map(len, self._waiting)) >= _ROWS_PER_GROUP:
            self.end_group()

    def _nulls_of(self, kind: str, count: int) -> pa.Array:
        if count > len(self._nulls.get(kind, ())):
            self._nulls[kind] = pa.nulls(count, SCHEMA.field(kind).type)
        return self._nulls[kind].slice(0, count)

    def end_group(self) -> None:
        """What follows is in a row group of its own."""
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._file.write_table(rows, row_group_size=_ROWS_PER_GROUP)
            self._waiting = []

    def close(self) -> pa.Buffer:
        self.end_group()
        self._file.close()
        return self._sink.getvalue()


def _seal(parquet: pa.Buffer, name: str, note: bytes) -> bytes:
    """The same Parquet file with a checksum of all its bytes, in one span."""
    data = memoryview(parquet)
    footer_at = split_footer(data)
    body, footer = data[:footer_at], data[footer_at:]
    span = Span(footer_at, crc32(body))
    return b"".join((body, make_seal([span], footer, name=name, note=note), footer))


def _check_read_back(parquet: bytes, written: dict[str, int]) -> None:
    """Raise StorageError unless our reader finds in a checkpoint what was put there."""
    try:
        found = count_actions(parquet)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise _thrown_away(str(error)) from error
    if found != written:
        raise _thrown_away(f"{found} actions of {written}")


def _thrown_away(why: str) -> StorageError:
    return StorageError(
        f"A checkpoint was not written, as it cannot be read back ({why}). The log is as it was, "
        "and is read without it. Please report this."
    )
