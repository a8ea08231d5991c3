"""Temporary folders, in memory if there is room; those of killed processes are removed, too.

A folder is in use while its owner holds a lock (flock) on a file in it. The kernel releases the
lock when the process ends, however it ends. The lock also works between containers that share
/dev/shm, where process ids and times prove nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SHARED_MEMORY = "/dev/shm"
_SPARE_BYTES = 32 << 20
_PREFIX = "txnlog-checkpoint-"
_LOCK = "lock"
_TRIES_MAX = 10
UNLOCKED_LEFT_AFTER_S = 3_600

_swept: set[str] = set()


@contextmanager
def scratch_folder(size_bytes: int) -> Iterator[str]:
    """A folder with room for a few times `size_bytes`, deleted at the end."""
    parent = _parent(size_bytes) or tempfile.gettempdir()
    if parent not in _swept:
        _swept.add(parent)
        remove_left(parent)
    folder, lock = _new_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_all_left() -> int:
    """Remove the folders of killed processes on this machine; returns their number."""
    parents = dict.fromkeys((_SHARED_MEMORY, tempfile.gettempdir()))
    return sum(remove_left(parent) for parent in parents)


def remove_left(parent: str) -> int:
    """Remove the folders of killed processes: in memory they stay until the machine restarts."""
    removed = 0
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                # Another process may be removing it, or it may belong to another user.
                with suppress(OSError):
                    removed += _remove_unused(entry.path)
    return removed


def _remove_unused(folder: str) -> bool:
    """Remove a folder unless a live process holds its lock."""
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Its owner is about to lock it, or is an older txnlog, which never does.
        if time.time() - os.stat(folder).st_mtime > UNLOCKED_LEFT_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)
        return not os.path.exists(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.exists(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _new_folder(parent: str) -> tuple[str, int]:
    """A new folder, and the file descriptor that holds its lock."""
    for _ in range(_TRIES_MAX):
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        with suppress(FileNotFoundError):
            lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, os.path.join(folder, _LOCK)):
                return folder, lock
            # Another process removed the folder before it was locked.
            os.close(lock)
    raise OSError(f"{parent}: a new folder was removed {_TRIES_MAX} times before it was used")


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _parent(size_bytes: int) -> str | None:
    """Shared memory if there is room, else None: the system's temporary folder.

    Short-lived files slow a disk down for long: ext4 does not reuse the inodes of files deleted in
    the last minute, and checks each of them for every file that is created.
    """
    try:
        free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return None
    has_room = free_bytes > 4 * size_bytes + _SPARE_BYTES
    return _SHARED_MEMORY if has_room and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
