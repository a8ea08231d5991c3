"""Folders that benchmarks write to."""

from __future__ import annotations

import os
import tempfile


def new_folder() -> str:
    """A new folder below TMPDIR, which benchmarks.suite deletes after all groups.

    Not earlier: for minutes after many files were deleted, some file systems (ext4 without a
    journal) take ten times as long to create one, which would distort the next group.
    """
    return tempfile.mkdtemp(prefix="txnlog-bench-")


def memory_folder() -> str | None:
    """A folder for many short-lived files; ext4 does not reuse their inodes for minutes."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
