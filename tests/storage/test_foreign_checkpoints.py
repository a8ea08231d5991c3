"""The next checkpoint where the previous one does not decode: of another tool, without a seal."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tests.storage.foreign_checkpoints import garbled
from tests.storage.number_log import TABLE, checkpoint, created, opened, plant, write
from txnlog.errors import CorruptLogError, OutOfMemoryError
from txnlog.storage.delta import checkpoints
from txnlog.storage.delta.actions import Protocol, Remove, Txn
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, list_whole_log
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.counts import count

INLINE = LogSettings(checkpoint_interval=5, checkpoint_mode="inline")


def numbers(store: ObjectStore) -> dict[str, int]:
    return opened(store)[1].numbers


@pytest.mark.parametrize("how", ["metaData.id", "remove.path", "no Parquet"])
def test_checkpoint_of_another_tool_that_does_not_decode_is_replaced(
    store: ObjectStore, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no seal, so its bytes look intact: the next one is made from the one before (R66)."""
    log = created(store, 3)
    before = checkpoint(store)
    assert log.commit([Txn("4", 4), Remove("f", store.now_ms(), True)], operation="WRITE")
    path = checkpoint_path(TABLE, checkpoint(store))
    store.delete([commit_path(TABLE, number) for number in range(before + 1)])
    write(log, 5)
    intact = store.get(path)
    store.put(path, b"no Parquet at all" if how == "no Parquet" else garbled(intact, how))
    store.delete([f"{TABLE}/_delta_log/_last_checkpoint"])
    with caplog.at_level(logging.ERROR):
        assert checkpoint(store) == 5
    assert path in caplog.text
    store.delete([path, checkpoint_path(TABLE, before)])
    assert numbers(store) == {f"{n}": n for n in range(1, 6)}
    count("damage planted", f"a checkpoint of another tool: {how}")
    count("damage found", f"a checkpoint of another tool: {how}")


def test_checkpoint_that_does_not_decode_is_named_if_the_log_needs_it(store: ObjectStore) -> None:
    """A checkpoint of the commits that are left would lose the others (R66)."""
    log = created(store, 3)
    path = checkpoint_path(TABLE, checkpoint(store))
    write(log, 4)
    store.put(path, garbled(store.get(path), "txn.appId"))
    store.delete([f"{TABLE}/_delta_log/_last_checkpoint", commit_path(TABLE, 0)])
    with pytest.raises(CorruptLogError, match="this checkpoint is truncated or garbled") as error:
        checkpoint(store)
    assert error.value.context["file"] == path
    assert list_whole_log(store, TABLE).checkpoints == [3]


def test_writer_whose_previous_checkpoint_does_not_decode_makes_the_next_one(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The first attempt continues from it and fails; the second lists the log (R66)."""
    log = created(store, 5, INLINE)
    path = checkpoint_path(TABLE, 5)
    store.put(path, garbled(store.get(path), "metaData.id"))
    store.delete([f"{TABLE}/_delta_log/_last_checkpoint"])
    for number in range(6, 16):
        write(log, number)
    assert path in caplog.text
    assert list_whole_log(store, TABLE).checkpoints == [5, 15]
    store.delete([commit_path(TABLE, number) for number in range(15)])
    assert numbers(store) == {f"{n}": n for n in range(1, 16)}


def test_intact_checkpoint_is_not_blamed_for_commits_that_have_no_checkpoint(
    store: ObjectStore,
) -> None:
    """An operator would delete the intact file, and the next older one after that (R66)."""
    log = created(store, 3)
    before = checkpoint(store)
    plant(log, [Protocol(2**40, 2)])
    with pytest.raises(CorruptLogError, match="no checkpoint can be made of the commits") as error:
        checkpoint(store)
    assert error.value.context["file"] == commit_path(TABLE, before + 1)
    store.delete([checkpoint_path(TABLE, before), f"{TABLE}/_delta_log/_last_checkpoint"])
    with pytest.raises(CorruptLogError, match="no checkpoint can be made of the commits"):
        checkpoint(store)


@pytest.mark.parametrize("error", [pa.ArrowMemoryError("no"), OSError("malloc of size 64 failed")])
def test_checkpoint_without_memory_is_no_damage(
    store: ObjectStore, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous one is intact, and an older one would take more memory (R66)."""
    log = created(store, 3)
    before = checkpoint(store)
    write(log, 4)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(checkpoints, "compute_checkpoint", fail)
    with pytest.raises(OutOfMemoryError) as raised:
        checkpoint(store)
    assert raised.value.context["file"] == commit_path(TABLE, before + 1)
