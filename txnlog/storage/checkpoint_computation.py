"""Computing a checkpoint: delta-rs does, on a log that was made small for it.

The checkpoint before and what the commits after it leave, put together as one commit, are a log in
a scratch folder, opened there anew; only the finished file goes back. So the same code serves
every store, and delta-rs never sees credentials nor keeps a handle.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from txnlog.storage.actions import (
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
from txnlog.storage.seals import Span, make_seal, split_footer

_SHARED_MEMORY = "/dev/shm"
_SPARE_BYTES = 32 << 20


def compute_checkpoint(
    before: bytes | None, commits: Sequence[Commit]
) -> tuple[bytes, dict[str, Any]]:
    """The Parquet file of a checkpoint, sealed, and what `_last_checkpoint` says of it.

    `before` is the checkpoint before, if there is one, `commits` are all that follow it.
    """
    from deltalake import DeltaTable

    commit = encode_commit(CommitInfo(), _reconciled(commits))
    size_bytes = len(before or b"") + len(commit)
    parent = _scratch_parent(size_bytes)
    with tempfile.TemporaryDirectory(prefix="txnlog-checkpoint-", dir=parent) as scratch:
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
    return _seal(parquet), hint


def _reconciled(commits: Sequence[Commit]) -> list[Action]:
    """What is left of commits taken together, by the action reconciliation of Delta's protocol.

    delta-rs would read each commit twice, at 0.6 ms; a transaction has at least three.
    """
    left: dict[tuple[str, str], Action] = {}
    for commit in commits:
        for action in commit.actions:
            match action:
                case Protocol() | Metadata():
                    key = (type(action).__name__, "")
                case Txn():
                    key = ("txn", action.app_id)
                case Add() | Remove():
                    key = ("file", action.path)
                case Adds():
                    raise TypeError("a commit lists its files one by one")
            left[key] = action
    return list(left.values())


def _seal(parquet: bytes) -> bytes:
    """The same Parquet file with a checksum of all its bytes, in one span."""
    footer_at = split_footer(parquet)
    body, footer = parquet[:footer_at], parquet[footer_at:]
    return body + make_seal([Span(footer_at, crc32(body))], footer) + footer


def _scratch_parent(size_bytes: int) -> str | None:
    """Memory where there is room for it, else None: the system's temporary folder.

    A disk pays for files that live for a moment long after: ext4 does not give out the inodes of
    files deleted in the last minute, and looks at each of them for every file that is created.
    """
    try:
        free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return None
    roomy = free_bytes > 4 * size_bytes + _SPARE_BYTES
    return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
