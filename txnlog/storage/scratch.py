"""Folders for a moment's work, in memory where there is room; those of killed processes go, too."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SHARED_MEMORY = "/dev/shm"
_SPARE_BYTES = 32 << 20
_PREFIX = "txnlog-checkpoint-"
LEFT_AFTER_S = 3_600

_swept: set[str] = set()


@contextmanager
def scratch_folder(size_bytes: int) -> Iterator[str]:
    """A folder with room for a few times so many bytes, deleted at the end."""
    parent = _parent(size_bytes) or tempfile.gettempdir()
    if parent not in _swept:
        _swept.add(parent)
        remove_left(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        yield folder


def remove_left(parent: str) -> None:
    """Remove what killed processes left: in memory it would stay until the machine restarts."""
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(_PREFIX):
                # Somebody else may be removing it, or it may be another user's.
                with suppress(OSError):
                    modified_s = entry.stat(follow_symlinks=False).st_mtime
                    if time.time() - modified_s > LEFT_AFTER_S:
                        shutil.rmtree(entry.path, ignore_errors=True)


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
