"""Each commit names the digest of the one before: a log that was changed behind us is an error."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.number_log import OFF, TABLE, created, opened, write
from txnlog.errors import CorruptLogError, LogGapError, TxnLogError
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.actions import decode_commit, encode_commit
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Conflict
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.counts import count


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore.from_url(str(tmp_path / "root"))


def checkpoint(store: ObjectStore) -> int:
    return create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)


def write_again(store: ObjectStore, version: int) -> None:
    """Put another commit of the same actions in the place of one."""
    path = commit_path(TABLE, version)
    found = decode_commit(store.get(path), version=version, source=path)
    store.put(path, encode_commit(replace(found.info, write_id="f" * 32), found.actions))


def found_by(kind: str, error: pytest.ExceptionInfo[TxnLogError], path: str) -> None:
    """The error names the file; both sides of the damage are counted."""
    assert error.value.context["file"] == path
    count("damage planted", kind)
    count("damage found", kind)


# --- Commits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cold", [True, False])
def test_commit_that_was_lost_and_written_again_is_named(store: ObjectStore, cold: bool) -> None:
    """Its successors were decided on another one (R66)."""
    log = created(store, 3)
    reader, _ = opened(store)
    for number in (4, 5):
        write(log, number)
    write_again(store, 4)
    read = partial(opened, store) if cold else reader.refresh
    with pytest.raises(CorruptLogError, match="does not follow") as error:
        read()
    found_by("a commit written again", error, commit_path(TABLE, 5))


def test_reader_of_a_commit_that_was_replaced_names_it(store: ObjectStore) -> None:
    """What it handed out is not what others read (R66)."""
    log = created(store, 4)
    reader, _ = opened(store)
    write_again(store, 4)
    log, _ = opened(store)
    write(log, 5)
    with pytest.raises(CorruptLogError, match="replaced") as error:
        reader.refresh()
    found_by("a commit written again", error, commit_path(TABLE, 4))


def test_newest_commit_that_is_gone_is_missed_by_whoever_read_it(store: ObjectStore) -> None:
    """A log that is one shorter reads as a sound one, and hands its offsets out again (R66)."""
    created(store, 4)
    reader, _ = opened(store)
    store.delete([commit_path(TABLE, 4)])
    for _ in range(2):
        with pytest.raises(LogGapError, match="read before and is gone") as error:
            reader.refresh()
    found_by("the newest commit missing", error, commit_path(TABLE, 4))


def test_log_that_was_replaced_by_another_is_no_news_but_an_error(store: ObjectStore) -> None:
    """A warm process would go on with offsets of the one in the other (R66)."""
    created(store, 4)
    reader, _ = opened(store)
    write_again(store, 4)
    reader.invalidate()
    with pytest.raises(CorruptLogError, match="differs from the one this process read") as error:
        reader.refresh()
    found_by("a commit written again", error, commit_path(TABLE, 4))


def test_warm_writer_never_fills_a_hole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits above the hole would follow one that they were not decided on (R62, R66)."""
    monkeypatch.setattr(delta_log, "_LOCAL_CHECK_SLOTS_MS", -1)
    log = created(store, 3)
    other, _ = opened(store)
    for number in (4, 5):
        write(other, number)
    store.delete([commit_path(TABLE, 4)])
    assert write(log, 9) == Conflict(4)
    with pytest.raises(LogGapError) as error:
        log.refresh()
    found_by("a commit missing in the middle", error, commit_path(TABLE, 4))


# --- Checkpoints ----------------------------------------------------------------------------------


def test_checkpoint_of_another_commit_is_named(store: ObjectStore) -> None:
    """One of the two was restored from another time (R66)."""
    created(store, 4)
    version = checkpoint(store)
    write_again(store, version)
    with pytest.raises(CorruptLogError, match="was not made from") as error:
        opened(store)
    found_by("a checkpoint of another commit", error, checkpoint_path(TABLE, version))


def test_newest_commit_that_is_gone_is_missed_by_its_checkpoint(store: ObjectStore) -> None:
    """Also by a process that has never read it (R66)."""
    created(store, 4)
    version = checkpoint(store)
    store.delete([commit_path(TABLE, version)])
    with pytest.raises(LogGapError, match="newest commit is missing") as error:
        opened(store)
    found_by("the newest commit missing", error, commit_path(TABLE, version))


@pytest.mark.parametrize("how", ["a flipped bit", "another file under its name", "cut, unsealed"])
def test_damaged_checkpoint_is_passed_over_for_the_one_before(
    store: ObjectStore, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next one is computed from an intact one, with nothing lost (R66)."""
    log = created(store, 3)
    before = checkpoint(store)
    assert clean_up(store, TABLE, retention_ms=-1)
    for number in (4, 5):
        write(log, number)
    path = checkpoint_path(TABLE, checkpoint(store))
    data = store.get(path)
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 4
    if how == "another file under its name":
        damaged = bytearray(store.get(checkpoint_path(TABLE, before)))
    elif how == "cut, unsealed":
        damaged = bytearray(data.replace(b"TXNLSEA2", b"12345678"))
        damaged[4:5] = b""
    store.put(path, bytes(damaged))
    with caplog.at_level(logging.ERROR):
        reader, seen = opened(store)
    assert path in caplog.text
    assert (reader.version, seen.numbers) == (5, {f"{n}": n for n in range(1, 6)})
    count("damage planted", f"a checkpoint: {how}")
    count("damage found", f"a checkpoint: {how}")
    write(log, 6)
    assert checkpoint(store) == 6
    store.delete([path, checkpoint_path(TABLE, before)])
    assert opened(store)[1].numbers == {f"{n}": n for n in range(1, 7)}


def test_no_checkpoint_is_made_of_a_chain_that_is_broken(store: ObjectStore) -> None:
    """It would be sealed, and nobody could tell any more (R66)."""
    log = created(store, 3)
    checkpoint(store)
    for number in (4, 5):
        write(log, number)
    write_again(store, 4)
    with pytest.raises(CorruptLogError) as error:
        checkpoint(store)
    found_by("a commit written again", error, commit_path(TABLE, 5))


def test_clean_up_keeps_the_commits_of_a_checkpoint_that_is_damaged(store: ObjectStore) -> None:
    """They are all that is left of what it held (R66)."""
    created(store, 5)
    path = checkpoint_path(TABLE, checkpoint(store))
    damaged = bytearray(store.get(path))
    damaged[len(damaged) // 3] ^= 4
    store.put(path, bytes(damaged))
    with pytest.raises(CorruptLogError):
        clean_up(store, TABLE, retention_ms=-1)
    assert opened(store)[1].numbers == {f"{n}": n for n in range(1, 6)}
