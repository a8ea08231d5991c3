"""LocalDisk: its guarantees for commits, in races, write errors and power cuts."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from txnlog.process.clock import VirtualClock
from txnlog.storage.store import local_disk
from txnlog.storage.store.local_disk import IrregularFileError, LocalDisk

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


def test_file_is_linked_again_but_no_other_one_of_its_name(disk: LocalDisk) -> None:
    """Two clones were made to one place: the later one failed (R63)."""
    disk.put("x", b"x")
    for _ in range(2):
        disk.link("t/x", disk.path("x"))
    assert disk.get("t/x") == b"x"
    disk.put("t/y", b"mine")
    with pytest.raises(FileExistsError):
        disk.link("t/y", disk.path("x"))
    assert disk.get("t/y") == b"mine"
