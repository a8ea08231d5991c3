"""With fsync, what a local disk has acknowledged survives a power cut (D26)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from benchmarks.transactions import small_records, stage
from tests.storage.number_log import OFF as LOG
from tests.storage.number_log import TABLE, History, created, opened, write
from tests.storage.power_cut import PowerCut, commit_transaction, put
from txnlog.cluster import Cluster
from txnlog.errors import (
    CommitStateUnknownError,
    NothingWrittenError,
    NotSyncedError,
    StorageError,
)
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import checkpoint_and_clean_up, clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.delta.transact import transact
from txnlog.storage.store import local_disk
from txnlog.storage.store.local_disk import LocalDisk
from txnlog.storage.store.objects import ObjectStore

PUTS = ["put", "put_new", "put_if_absent", "open_writer"]


# --- puts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", PUTS)
def test_fsync_every_kind_of_put_survives_a_power_cut(
    tmp_path: Path, power: PowerCut, verb: str
) -> None:
    """File, its name, and the names of new folders above it, also above the root."""
    disk = LocalDisk(str(tmp_path / "new/root"), fsync=True)
    for path in ("t/one", "t/two", "t/deep/three"):
        put(disk, verb, path)
        assert power.survives(disk.path(path), str(tmp_path))


def test_fsync_off_calls_no_fsync(tmp_path: Path, power: PowerCut) -> None:
    """A root that was created so has no cost."""
    cluster = Cluster.open(str(tmp_path / "root"), {"fsync": "false"}, create=True)
    commit_transaction(cluster)
    assert not power.order or {kind for kind, _ in power.order} == {"unlink"}


# --- what others wrote ----------------------------------------------------------------------------


def test_reader_does_not_rely_on_a_commit_that_a_power_cut_may_remove(
    tmp_path: Path, power: PowerCut, by_default: None
) -> None:
    """The writer has linked its commit and not yet synced the folder when a reader acts on it."""
    root = str(tmp_path / "root")
    Cluster.open(root, create=True).create_topic("t", partitions=1)
    reader = Cluster.open(root)
    log = reader.topic("t").log
    slow = LocalDisk(root)
    path = commit_path("t", log.version + 1)
    whole = slow.get(commit_path("t", log.version)).replace(b'"version"', b'"versio_"')
    slow.put_if_absent(path, whole)
    named = str(tmp_path / "root/t/_delta_log")
    assert os.path.basename(path) not in power.named.get(named, ())
    reader.topic("t")
    assert os.path.basename(path) in power.named[named]


@pytest.mark.parametrize("behind", [1, 40])
@pytest.mark.parametrize("is_open", [True, False])
def test_reader_syncs_files_of_processes_that_do_not(
    tmp_path: Path, power: PowerCut, behind: int, is_open: bool
) -> None:
    """A root without a record: on top of an empty file nothing could be read again, whatever the
    process has synced that was acknowledged.
    """
    root = str(tmp_path / "root")
    writer, reader = ObjectStore.from_url(root), ObjectStore.from_url(root, {"fsync": "true"})
    theirs = created(writer, 3)
    create_checkpoint(writer, TABLE, trust_ms=LOG.trust_ms)
    log = opened(reader)[0] if is_open else None
    for number in range(4, 4 + behind):
        write(theirs, number)
    if log is None:
        log = opened(reader)[0]
    log.refresh()
    assert log.version == theirs.version
    relied_on = [checkpoint_path(TABLE, 3), *(commit_path(TABLE, v) for v in range(4, 4 + behind))]
    lost = [path for path in relied_on if not power.survives(f"{root}/{path}", str(tmp_path))]
    assert lost == []


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("by_housekeeping", [True, False])
def test_anchor_is_synced_before_a_commit_is_deleted(
    tmp_path: Path, power: PowerCut, value: str, by_housekeeping: bool
) -> None:
    """Deletions reached the disk before the checkpoint that replaces them, written by whichever
    process: the whole topic was unreadable after the power cut.
    """
    root = str(tmp_path / "root")
    theirs = ObjectStore.from_url(root)
    created(theirs, 14)
    store = ObjectStore.from_url(root, {"fsync": value})
    if by_housekeeping:
        later_ms = store.now_ms() + LOG.log_retention_ms + 60_000
        assert checkpoint_and_clean_up(store, TABLE, LOG, now_ms=later_ms) == 14
    else:
        create_checkpoint(theirs, TABLE, trust_ms=LOG.trust_ms)
        power.order.clear()
        assert len(clean_up(store, TABLE, retention_ms=-60_000)) == 14
    anchor = f"{root}/{checkpoint_path(TABLE, 14)}"
    deleted = power.order.index(("unlink", f"{root}/{commit_path(TABLE, 0)}"))
    before = [path for kind, path in power.order[:deleted] if kind == "fsync"]
    assert anchor in before
    assert os.path.dirname(anchor) in before[before.index(anchor) :]
    assert power.survives(anchor, str(tmp_path))


def test_anchor_that_cannot_be_synced_replaces_nothing(tmp_path: Path, power: PowerCut) -> None:
    """The second attempt gets no error from the kernel, and must not delete either."""
    root = str(tmp_path / "root")
    store = ObjectStore.from_url(root)
    created(store, 14)
    create_checkpoint(store, TABLE, trust_ms=LOG.trust_ms)
    power.failures[".checkpoint.parquet"] = 1
    for _ in range(2):
        with pytest.raises(NotSyncedError):
            clean_up(store, TABLE, retention_ms=-60_000)
    assert not [path for kind, path in power.order if kind == "unlink" and "_clock" not in path]


# --- fsync that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/_delta_log", f"/{TABLE}", "/root"])
def test_commit_whose_folder_is_not_synced_is_never_acknowledged(
    tmp_path: Path, power: PowerCut, place: str
) -> None:
    """The commit can be read back, and a second fsync succeeds: the kernel has reported the error,
    and dropped what it could not write. So no other way may end in an acknowledgement.
    """
    root = str(tmp_path / "root")
    created(ObjectStore.from_url(root), 1)
    store = ObjectStore.from_url(root, {"fsync": "true"})
    power.failures[place] = 0
    log, view = opened(store)
    # As if this process had synced nothing there yet.
    store._disk._names._known.clear()  # type: ignore[union-attr]
    power.failures[place] = 1
    assert isinstance(write(log, 2), Unknown)
    assert power.failures[place] == 0
    of_another_client = DeltaLog(ObjectStore.from_url(root, {"fsync": "true"}), TABLE, History())
    for again in (log, of_another_client):
        with pytest.raises((CommitStateUnknownError, NotSyncedError)):
            transact(again, lambda: 2, lambda number: None)
    assert "2" not in view.numbers


def test_commit_that_ended_unknown_is_not_settled_by_reading_it(
    tmp_path: Path, power: PowerCut
) -> None:
    """The error names the folder, the disk, and what to do."""
    cluster = Cluster.open(str(tmp_path / "root"), {"fsync": "true"}, create=True)
    topic = cluster.create_topic("t", partitions=4)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    staged = stage(cluster, topic, small_records())
    [table] = [name for name in os.listdir(tmp_path / "root") if name.startswith("__trans")]
    power.failures[f"{table}/_delta_log"] = 1
    for _ in range(3):
        with pytest.raises((CommitStateUnknownError, NotSyncedError), match=r"dmesg.*restart"):
            cluster.coordinator.commit(row, staged)
    assert cluster.topic("t").view.high_watermark(0) == 0


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_file_that_is_not_synced_has_no_name(tmp_path: Path, power: PowerCut, verb: str) -> None:
    """A new file has pages of its own, so the next attempt counts."""
    store = ObjectStore.from_url(str(tmp_path / "root"), {"fsync": "true"})

    def temporary_fails(file: int) -> None:
        monkey.setattr(local_disk.os, "fsync", power.fsync)
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(local_disk.os, "fsync", temporary_fails)
        with pytest.raises(NothingWrittenError):
            put(store, verb, "t/one")
        assert not store.exists("t/one")
        put(store, verb, "t/one")
    assert power.survives(str(tmp_path / "root/t/one"), str(tmp_path))


@pytest.mark.parametrize("verb", PUTS)
def test_put_whose_name_is_not_synced_fails_and_so_does_the_next(
    tmp_path: Path, power: PowerCut, verb: str
) -> None:
    """A folder is not remembered as synced, nor written to again."""
    store = ObjectStore.from_url(str(tmp_path / "root"), {"fsync": "true"})
    power.failures["/t"] = 1
    with pytest.raises((StorageError, OSError)) as caught:
        put(store, verb, "t/one")
    if verb != "open_writer":
        assert isinstance(caught.value, NotSyncedError)
        assert caught.value.fatal
        with pytest.raises(NothingWrittenError):
            put(store, verb, "t/two")
        assert not store.exists("t/two")
    put(store, verb, "other/one")


def test_file_system_that_cannot_sync_folders_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_default: None
) -> None:
    """With the default, a root there fails at its creation: the error must say what to choose."""
    real = os.fsync

    def refuse(file: int) -> None:
        if os.path.isdir(os.readlink(f"/proc/self/fd/{file}")):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(local_disk.os, "fsync", refuse)
    with pytest.raises(NotSyncedError, match=r"storage\.fsync=false"):
        Cluster.open(str(tmp_path / "root"), create=True)
    Cluster.open(str(tmp_path / "root"), {"fsync": "false"}, create=True)
