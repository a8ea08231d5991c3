"""LocalDisk: its guarantees for commits, in races, write errors and power cuts."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from txnlog.cluster import Cluster
from txnlog.errors import ConfigError, StorageError
from txnlog.process.clock import VirtualClock
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.storage.store import local_disk
from txnlog.storage.store.local_disk import IrregularFileError, LocalDisk
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicView

PUTS = ["put", "put_new", "put_if_absent"]


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk(str(tmp_path / "root"))


def files(disk: LocalDisk) -> list[str]:
    found = (os.path.join(at, name) for at, _, names in os.walk(disk.root) for name in names)
    return sorted(os.path.relpath(path, disk.root) for path in found)


@pytest.mark.parametrize("verb", PUTS)
def test_put_makes_folders_and_leaves_one_file(disk: LocalDisk, verb: str) -> None:
    """A temporary file that stays is in no listing."""
    getattr(disk, verb)("a/b/c", memoryview(b"data"))
    assert disk.get("a/b/c") == b"data"
    assert files(disk) == ["a/b/c"]


@pytest.mark.parametrize(
    ("verb", "call"),
    [*((verb, "write") for verb in PUTS), ("put", "rename"), ("put_if_absent", "link")],
)
def test_put_that_fails_leaves_nothing_under_the_name(
    disk: LocalDisk, verb: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not leave half a commit under a name that readers use (R66)."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_disk.os, call, full)
    with pytest.raises(OSError, match="No space"):
        getattr(disk, verb)("a/b", b"data")
    assert files(disk) == []


def test_put_continues_after_a_partial_write(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may take fewer bytes than requested; so may a read."""
    real_write, real_read = os.write, os.read
    monkeypatch.setattr(local_disk.os, "write", lambda file, data: real_write(file, data[:7]))
    monkeypatch.setattr(local_disk.os, "read", lambda file, size: real_read(file, min(size, 5)))
    data = bytes(range(256))
    disk.put("a", data)
    assert disk.get("a") == data


def test_put_if_absent_of_many_threads_has_one_winner(disk: LocalDisk) -> None:
    """All mutual exclusion depends on this call (R62)."""
    with ThreadPoolExecutor(8) as pool:
        for slot in range(50):
            writers = [b"%d-%d" % (slot, n) * 500 for n in range(8)]
            won = list(
                pool.map(lambda data, slot=slot: disk.put_if_absent(f"{slot}", data), writers)
            )
            assert won.count(True) == 1
            assert disk.get(f"{slot}") == writers[won.index(True)]


@pytest.mark.parametrize("paused_ms", [0, 3_600_000])
def test_put_if_absent_after_a_pause_has_the_time_when_it_appeared(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, paused_ms: int
) -> None:
    """Clean-up uses the times of files: a commit must not be old when it appears (R70)."""
    clock = VirtualClock()
    monkeypatch.setattr(local_disk, "_clock", clock)
    real = os.link

    def stopped(temporary: str, target: str) -> None:
        clock.advance_ms(paused_ms)
        then_s = os.stat(temporary).st_mtime - paused_ms / 1000
        os.utime(temporary, (then_s, then_s))
        real(temporary, target)

    monkeypatch.setattr(local_disk.os, "link", stopped)
    assert disk.put_if_absent("a", b"data")
    ((_, _, changed_ms),) = disk.list_files("", "")
    assert abs(time.time() * 1000 - changed_ms) < 60_000
    assert files(disk) == ["a"]


def test_quick_put_if_absent_sets_no_times(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost every commit a system call."""
    monkeypatch.setattr(local_disk, "_clock", VirtualClock())
    monkeypatch.setattr(local_disk.os, "utime", None)
    assert disk.put_if_absent("a", b"data")


def test_put_if_absent_whose_time_cannot_be_set_has_landed(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network disks refuse it; the file exists."""
    clock = VirtualClock()
    monkeypatch.setattr(local_disk, "_clock", clock)
    real = os.link

    def stopped(temporary: str, target: str) -> None:
        clock.advance_ms(3_600_000)
        real(temporary, target)

    def refused(path: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(local_disk.os, "link", stopped)
    monkeypatch.setattr(local_disk.os, "utime", refused)
    assert disk.put_if_absent("a", b"data")


@pytest.mark.parametrize("path", ["../x", "a/../../x", ".."])
def test_path_that_leaves_the_root_is_refused(disk: LocalDisk, path: str) -> None:
    """A path may come from a foreign log (R64)."""
    for call in (lambda: disk.get(path), lambda: disk.put(path, b""), lambda: disk.path(path)):
        with pytest.raises(ValueError, match="leaves its root"):
            call()


def test_get_of_a_folder_is_an_error_and_not_an_absence(disk: LocalDisk) -> None:
    """A folder in the place of a commit occupies its slot: a reader must not end the log there."""
    disk.put("a/b", b"")
    with pytest.raises(IrregularFileError, match="a folder"):
        disk.get("a")


# --- fsync ----------------------------------------------------------------------------------------


class PowerCut:
    """Records which files and names were synced: others would be gone after a power cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[str, bytes] = {}
        self.named: dict[str, set[str]] = {}
        self._real = os.fsync
        monkeypatch.setattr(local_disk.os, "fsync", self._fsync)

    def _fsync(self, file: int) -> None:
        self._real(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        if os.path.isdir(path):
            self.named[path] = set(os.listdir(path))
        else:
            with open(path, "rb") as data:
                # Kept by inode: what is synced under one name stays synced under another.
                self.synced[str(os.fstat(file).st_ino)] = data.read()

    def survives(self, path: str, root: str) -> bool:
        with open(path, "rb") as file:
            whole = self.synced.get(str(os.fstat(file.fileno()).st_ino)) == file.read()
        names = path
        while whole and names != root:
            folder, name = os.path.split(names)
            whole = name in self.named.get(folder, ())
            names = folder
        return whole


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to see what is synced")
    return PowerCut(monkeypatch)


@pytest.mark.parametrize("verb", [*PUTS, "open_writer"])
def test_fsync_every_kind_of_put_survives_a_power_cut(
    tmp_path: Path, power: PowerCut, verb: str
) -> None:
    """File, its name, and the names of new folders above it."""
    disk = LocalDisk(str(tmp_path), fsync=True)
    for path in ("t/one", "t/two", "t/deep/three"):
        if verb == "open_writer":
            with disk.open_writer(path) as writer:
                writer.write(b"data")
        else:
            getattr(disk, verb)(path, b"data")
        assert power.survives(str(tmp_path / path), str(tmp_path))


def test_fsync_every_file_of_a_transaction_survives_a_power_cut(
    tmp_path: Path, power: PowerCut
) -> None:
    """Everything that commit() acknowledged survives: rows, markers, and every record."""
    from benchmarks.transactions import small_records, stage

    root = str(tmp_path / "root")
    cluster = Cluster.open(root, {"fsync": "true"}, create=True)
    topic = cluster.create_topic("t", partitions=4)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    cluster.coordinator.commit(row, stage(cluster, topic, small_records()))
    paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
    assert len(paths) > 10
    lost = [path for path in paths if not power.survives(path, str(tmp_path))]
    assert lost == []


def test_fsync_off_calls_no_fsync(tmp_path: Path, power: PowerCut) -> None:
    """The default has no cost."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True)
    cluster.create_topic("t", partitions=1)
    assert (power.synced, power.named) == ({}, {})


def test_fsync_reader_does_not_rely_on_a_commit_that_a_power_cut_may_remove(
    tmp_path: Path, power: PowerCut
) -> None:
    """The writer has linked its commit and not yet synced the folder when a reader acts on it."""
    root = str(tmp_path / "root")
    options = {"fsync": "true"}
    Cluster.open(root, options, create=True).create_topic("t", partitions=1)
    reader = Cluster.open(root, options)
    log = reader.topic("t").log
    slow = LocalDisk(root)
    path = f"t/_delta_log/{log.version + 1:020}.json"
    whole = slow.get(f"t/_delta_log/{log.version:020}.json").replace(b'"version"', b'"versio_"')
    os.makedirs(os.path.dirname(slow.path(path)), exist_ok=True)
    slow.put_if_absent(path, whole)
    named = str(tmp_path / "root/t/_delta_log")
    assert os.path.basename(path) not in power.named.get(named, ())
    reader.topic("t")
    assert os.path.basename(path) in power.named[named]


def test_fsync_that_fails_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit can be read back but may not survive: it is not acknowledged."""
    store = ObjectStore.from_url(str(tmp_path), {"fsync": "true"})
    log = DeltaLog(store, "t", TopicView("t"))
    log.refresh()
    real = os.fsync
    broken: list[bool] = []

    def fsync(file: int) -> None:
        if broken and os.path.isdir(os.readlink(f"/proc/self/fd/{file}")):
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(local_disk.os, "fsync", fsync)
    broken.append(True)
    with pytest.raises(StorageError, match="Input/output"):
        store.put_if_absent("t/_delta_log/x", b"{}")


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_fsync_option_takes_true_or_false(tmp_path: Path, value: str) -> None:
    """Requested durability must never be off silently."""
    with pytest.raises(ConfigError, match=r"storage\.fsync"):
        ObjectStore.from_url(str(tmp_path), {"fsync": value})


def test_fsync_option_reaches_every_store(tmp_path: Path) -> None:
    """Object stores are durable already: there the option has no effect."""
    check: Callable[[str], ObjectStore] = lambda url: ObjectStore.from_url(  # noqa: E731
        url, {"fsync": "true", **({"aws_region": "x"} if url.startswith("s3") else {})}
    )
    assert check("memory://").url == "memory://"
    assert check("s3://bucket/x").url == "s3://bucket/x"
