"""Computing a checkpoint: delta-rs does what is live, on a log that was made small for it.

The checkpoint before and what the commits after it leave, put together as one commit, are a log in
a scratch folder, opened there anew; only the finished file goes back. So the same code serves
every store, and delta-rs never sees credentials nor keeps a handle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    is_expired,
    is_horizon,
)
from txnlog.protocol.vacuum import file_retention_ms
from txnlog.storage.delta import checkpoint_file
from txnlog.storage.delta.actions import (
    Action,
    Add,
    Adds,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_commit,
)
from txnlog.storage.store.scratch import scratch_folder
from txnlog.storage.store.seals import Span, make_seal, split_footer

_LONG_AGO = -(1 << 62)
"""A time of removal that is older than any retention, by any clock."""


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
    older than the table's retention are left out by the store's time, which is asked for only
    where there are any.
    """
    actions, horizons = _reconciled(commits)
    tombstones = checkpoint_file.TOMBSTONES.empty_table()
    if before is not None:
        tombstones = checkpoint_file.read_tombstones(checkpoint_file.open_checkpoint(before))
        before = checkpoint_file.without_tombstones(before)
        if horizons:
            before = checkpoint_file.without_expired(
                before,
                transactions_ms=horizons.get(EXPIRED_TRANSACTIONS, -1),
                producers_ms=horizons.get(EXPIRED_PRODUCERS, -1),
            )
    parquet, hint = _computed(before, [_long_gone(action) for action in actions])
    if len(tombstones) or any(isinstance(action, Remove) for action in actions):
        now_ms = store_now_ms()
        retention_ms = file_retention_ms(checkpoint_file.configuration(parquet))
        tombstones = _with_removed(tombstones, actions, now_ms)
        young = pc.greater(tombstones.column("deletionTimestamp"), now_ms - retention_ms)
        tombstones = tombstones.filter(young)
        parquet = checkpoint_file.with_tombstones(parquet, tombstones)
    sealed = _seal(parquet, name, note)
    counts = {"size": hint["size"] + len(tombstones), "sizeInBytes": len(sealed)}
    return sealed, hint | counts


def _long_gone(action: Action) -> Action:
    """delta-rs takes the file out of the table, and leaves no tombstone."""
    return replace(action, deletion_timestamp=_LONG_AGO) if isinstance(action, Remove) else action


def _with_removed(before: pa.Table, actions: Sequence[Action], now_ms: int) -> pa.Table:
    """Tombstones with those of later actions; one without a time is taken for one of now."""
    removed = [action for action in actions if isinstance(action, Remove)]
    paths = [action.path for action in actions if isinstance(action, Add | Remove)]
    times = [action.deletion_timestamp for action in removed]
    after = pa.table([[action.path for action in removed], times], checkpoint_file.TOMBSTONES)
    changed = pc.is_in(before.column("path"), pa.array(paths, pa.string()))
    found = pa.concat_tables([before.filter(pc.invert(changed)), after])
    return found.set_column(
        1, checkpoint_file.TOMBSTONES.field(1), found.column(1).fill_null(now_ms)
    )


def _computed(before: bytes | None, actions: Sequence[Action]) -> tuple[bytes, dict[str, Any]]:
    from deltalake import DeltaTable

    commit = encode_commit(CommitInfo(), actions)
    with scratch_folder(len(before or b"") + len(commit)) as scratch:
        files = {f"{0:020}.json": commit}
        if before is not None:
            files = {
                f"{0:020}.checkpoint.parquet": before,
                f"{1:020}.json": commit,
                "_last_checkpoint": b'{"version":0,"size":0}',
            }
        log = os.path.join(scratch, "_delta_log")
        os.mkdir(log)
        for name, data in files.items():
            with open(os.path.join(log, name), "wb") as copy:
                copy.write(data)
        opened = DeltaTable(scratch)
        opened.create_checkpoint()
        name = f"{opened.version():020}.checkpoint.parquet"
        with open(os.path.join(log, name), "rb") as made:
            parquet = made.read()
        with open(os.path.join(log, "_last_checkpoint"), "rb") as made:
            hint = msgspec.json.decode(made.read(), type=dict[str, Any])
    return parquet, hint


def _reconciled(commits: Sequence[Commit]) -> tuple[list[Action], dict[str, int]]:
    """What is left of commits taken together, by the action reconciliation of Delta's protocol.

    And the horizons among them: what was last written before one is forgotten. delta-rs would read
    each commit twice, at 0.6 ms; a transaction has at least three.
    """
    left: dict[tuple[str, str], Action] = {}
    horizons: dict[str, int] = {}
    for commit in commits:
        for action in commit.actions:
            match action:
                case Protocol() | Metadata():
                    key = (type(action).__name__, "")
                case Txn():
                    key = ("txn", action.app_id)
                    if is_horizon(action.app_id):
                        horizons[action.app_id] = action.version
                        _forget(left, horizons)
                case Add() | Remove():
                    key = ("file", action.path)
                case Adds():
                    raise TypeError("a commit lists its files one by one")
            left[key] = action
    return list(left.values()), horizons


def _forget(left: dict[tuple[str, str], Action], horizons: dict[str, int]) -> None:
    for key, action in list(left.items()):
        if isinstance(action, Txn) and is_expired(
            action.app_id,
            action.last_updated,
            transactions_ms=horizons.get(EXPIRED_TRANSACTIONS, -1),
            producers_ms=horizons.get(EXPIRED_PRODUCERS, -1),
        ):
            del left[key]


def _seal(parquet: bytes, name: str, note: bytes) -> bytes:
    """The same Parquet file with a checksum of all its bytes, in one span."""
    footer_at = split_footer(parquet)
    body, footer = parquet[:footer_at], parquet[footer_at:]
    span = Span(footer_at, crc32(body))
    return body + make_seal([span], footer, name=name, note=note) + footer
