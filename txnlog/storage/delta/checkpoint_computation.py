"""Computing a checkpoint from the previous one and the commits after it, with Arrow columns.

It holds what Delta's action reconciliation leaves: the newest protocol and metaData, the newest
`txn` of each id, the live files, and the tombstones within their retention. Values are copied as
they are in the log, readable or not. Live files are read and written by row group, so memory is
bounded by the two Parquet files, the txn and tombstone columns, and one row group. It is three
times as fast as delta-rs (D13, docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.process import arrow_compute as pc
from txnlog.process.arrow_arrays import array_of, number_array, scalar_of
from txnlog.protocol.app_transactions import RETENTION_PROPERTY as TXN_RETENTION_PROPERTY
from txnlog.protocol.txn_memory import (
    APPLICATION_RECORDS,
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    TXN_PREFIX,
    is_expired,
    is_horizon,
)
from txnlog.protocol.vacuum import file_retention_ms, interval_ms
from txnlog.storage.delta.actions import Action, Add, Adds, Commit, Metadata, Protocol, Remove, Txn
from txnlog.storage.delta.checkpoint_file import (
    SCHEMA,
    TOMBSTONES,
    groups_with,
    open_checkpoint,
    read_actions,
    read_tombstones,
)
from txnlog.storage.delta.checkpoint_writer import ROWS_PER_GROUP, CheckpointWriter
from txnlog.storage.delta.table_protocol import check_protocol


class _Changes(NamedTuple):
    """What commits leave after reconciliation; `app_ids` has also those that a horizon expired."""

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
    """A checkpoint's Parquet file, sealed with its name and a note, and its `_last_checkpoint`.

    `before` is the previous checkpoint, if there is one, `commits` are all that follow it. The
    table's properties say how long tombstones and the versions of batch writes stay, by the store's
    clock; `store_now_ms` is called only if there are any. Raises UnsupportedProtocolError for a
    table with features that these columns cannot hold, StorageError for a checkpoint that cannot be
    read back.
    """
    now_ms = cache(store_now_ms)
    changes = _reconciled(commits)
    file = None if before is None else open_checkpoint(before)
    protocol = _newest(file, "protocol", [_protocol_row(each) for each in changes.of(Protocol)])
    metadata = _newest(file, "metaData", [_metadata_row(each) for each in changes.of(Metadata)])
    found = Protocol(*protocol[0].as_py().values())
    check_protocol(found, f"The table of {name}", table=name)
    properties = dict(metadata[0].as_py()["configuration"] or ())
    writer = CheckpointWriter()
    writer.write("protocol", protocol)
    writer.write("metaData", metadata)
    writer.write("txn", _without_old(_txns(file, changes), properties, now_ms))
    for adds in _adds(file, changes):
        writer.write("add", adds)
    writer.end_group()
    for removes in _removes(_tombstones(file, changes, properties, now_ms)):
        writer.write("remove", removes)
    sealed = writer.close(name, note)
    return sealed, {
        "size": sum(writer.counts.values()),
        "sizeInBytes": len(sealed),
        "numOfAddFiles": writer.counts["add"],
    }


# --- Reconciliation -------------------------------------------------------------------------------


def _reconciled(commits: Sequence[Commit]) -> _Changes:
    """What commits leave by the action reconciliation of Delta's protocol, and their horizons.

    A horizon expires the entries that were last written before it.
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
                        _forget(left, {action.app_id: action.version})
                        # A later one may be lower, where somebody has raised the age.
                        highest = max(horizons.get(action.app_id, -1), action.version)
                        horizons[action.app_id] = highest
                case Add() | Remove():
                    key = ("file", action.path)
                case Adds():
                    raise TypeError("only a checkpoint has its files as columns")
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
    """The newest action of a kind: the last of `rows`, else the previous checkpoint's."""
    if rows:
        return array_of(rows[-1:], SCHEMA.field(kind).type)
    found = pa.nulls(0, SCHEMA.field(kind).type) if file is None else read_actions(file, kind)
    if not len(found):
        raise ValueError(f"neither the previous checkpoint nor a commit after it has a {kind}")
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
        array_of([txn.app_id for txn in txns], pa.string()),
        array_of([txn.version for txn in txns], pa.int64()),
        array_of([txn.last_updated for txn in txns], pa.int64()),
    )
    later = pa.StructArray.from_arrays(columns, fields=list(SCHEMA.field("txn").type))
    if file is None:
        return later
    app_ids = array_of(sorted(changes.app_ids), pa.string())
    before = _not_in(read_actions(file, "txn"), "appId", app_ids)
    if changes.horizons:
        before = _without_expired(before, changes.horizons)
    return pa.concat_arrays([before, later])


def _without_expired(txns: pa.StructArray, horizons: dict[str, int]) -> pa.StructArray:
    """Without those that a horizon expires; only old ones are checked one by one."""
    is_old = _is_before(txns, max(horizons.values()))
    old = txns.filter(is_old)
    rows = zip(old.field("appId").to_pylist(), old.field("lastUpdated").to_pylist(), strict=True)
    forgotten = array_of([_is_forgotten(*row, horizons) for row in rows], pa.bool_())
    return _without(txns, pc.replace_with_mask(is_old, is_old, forgotten))


def _is_before(txns: pa.StructArray, at_ms: int) -> pa.BooleanArray:
    is_before = pc.less(txns.field("lastUpdated"), scalar_of(at_ms, pa.int64()))
    return is_before.fill_null(scalar_of(False, pa.bool_()))


def _without_old(
    txns: pa.StructArray, properties: dict[str, str], now_ms: Callable[[], int]
) -> pa.StructArray:
    """Without versions of batch writes that are older than the table's property allows.

    Delta's property is for applications: our markers and ends stay, whatever their age (R11).
    """
    retention_ms = interval_ms(properties.get(TXN_RETENTION_PROPERTY, ""))
    if retention_ms is None or not len(txns):
        return txns
    is_application = pc.or_(
        pc.invert(pc.starts_with(txns.field("appId"), TXN_PREFIX)),
        pc.starts_with(txns.field("appId"), APPLICATION_RECORDS),
    )
    is_old = _is_before(txns, now_ms() - retention_ms)
    return _without(txns, pc.and_(is_application, is_old))


def _adds(file: pq.ParquetFile | None, changes: _Changes) -> Iterator[pa.StructArray]:
    """Live files: those of each row group of the previous checkpoint, and those of the commits."""
    changed = _changed(changes)
    groups = [] if file is None else groups_with(file.metadata, "add")
    for group in groups:
        yield _not_in(read_actions(file, "add", [group]), "path", changed)
    adds: list[Add] = changes.of(Add)
    yield pa.StructArray.from_arrays(
        [
            array_of([add.path for add in adds], pa.string()),
            _maps([add.partition_values for add in adds]),
            array_of([add.size for add in adds], pa.int64()),
            array_of([add.modification_time for add in adds], pa.int64()),
            array_of([bool(add.data_change) for add in adds], pa.bool_()),
            array_of([add.stats for add in adds], pa.string()),
        ],
        fields=list(SCHEMA.field("add").type),
    )


def _maps(values: Sequence[Mapping[str, str | None]]) -> pa.MapArray:
    """Partition values, without an object for each pair."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    keys = array_of(list(chain.from_iterable(values)), pa.string())
    items = array_of(list(chain.from_iterable(one.values() for one in values)), pa.string())
    kind = SCHEMA.field("add").type.field("partitionValues").type
    return pa.MapArray.from_arrays(number_array(ends), keys, items, kind)


def _changed(changes: _Changes) -> pa.Array:
    """Paths that the commits add or remove."""
    paths = [action.path for action in changes.actions if isinstance(action, Add | Remove)]
    return array_of(paths, pa.string())


def _tombstones(
    file: pq.ParquetFile | None,
    changes: _Changes,
    properties: dict[str, str],
    store_now_ms: Callable[[], int],
) -> pa.Table:
    """Tombstones within their retention; one without a time gets the present one."""
    tombstones = pa.Table.from_batches([], TOMBSTONES) if file is None else read_tombstones(file)
    removed: list[Remove] = changes.of(Remove)
    if not len(tombstones) and not removed:
        return tombstones
    now_ms = store_now_ms()
    later = pa.table(
        [
            array_of([action.path for action in removed], pa.string()),
            array_of([action.deletion_timestamp for action in removed], pa.int64()),
        ],
        TOMBSTONES,
    )
    tombstones = pa.concat_tables([_not_in(tombstones, "path", _changed(changes)), later])
    times = tombstones.column("deletionTimestamp").fill_null(scalar_of(now_ms, pa.int64()))
    tombstones = tombstones.set_column(1, TOMBSTONES.field(1), times)
    retention_ms = file_retention_ms(properties)
    horizon = scalar_of(now_ms - retention_ms, pa.int64())
    young = pc.greater(tombstones.column("deletionTimestamp"), horizon)
    return tombstones.filter(young)


def _removes(tombstones: pa.Table) -> Iterator[pa.StructArray]:
    for some in tombstones.to_batches(max_chunksize=ROWS_PER_GROUP):
        columns = (*some.columns, pa.repeat(scalar_of(False, pa.bool_()), len(some)))
        yield pa.StructArray.from_arrays(columns, fields=list(SCHEMA.field("remove").type))


def _not_in(rows: Any, name: str, values: pa.Array) -> Any:
    """The rows of an array or a table whose field has none of these values."""
    column = rows.field(name) if isinstance(rows, pa.StructArray) else rows.column(name)
    return _without(rows, pc.is_in(column, values))


def _without(rows: Any, which: Any) -> Any:
    """The rows for which a mask is false; copies nothing if that is all of them."""
    return rows.filter(pc.invert(which)) if pc.any(which).as_py() else rows
