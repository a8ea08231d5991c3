"""fsync of files and folders, with its errors (D26).

The kernel reports a failed write once, to the descriptors that were open at the time, and then
forgets it: what could not be written counts as clean, and the next fsync succeeds. So an error is
remembered, for all of this process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_REPORT_EVERY = 1_000

_failed: set[str] = set()
"""Folders of which this process could not sync something."""


class NotSyncedOSError(OSError):
    """A folder could not be synced, or a file in it that has its name; this time or before."""


def sync(target: str) -> None:
    """Make a file, or the names in a folder, survive power loss. Raises NotSyncedOSError."""
    file = os.open(target, _READ)
    try:
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        folder = target if is_folder else os.path.dirname(target)
        check_synced(folder)
        try:
            os.fsync(file)
        except OSError as error:
            _failed.add(folder)
            raise NotSyncedOSError(error.errno, error.strerror, target) from error
    finally:
        os.close(file)


def check_synced(folder: str) -> None:
    """Raise NotSyncedOSError if a `sync` in the folder has failed."""
    if folder in _failed:
        raise NotSyncedOSError(errno.EIO, "an earlier fsync in this folder failed", folder)


class SyncedNames:
    """The folders of a root whose own names this process has synced, up to the mount point."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: set[str] = set()

    def sync(self, folder: str) -> None:
        """Sync the names in a folder and, at the first time, its own and those above it."""
        sync(folder)
        self._sync_above(folder)

    def _sync_above(self, folder: str) -> None:
        if folder in self._known:
            return
        if not os.path.ismount(folder):
            above = os.path.dirname(folder)
            self._sync_above(above)
            is_ours = above.startswith(self._root)
            with nullcontext() if is_ours else suppress(PermissionError):
                sync(above)
        self._known.add(folder)


def sync_below(root: str, report: Callable[[int, int], None]) -> None:
    """Sync every file and folder below a root, also behind links, and the names above it.

    Calls `report(done, count)` now and then. Raises NotSyncedOSError.
    """
    count = sum(1 for _ in _places(root, set()))
    done = 0
    for done, place in enumerate(_places(root, set()), 1):
        with suppress(FileNotFoundError):
            sync(place)
        if done % _REPORT_EVERY == 0:
            report(done, max(done, count))
    SyncedNames(root).sync(root)
    report(done, done)


def _places(folder: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _places(entry.path, seen)
            elif entry.is_file():
                yield entry.path
    yield folder
