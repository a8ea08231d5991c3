"""Scratch folders are in memory: those of killed processes must be removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from txnlog.cluster import Cluster
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.process.clock import VirtualClock
from txnlog.storage.store import scratch
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.store.scratch import remove_left, scratch_folder

HOLDER = """
import sys, time
from txnlog.storage.store import scratch
scratch._SHARED_MEMORY = sys.argv[1]
with scratch.scratch_folder(100) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev/shm of the test's own."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(scratch, "_SHARED_MEMORY", str(folder))
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def holder(memory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A live process with a scratch folder."""
    command = [sys.executable, "-c", HOLDER, str(memory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def make_old(folder: Path) -> None:
    """Make a folder look old, as after a wrong wall clock or a suspended machine."""
    long_ago_s = time.time() - 10 * 86_400
    for path in (*folder.iterdir(), folder):
        os.utime(path, (long_ago_s, long_ago_s))


def test_folder_of_a_live_process_stays_however_old_it_looks(memory: Path) -> None:
    """Its checkpoint would fail, or worse, have half of its files. Clocks do not matter."""
    with holder(memory) as (process, folder):
        (folder / "_delta_log").mkdir()
        make_old(folder)
        assert remove_left(str(memory)) == 0
        assert (folder / "_delta_log").is_dir()
        process.send_signal(signal.SIGSTOP)
        assert remove_left(str(memory)) == 0
        process.kill()
        process.wait()
        assert folder.is_dir(), "a killed process removes nothing"
        assert remove_left(str(memory)) == 1
        assert not folder.exists()


def test_housekeeping_removes_folders_of_killed_processes(memory: Path, tmp_path: Path) -> None:
    """Without any checkpoint on the machine they would stay in memory."""
    store = ObjectStore.from_url(str(tmp_path / "root"), clock=VirtualClock())
    keeper = Housekeeper(Cluster.open(store, create=True, shards=1))
    with holder(memory) as (process, killed), holder(memory) as (_, living):
        process.kill()
        process.wait()
        keeper.run_once()
        assert not killed.exists()
        assert living.is_dir()


def test_folder_without_a_lock_is_in_use_until_it_is_old(memory: Path) -> None:
    """An older txnlog on this machine does not lock its folders."""
    folder = memory / "txnlog-checkpoint-unlocked"
    folder.mkdir()
    assert remove_left(str(memory)) == 0
    make_old(folder)
    assert remove_left(str(memory)) == 1


def test_foreign_folders_and_files_stay(memory: Path) -> None:
    """/dev/shm is shared."""
    (memory / "elses").mkdir()
    (memory / "txnlog-checkpoint-file").touch()
    (memory / "txnlog-checkpoint-link").symlink_to(memory / "elses")
    assert remove_left(str(memory)) == 0
    assert len(list(memory.iterdir())) == 3
    assert remove_left(str(memory / "not there")) == 0


def test_folder_removed_before_it_was_locked_is_created_again(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that was set ahead makes a new folder look abandoned."""
    real, swept = scratch.tempfile.mkdtemp, []

    def mkdtemp(**options: str) -> str:
        folder = real(**options)
        if len(swept) < 3:
            make_old(Path(folder))
            swept.append(remove_left(str(memory)))
        return folder

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", mkdtemp)
    with scratch_folder(100) as folder:
        assert swept == [1, 1, 1]
        assert remove_left(str(memory)) == 0
        assert Path(folder).is_dir()
    assert list(memory.iterdir()) == []


def test_scratch_folder_is_removed_at_the_end(memory: Path) -> None:
    with scratch_folder(100) as folder:
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
    assert list(memory.iterdir()) == []
