"""Damage to a log is an error that names the file, never a shorter log (R66)."""

from __future__ import annotations

import random

import pytest

from tests.storage.number_log import OFF, TABLE, History, created, opened, plant, write
from txnlog.errors import CorruptLogError, LogGapError, UnsupportedProtocolError
from txnlog.storage.delta.actions import Protocol, Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore

# --- Damage (R66) ---------------------------------------------------------------------------------


def damaged(data: bytes, how: str) -> bytes:
    rng = random.Random(7)
    if how == "empty":
        return b""
    if how == "zeros":
        return bytes(len(data))
    if how == "half":
        return data[: len(data) // 2]
    if how == "line":
        return data[: data.rindex(b"\n", 0, -1) + 1]
    return rng.randbytes(len(data))


@pytest.mark.parametrize("how", ["empty", "zeros", "half", "line", "noise"])
@pytest.mark.parametrize("warm", [True, False])
def test_refresh_damaged_commit_is_an_error_that_names_the_file(
    store: ObjectStore, how: str, warm: bool
) -> None:
    """A half-written commit that reads as a smaller one is lost data (R66)."""
    log = created(store, 3)
    reader, _ = opened(store)
    writer, _ = opened(store)
    writer.commit([Txn("a", 1), Txn("b", 2)], operation="WRITE")
    write(writer, 5)
    path = commit_path(TABLE, log.version + 1)
    store.put(path, damaged(store.get(path), how))
    if not warm:
        reader = DeltaLog(store, TABLE, History(), settings=OFF)
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=f"{log.version + 1:020}.json"):
            reader.refresh()


def test_refresh_any_byte_of_a_commit_flipped_is_noticed(store: ObjectStore) -> None:
    """A flipped bit in a number still is JSON, and would move an offset (R66)."""
    log = created(store, 1)
    data = store.get(commit_path(TABLE, 1))
    body = data.index(b"\n")
    reader = DeltaLog(store, TABLE, History(), settings=OFF)
    for at in range(body + 1, len(data) - 1):
        flipped = bytearray(data)
        flipped[at] ^= 1
        store.put(commit_path(TABLE, 1), bytes(flipped))
        reader.invalidate()
        with pytest.raises(CorruptLogError, match=f"{1:020}.json"):
            reader.refresh()
    store.put(commit_path(TABLE, 1), data)
    reader.refresh()
    assert reader.version == log.version


def test_refresh_commits_of_another_tool_without_checksum_are_read(store: ObjectStore) -> None:
    """Spark's OPTIMIZE does not count lines; without a count there is no such check."""
    created(store)
    lines = (
        b'{"commitInfo":{"operation":"OPTIMIZE"}}',
        b'{"txn":{"appId":"x","version":5}}',
        b'{"cdc":{"path":"y"}}\n',
    )
    store.put(commit_path(TABLE, 1), b"\n".join(lines))
    log, view = opened(store)
    assert (log.version, view.numbers) == (1, {"x": 5})


@pytest.mark.parametrize(
    "other",
    [b"{}", b'{"version":10,"size":3}', b'{"commitInfo":{}}', b'{"txn":{"appId":"x","version":5}}'],
)
@pytest.mark.parametrize("warm", [True, False])
def test_newest_commit_replaced_by_other_json_is_damage(
    store: ObjectStore, other: bytes, warm: bool
) -> None:
    """Taken for a commit of another tool it would be silently lost, with all that it published."""
    created(store, 3)
    reader, _ = opened(store)
    writer, _ = opened(store)
    write(writer, 4)
    store.put(commit_path(TABLE, writer.version), other + b"\n")
    if not warm:
        reader = DeltaLog(store, TABLE, History(), settings=OFF)
    with pytest.raises(CorruptLogError, match=f"{writer.version:020}.json.*no operation"):
        reader.refresh()


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_open_gap_in_the_log_is_an_error_that_names_the_version(
    store: ObjectStore, missing: int
) -> None:
    """A commit missing in the middle must not read as the end of the log (R66)."""
    created(store, 5)
    store.delete([commit_path(TABLE, missing)])
    with pytest.raises(LogGapError, match=f"{commit_path(TABLE, missing)[-25:]}|commit is {1}"):
        opened(store)


def test_open_gap_after_the_checkpoint_is_an_error(store: ObjectStore) -> None:
    """The checkpoint does not cover what was lost after it."""
    log = created(store, 5)
    create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)
    write(log, 6)
    write(log, 7)
    store.delete([commit_path(TABLE, 6)])
    with pytest.raises(LogGapError, match=commit_path(TABLE, 6)):
        opened(store)


def test_catch_up_gap_is_an_error_that_names_the_version(store: ObjectStore) -> None:
    """The listing shows newer commits than the one that is gone."""
    created(store)
    late, _ = opened(store)
    writer, _ = opened(store)
    for number in range(1, 60):
        write(writer, number)
    store.delete([commit_path(TABLE, 50)])
    with pytest.raises(LogGapError, match=commit_path(TABLE, 50)):
        late.refresh()


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(3, 7, ["deletionVectors"], ["deletionVectors"]),
        Protocol(2, 5),
        Protocol(1, 3),
        Protocol(1, 7, None, ["rowTracking"]),
    ],
)
@pytest.mark.parametrize("cold", [True, False])
def test_refresh_unknown_protocol_is_refused(
    store: ObjectStore, protocol: Protocol, cold: bool
) -> None:
    """With deletion vectors, rows that txnlog would return are deleted (R38)."""
    created(store, 2)
    reader, _ = opened(store)
    other, _ = opened(store)
    plant(other, [protocol])
    if cold:
        reader = DeltaLog(store, TABLE, History(), settings=OFF)
    for _ in range(2):
        with pytest.raises(UnsupportedProtocolError, match="deletion|protocol"):
            reader.refresh()
