"""What a power cut would leave: the files and names that were synced, and in which order."""

from __future__ import annotations

import errno
import os

import pytest

from benchmarks.transactions import small_records, stage
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner
from txnlog.storage.store import local_disk
from txnlog.storage.store.local_disk import LocalDisk
from txnlog.storage.store.objects import ObjectStore


class PowerCut:
    """Records each fsync, and each unlink of a file of a log; fsyncs of chosen places fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, bytes] = {}
        """By inode: what is synced under one name stays synced under another."""
        self.named: dict[str, set[str]] = {}
        self.order: list[tuple[str, str]] = []
        self.failures: dict[str, int] = {}
        """How many fsyncs of files and folders fail whose path ends so."""
        self._fsync, self._unlink = os.fsync, os.unlink
        monkeypatch.setattr(local_disk.os, "fsync", self.fsync)
        monkeypatch.setattr(local_disk.os, "unlink", self.unlink)

    def fsync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        for ending, count in self.failures.items():
            if count and path.endswith(ending):
                # As the kernel does: to the next descriptor it reports nothing.
                self.failures[ending] = count - 1
                raise OSError(errno.EIO, "Input/output error")
        self._fsync(file)
        self.order.append(("fsync", path))
        if os.path.isdir(path):
            self.named[path] = set(os.listdir(path))
        else:
            with open(path, "rb") as data:
                self.synced[os.fstat(file).st_ino] = data.read()

    def unlink(self, path: str) -> None:
        self._unlink(path)
        if "#" not in path:
            self.order.append(("unlink", path))

    def survives(self, path: str, root: str) -> bool:
        """Whether the file is there and whole, and every name from `root` on."""
        with open(path, "rb") as file:
            whole = self.synced.get(os.fstat(file.fileno()).st_ino) == file.read()
        names = path
        while whole and names != root:
            folder, name = os.path.split(names)
            whole = name in self.named.get(folder, ())
            names = folder
        return whole

    def lost(self, root: str) -> list[str]:
        """The files below a folder that would not survive."""
        paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
        return [path for path in paths if not self.survives(path, os.path.dirname(root))]


def put(disk: LocalDisk | ObjectStore, verb: str, path: str) -> None:
    if verb == "open_writer":
        with disk.open_writer(path) as writer:
            writer.write(b"data")
    else:
        getattr(disk, verb)(path, b"data")


def commit_transaction(cluster: Cluster) -> None:
    topic = cluster.find_or_create_topic("t", auto_create=True)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    cluster.coordinator.commit(row, stage(cluster, topic, small_records()))
