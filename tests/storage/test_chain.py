"""Commits form a chain: a log whose commits or checkpoints were changed, lost or swapped (R66)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.storage.number_log import OFF, TABLE, checkpoint, created, opened, write
from txnlog.errors import CorruptLogError, LogGapError, TxnLogError
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.actions import (
    decode_commit,
    digest_of,
    encode_commit,
)
from txnlog.storage.delta.delta_log import Committed, Conflict, LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, list_whole_log
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.counts import count
from txnlog.testing.faults import SharedMemory

INLINE = LogSettings(checkpoint_interval=5, checkpoint_mode="inline")


def numbers(store: ObjectStore) -> dict[str, int]:
    return opened(store)[1].numbers


def write_again(store: ObjectStore, version: int) -> None:
    """Replace a commit by another one with the same actions."""
    path = commit_path(TABLE, version)
    found = decode_commit(store.get(path), version=version, source=path)
    store.put(path, encode_commit(replace(found.info, write_id="f" * 32), found.actions))


def found_by(kind: str, error: pytest.ExceptionInfo[TxnLogError], path: str) -> None:
    """The error names the file; the damage is counted as planted and as found."""
    assert error.value.context["file"] == path
    count("damage planted", kind)
    count("damage found", kind)


# --- Commits --------------------------------------------------------------------------------------


def test_each_commit_holds_the_digest_of_the_one_before(store: ObjectStore) -> None:
    created(store, 3)
    blobs = [store.get(commit_path(TABLE, version)) for version in range(4)]
    previous = [decode_commit(blob, version=0, source="").info.previous for blob in blobs]
    assert previous == ["", *(digest_of(blob) for blob in blobs[:-1])]


def test_chain_continues_after_a_checkpoint_and_a_cold_start(store: ObjectStore) -> None:
    """The first commit after a checkpoint has a predecessor that no process reads."""
    created(store, 3)
    checkpoint(store)
    log, _ = opened(store)
    assert write(log, 4) == Committed(4)
    before = digest_of(store.get(commit_path(TABLE, 3)))
    data = store.get(commit_path(TABLE, 4))
    assert decode_commit(data, version=4, source="").info.previous == before


def test_commits_of_earlier_versions_have_no_digest_and_are_read(store: ObjectStore) -> None:
    """A root that was written before commits had digests."""
    log = created(store, 1)
    log.digest = ""
    assert write(log, 2) == Committed(2)
    assert write(log, 3) == Committed(3)
    assert numbers(store) == {"1": 1, "2": 2, "3": 3}


@pytest.mark.parametrize("cold", [True, False])
def test_commit_written_again_below_its_successor_is_an_error(
    store: ObjectStore, cold: bool
) -> None:
    """The successor was decided on another commit (R66)."""
    log = created(store, 3)
    reader, _ = opened(store)
    for number in (4, 5):
        write(log, number)
    write_again(store, 4)
    read = partial(opened, store) if cold else reader.refresh
    with pytest.raises(CorruptLogError, match="does not follow") as error:
        read()
    found_by("a commit written again", error, commit_path(TABLE, 5))


def test_commit_of_another_log_below_its_successor_is_an_error(store: ObjectStore) -> None:
    """It is intact, but later commits do not depend on it; a warm reader has read the right one."""
    log = created(store, 2)
    warm, _ = opened(store)
    original = store.get(commit_path(TABLE, 2))
    other = created(ObjectStore.from_url("memory://"), 2)
    foreign = other.store.get(commit_path(TABLE, 2))
    assert foreign != original
    write(log, 3)
    store.put(commit_path(TABLE, 2), foreign)
    with pytest.raises(CorruptLogError, match=f"{3:020}.json.*does not follow|{2:020}.json"):
        opened(store)
    warm.refresh()
    assert warm.version == 3


@pytest.mark.parametrize("cold", [True, False])
def test_newest_commit_of_another_log_is_an_error(store: ObjectStore, cold: bool) -> None:
    """A file copied between tables, or from a copy of the cluster."""
    created(store, 2)
    reader, _ = opened(store)
    foreign = created(ObjectStore.from_url("memory://"), 3).store.get(commit_path(TABLE, 3))
    store.put(commit_path(TABLE, 3), foreign)
    read = partial(opened, store) if cold else reader.refresh
    with pytest.raises(CorruptLogError, match=f"{3:020}.json: this commit does not follow"):
        read()


@pytest.mark.parametrize("how", ["overwritten", "lost and written again"])
def test_reader_of_a_replaced_commit_raises_at_its_successor(store: ObjectStore, how: str) -> None:
    """A cold process cannot detect it and continues; a warm one must not follow (R66)."""
    created(store, 4)
    warm, seen = opened(store)
    if how == "overwritten":
        write_again(store, 4)
        cold, _ = opened(store)
    else:
        store.delete([commit_path(TABLE, 4)])
        cold, _ = opened(store)
        assert write(cold, 7) == Committed(4)
    assert write(cold, 8) == Committed(5)
    with pytest.raises(CorruptLogError, match="this commit is gone or was replaced") as error:
        warm.refresh()
    found_by("a commit written again", error, commit_path(TABLE, 4))
    assert seen.numbers == {f"{n}": n for n in range(1, 5)}


def test_replaced_newest_commit_is_an_error_for_a_process_that_read_it(store: ObjectStore) -> None:
    """A warm process would use the offsets of one commit in the other (R66)."""
    created(store, 4)
    reader, _ = opened(store)
    write_again(store, 4)
    reader.invalidate()
    with pytest.raises(CorruptLogError, match="differs from the one this process read") as error:
        reader.refresh()
    found_by("a commit written again", error, commit_path(TABLE, 4))


@pytest.mark.parametrize("sure", [True, False])
def test_missing_newest_commit_is_an_error_for_a_process_that_read_it(
    store: ObjectStore, sure: bool
) -> None:
    """A log without its newest commit looks intact, and would assign its offsets again (R66)."""
    created(store, 4)
    warm, seen = opened(store)
    store.delete([commit_path(TABLE, 4)])
    for _ in range(2):
        with pytest.raises(LogGapError, match="this commit was read before and is gone") as error:
            # Without `sure` an object store is checked only every few seconds.
            warm.refresh(sure=sure or not store.is_local)
    found_by("the newest commit missing", error, commit_path(TABLE, 4))
    assert seen.numbers["4"] == 4


def test_hole_is_an_error_that_names_the_missing_commit(store: ObjectStore) -> None:
    """A reader below it would wait for ever."""
    log = created(store, 2)
    warm, _ = opened(store)
    for number in (3, 4, 5):
        write(log, number)
    store.delete([commit_path(TABLE, 3)])
    with pytest.raises(LogGapError, match=f"{3:020}.json: this commit is missing"):
        warm.refresh(sure=True)
    with pytest.raises(LogGapError, match=f"{3:020}.json"):
        opened(store)


def test_warm_writer_never_fills_a_hole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits above the hole would follow one that they were not decided on (R62, R66)."""
    monkeypatch.setattr(delta_log, "_LOOK_MS", -1)
    log = created(store, 3)
    other, _ = opened(store)
    for number in (4, 5):
        write(other, number)
    store.delete([commit_path(TABLE, 4)])
    assert write(log, 9) == Conflict(4)
    with pytest.raises(LogGapError) as error:
        log.refresh()
    found_by("a commit missing in the middle", error, commit_path(TABLE, 4))


# --- Checkpoints and their commits ----------------------------------------------------------------


def test_checkpoint_of_a_commit_that_was_replaced_is_an_error(store: ObjectStore) -> None:
    """One of the two was restored from another time (R66)."""
    created(store, 4)
    version = checkpoint(store)
    write_again(store, version)
    with pytest.raises(CorruptLogError, match="was not made from") as error:
        opened(store)
    found_by("a checkpoint of another commit", error, checkpoint_path(TABLE, version))


def test_checkpoint_of_another_log_is_an_error(store: ObjectStore) -> None:
    """It is intact, and its name and seal are right."""
    log = created(store, 4, INLINE)
    elsewhere = ObjectStore.from_url("memory://")
    other = created(elsewhere, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
        write(other, 100 + number)
    store.put(checkpoint_path(TABLE, 10), elsewhere.get(checkpoint_path(TABLE, 10)))
    with pytest.raises(CorruptLogError, match=f"{10:020}.checkpoint.*not made from the commit"):
        opened(store)


def test_missing_newest_commit_with_a_checkpoint_is_an_error_for_any_process(
    store: ObjectStore,
) -> None:
    """Later commits may be missing, too; a process that never read it also notices (R66)."""
    created(store, 4)
    version = checkpoint(store)
    store.delete([commit_path(TABLE, version)])
    with pytest.raises(LogGapError, match="the newest commit is missing") as error:
        opened(store)
    found_by("the newest commit missing", error, commit_path(TABLE, version))


def test_no_checkpoint_is_made_of_a_broken_chain(store: ObjectStore) -> None:
    """Its seal would hide the damage (R66)."""
    log = created(store, 3)
    checkpoint(store)
    for number in (4, 5):
        write(log, number)
    write_again(store, 4)
    with pytest.raises(CorruptLogError) as error:
        checkpoint(store)
    found_by("a commit written again", error, commit_path(TABLE, 5))


# --- Damaged checkpoints --------------------------------------------------------------------------


def flip(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def cut_without_a_seal(data: bytes, rng: random.Random) -> bytes:
    unsealed = data.replace(b"TXNLSEA2", b"12345678")
    return unsealed[:4] + unsealed[5:]


Damage = Callable[[bytes, random.Random], bytes]
DAMAGE: dict[str, Damage | None] = {
    "a flipped bit": flip,
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "cut, unsealed": cut_without_a_seal,
    "zeros": lambda data, rng: bytes(len(data)),
    "another file under its name": None,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_replaced_by_the_one_before(
    store: ObjectStore, how: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before and the commits after it have everything; the log line names the file.

    The next checkpoint is computed from an intact one, with nothing lost (R66).
    """
    log = created(store, 3)
    before = checkpoint(store)
    assert clean_up(store, TABLE, retention_ms=-1)
    log.refresh()
    for number in (4, 5):
        write(log, number)
    path = checkpoint_path(TABLE, checkpoint(store))
    damage = DAMAGE[how]
    if damage is None:
        damaged = store.get(checkpoint_path(TABLE, before))
    else:
        damaged = damage(store.get(path), random.Random(seed))
    store.put(path, damaged)
    with caplog.at_level(logging.ERROR):
        reader, seen = opened(store)
    assert path in caplog.text
    assert ("written under another name" in caplog.text) is (damage is None)
    assert (reader.version, seen.numbers) == (5, {f"{n}": n for n in range(1, 6)})
    count("damage planted", f"a checkpoint: {how}")
    count("damage found", f"a checkpoint: {how}")
    write(log, 6)
    assert numbers(store) == {f"{n}": n for n in range(1, 7)}
    assert checkpoint(store) == 6
    store.delete([path, checkpoint_path(TABLE, before)])
    assert numbers(store) == {f"{n}": n for n in range(1, 7)}


def test_next_checkpoint_is_never_made_from_a_damaged_one(store: ObjectStore, seed: int) -> None:
    """42 of 250 flipped bits ended in lost records, each in a checkpoint with a seal of its own."""
    log = created(store, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
    truth = numbers(store)
    path = checkpoint_path(TABLE, 10)
    intact = store.get(path)
    rng = random.Random(seed)
    for _ in range(60):
        store.put(path, flip(intact, rng))
        made = checkpoint(store)
        assert (made, numbers(store)) == (11, truth)
        store.delete([checkpoint_path(TABLE, 11), f"{TABLE}/_delta_log/_last_checkpoint"])


@pytest.mark.parametrize("how", ["a flipped bit", "cut"])
def test_clean_up_keeps_the_commits_of_a_damaged_checkpoint(how: str, seed: int) -> None:
    """No other file has their content (R66)."""
    shared = SharedMemory()
    store = shared.open()
    log = created(store, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
    path = checkpoint_path(TABLE, 10)
    damaged = DAMAGE[how]
    assert damaged is not None
    store.put(path, damaged(store.get(path), random.Random(seed)))
    before = sorted(item.path for item in list_whole_log(store, TABLE).objects)
    shared.clock.advance_ms(3 * OFF.log_retention_ms)
    with pytest.raises(CorruptLogError, match=path):
        clean_up(store, TABLE, retention_ms=OFF.log_retention_ms)
    assert sorted(item.path for item in list_whole_log(store, TABLE).objects) == before
    assert numbers(store) == {f"{n}": n for n in range(1, 12)}


def test_clean_up_keeps_all_commits_if_the_only_checkpoint_is_damaged(
    store: ObjectStore, seed: int
) -> None:
    created(store, 5)
    path = checkpoint_path(TABLE, checkpoint(store))
    store.put(path, flip(store.get(path), random.Random(seed)))
    with pytest.raises(CorruptLogError):
        clean_up(store, TABLE, retention_ms=-1)
    assert numbers(store) == {f"{n}": n for n in range(1, 6)}


def test_checkpoint_without_a_seal_has_the_size_in_its_hint(tmp_path: Path) -> None:
    """Nothing else of another tool's checkpoint can be checked."""
    from deltalake import DeltaTable

    store = ObjectStore.from_url(str(tmp_path / "root"))
    created(store, 3)
    DeltaTable(str(tmp_path / "root" / TABLE)).create_checkpoint()
    truth = numbers(store)
    path = checkpoint_path(TABLE, 3)
    table = pq.read_table(pa.BufferReader(store.get(path)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.slice(0, 2), sink)
    store.put(path, sink.getvalue().to_pybytes())
    assert numbers(store) == truth
    store.delete([commit_path(TABLE, 0)])
    with pytest.raises(CorruptLogError, match="_last_checkpoint says"):
        opened(store)
