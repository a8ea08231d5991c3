"""Commits are a chain, seals name their file: what was lost, restored or swapped is found (R66)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.number_log import OFF, TABLE, History, created, opened, write
from txnlog.errors import CorruptLogError, LogGapError
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.delta.actions import decode_commit, digest_of
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, DeltaLog, LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, list_whole_log
from txnlog.storage.store import seals
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory

INLINE = LogSettings(checkpoint_interval=5, checkpoint_mode="inline")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url = "memory://" if request.param == "memory" else str(tmp_path / "root")
    return ObjectStore.from_url(url)


def checkpoint(store: ObjectStore, table: str = TABLE) -> int:
    return create_checkpoint(store, table, trust_ms=OFF.trust_ms)


def numbers(store: ObjectStore) -> dict[str, int]:
    return opened(store)[1].numbers


# --- The chain ------------------------------------------------------------------------------------


def test_each_commit_names_the_digest_of_the_one_before(store: ObjectStore) -> None:
    created(store, 3)
    blobs = [store.get(commit_path(TABLE, version)) for version in range(4)]
    named = [decode_commit(blob, version=0, source="").info.previous for blob in blobs]
    assert named == ["", *(digest_of(blob) for blob in blobs[:-1])]


def test_chain_goes_on_across_a_checkpoint_and_a_cold_start(store: ObjectStore) -> None:
    """The first commit after a checkpoint has a predecessor that nobody reads."""
    created(store, 3)
    checkpoint(store)
    log, _ = opened(store)
    assert write(log, 4) == Committed(4)
    before = digest_of(store.get(commit_path(TABLE, 3)))
    data = store.get(commit_path(TABLE, 4))
    assert decode_commit(data, version=4, source="").info.previous == before


@pytest.mark.parametrize("is_cold", [True, False])
def test_older_copy_of_a_commit_is_an_error_that_names_it(
    store: ObjectStore, is_cold: bool
) -> None:
    """Whole in itself, and not what all later commits rest on."""
    log = created(store, 2)
    warm, _ = opened(store)
    older = store.get(commit_path(TABLE, 2))
    other = created(ObjectStore.from_url("memory://"), 2)
    foreign = other.store.get(commit_path(TABLE, 2))
    assert foreign != older
    write(log, 3)
    store.put(commit_path(TABLE, 2), foreign)
    reader = DeltaLog(store, TABLE, History(), settings=OFF) if is_cold else warm
    if is_cold:
        with pytest.raises(CorruptLogError, match=f"{3:020}.json.*does not follow|{2:020}.json"):
            reader.refresh()
    else:
        # What it has read is right; the next commit rests on that.
        reader.refresh()
        assert reader.version == 3


def test_commit_that_was_lost_and_written_again_is_found_by_who_read_it(
    store: ObjectStore,
) -> None:
    """A cold process cannot know of it, and takes its place; a warm one must not follow."""
    created(store, 2)
    warm, seen = opened(store)
    store.delete([commit_path(TABLE, 2)])
    cold, _ = opened(store)
    assert write(cold, 7) == Committed(2)
    assert write(cold, 8) == Committed(3)
    with pytest.raises(CorruptLogError, match=f"{2:020}.json: this commit is gone or was replaced"):
        warm.refresh()
    assert seen.numbers == {"1": 1, "2": 2}


def test_missing_newest_commit_is_an_error_for_who_read_it(store: ObjectStore) -> None:
    """The log must not go back by one without a word, for reader and writer."""
    created(store, 3)
    warm, seen = opened(store)
    store.delete([commit_path(TABLE, 3)])
    for _ in range(2):
        with pytest.raises(LogGapError, match=f"{3:020}.json: this commit was read before"):
            warm.refresh(sure=True)
    assert seen.numbers["3"] == 3


def test_missing_newest_commit_with_a_checkpoint_is_an_error_for_everybody(
    store: ObjectStore,
) -> None:
    """There was a version 3, and there may have been a fourth."""
    created(store, 3)
    checkpoint(store)
    store.delete([commit_path(TABLE, 3)])
    with pytest.raises(LogGapError, match=f"{3:020}.json: the newest commit is missing"):
        opened(store)


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


def test_commit_of_another_log_is_an_error_that_names_it(store: ObjectStore) -> None:
    """A file copied between tables, or from a copy of the cluster."""
    created(store, 2)
    reader, _ = opened(store)
    foreign = created(ObjectStore.from_url("memory://"), 3).store.get(commit_path(TABLE, 3))
    store.put(commit_path(TABLE, 3), foreign)
    for log in (reader, DeltaLog(store, TABLE, History(), settings=OFF)):
        with pytest.raises(CorruptLogError, match=f"{3:020}.json: this commit does not follow"):
            log.refresh()


def test_commits_of_earlier_versions_have_no_digest_and_are_read(store: ObjectStore) -> None:
    """A root that was written before there was a chain."""
    log = created(store, 1)
    log.digest = ""
    assert write(log, 2) == Committed(2)
    assert write(log, 3) == Committed(3)
    assert numbers(store) == {"1": 1, "2": 2, "3": 3}


# --- Checkpoints ----------------------------------------------------------------------------------


def flip(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flip,
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "zeros": lambda data, rng: bytes(len(data)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_passed_over_for_the_one_before(
    store: ObjectStore, how: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All that is needed is there; the operator is told which file to look at."""
    log = created(store, 4, INLINE)
    for number in range(5, 13):
        write(log, number)
    truth = numbers(store)
    path = checkpoint_path(TABLE, 10)
    store.put(path, DAMAGE[how](store.get(path), random.Random(seed)))
    store.delete([commit_path(TABLE, version) for version in range(5)])
    with caplog.at_level(logging.ERROR):
        assert numbers(store) == truth
    assert path in caplog.text


def test_next_checkpoint_is_never_made_from_a_damaged_one(store: ObjectStore, seed: int) -> None:
    """42 of 250 flipped bits ended in lost records, each in a checkpoint with a seal of its own."""
    log = created(store, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
    truth = numbers(store)
    path = checkpoint_path(TABLE, 10)
    whole = store.get(path)
    rng = random.Random(seed)
    for _ in range(60):
        store.put(path, flip(whole, rng))
        made = checkpoint(store)
        assert (made, numbers(store)) == (11, truth)
        store.delete([checkpoint_path(TABLE, 11), f"{TABLE}/_delta_log/_last_checkpoint"])


@pytest.mark.parametrize("from_where", ["older version", "other table", "other cluster"])
def test_checkpoint_of_something_else_under_this_name_is_passed_over(
    store: ObjectStore, from_where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is whole, and its seal is right: for another file."""
    log = created(store, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
    truth = numbers(store)
    if from_where == "older version":
        data = store.get(checkpoint_path(TABLE, 5))
    else:
        elsewhere = ObjectStore.from_url("memory://")
        other = created(elsewhere, 4, INLINE)
        for number in range(5, 12):
            write(other, 100 + number)
        data = elsewhere.get(checkpoint_path(TABLE, 10))
    store.put(checkpoint_path(TABLE, 10), data)
    if from_where == "older version":
        with caplog.at_level(logging.ERROR):
            assert numbers(store) == truth
        assert "written under another name" in caplog.text
    else:
        with pytest.raises(CorruptLogError, match=f"{10:020}.checkpoint.*not made from the commit"):
            opened(store)


def test_clean_up_deletes_nothing_that_only_a_damaged_checkpoint_replaces() -> None:
    """After it nobody could build the table any more."""
    shared = SharedMemory()
    store = shared.open()
    log = created(store, 4, INLINE)
    for number in range(5, 12):
        write(log, number)
    path = checkpoint_path(TABLE, 10)
    store.put(path, store.get(path)[:-9])
    before = sorted(item.path for item in list_whole_log(store, TABLE).objects)
    shared.clock.advance_ms(3 * OFF.log_retention_ms)
    with pytest.raises(CorruptLogError, match=path):
        clean_up(store, TABLE, retention_ms=OFF.log_retention_ms)
    assert sorted(item.path for item in list_whole_log(store, TABLE).objects) == before


def test_checkpoint_without_a_seal_has_the_size_that_its_hint_says(tmp_path: Path) -> None:
    """Of another tool's checkpoint nothing else can be checked."""
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


# --- Data files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [3, 2_000])
def test_data_file_of_another_name_is_damage(store: ObjectStore, records: int) -> None:
    """Whole in itself: an upload under a wrong name, a restore of the wrong file."""
    for name in ("a", "b"):
        lists = RecordLists([1] * records, [None] * records, [name.encode()] * records)
        write_batch_file(store, f"t/part-0-{name}.parquet", lists)
    store.put("t/part-0-a.parquet", store.get("t/part-0-b.parquet"))
    size_bytes = len(store.get("t/part-0-a.parquet"))
    for known in (None, size_bytes):
        with pytest.raises(CorruptLogError, match="part-0-a.parquet.*written under another name"):
            list(read_batch_file(store, FileSpan("t/part-0-a.parquet", size_bytes=known)))


def test_file_sealed_by_an_earlier_version_is_read_and_checked(store: ObjectStore) -> None:
    """Its seal has no name."""
    lists = RecordLists([1, 2], [None, b"k"], [b"a", b"b"])
    write_batch_file(store, "t/part-0-a.parquet", lists)
    data = store.get("t/part-0-a.parquet")
    at = seals.split_footer(data)
    pages = data[: data.rindex(seals.MAGIC) - 12 - 16]
    body = seals._SPAN.pack(len(pages), crc32(pages)) + (1).to_bytes(4, "little")
    end = crc32(data[at:], crc32(body)).to_bytes(4, "little") + seals.MAGIC_WITHOUT_NAME
    older = pages + body + end + data[at:]
    store.put("t/part-0-b.parquet", older)
    batches = list(read_batch_file(store, FileSpan("t/part-0-b.parquet", size_bytes=len(older))))
    assert pa.Table.from_batches(batches).column("value").to_pylist() == [b"a", b"b"]
    store.put("t/part-0-b.parquet", b"PAR2" + older[4:])
    with pytest.raises(CorruptLogError, match="checksum"):
        list(read_batch_file(store, FileSpan("t/part-0-b.parquet", size_bytes=len(older))))
