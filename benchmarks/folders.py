"""Where a group of benchmarks writes."""

from __future__ import annotations

import os
import tempfile


def new_folder() -> str:
    """A new folder below TMPDIR, which benchmarks.suite deletes when all groups are done.

    Not earlier: for minutes after many files were deleted, some file systems (ext4 without a
    journal) take ten times as long to create one, and the next group would measure that.
    """
    return tempfile.mkdtemp(prefix="txnlog-bench-")


def memory_folder() -> str | None:
    """Where there is room for many files that are soon gone; ext4 remembers them for minutes."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
