"""Folders for a moment's work, in memory where there is room; those of killed processes go, too.

A folder is in use while its owner holds a lock (flock) on a file beside it. The system releases
that lock when the process ends, however it does, and it holds between containers that share
/dev/shm, where process ids and times say nothing.
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
    """A folder with room for a few times so many bytes, deleted at the end."""
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
    """Remove what killed processes left on this machine; how many folders that were."""
    parents = dict.fromkeys((_SHARED_MEMORY, tempfile.gettempdir()))
    return sum(remove_left(parent) for parent in parents)


def remove_left(parent: str) -> int:
    """Remove what killed processes left: in memory it would stay until the machine restarts."""
    removed = 0
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                # Another process may be removing it, or it may be another user's.
                with suppress(OSError):
                    removed += _remove_unused(entry.path)
    return removed


def _remove_unused(folder: str) -> bool:
    """Remove a folder unless a living process holds its lock."""
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Its maker is about to lock it, or is an older txnlog, which never does.
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
    """A folder, and the descriptor that holds its lock."""
    for _ in range(_TRIES_MAX):
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        with suppress(FileNotFoundError):
            lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, os.path.join(folder, _LOCK)):
                return folder, lock
            # A sweep met the folder before it was locked.
            os.close(lock)
    raise OSError(f"{parent}: a new folder was removed {_TRIES_MAX} times before it was used")


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _parent(size_bytes: int) -> str | None:
    """Memory where there is room for it, else None: the system's temporary folder.

    A disk pays for files that live for a moment long after: ext4 does not give out the inodes of
    files deleted in the last minute, and looks at each of them for every file that is created.
    """
    try:
        free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return None
    roomy = free_bytes > 4 * size_bytes + _SPARE_BYTES
    return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
