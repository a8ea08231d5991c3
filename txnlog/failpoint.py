"""Named places where a test can kill the process with SIGKILL; off unless the environment asks.

TXNLOG_FAILPOINT = "<name>[@<n>][:driver]": die at the n-th time (1 by default) that this place is
reached. The count is kept in the file TXNLOG_FAILPOINT_STATE names (so it spans the worker
processes of a Spark driver, and fires once), else in memory. With ":driver" the parents go first:
JVM, then the Python daemon, then this process: a whole Spark driver dies between two instructions.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    "take_over.after",
    "pending_offsets.after",
    "prepare_commit.before",
    "prepare_commit.after",
    "marker.after",
    "markers.after",
    "offsets.after",
    "complete.before",
    "complete.after",
    "sink_commit.after",
    "stage.after",
)

_hits = 0


def reach(name: str) -> None:
    """Die here if TXNLOG_FAILPOINT names this place and its count is full."""
    spec = os.environ.get("TXNLOG_FAILPOINT")
    if not spec or not spec.startswith(name):
        return
    place, _, target = spec.partition(":")
    place, _, count = place.partition("@")
    if place != name or _count_hit() != int(count or 1):
        return
    if target == "driver":
        daemon = os.getppid()
        jvm = _parent_of(daemon)
        if jvm > 1:
            os.kill(jvm, signal.SIGKILL)
        if daemon > 1:
            os.kill(daemon, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _count_hit() -> int:
    global _hits
    state = os.environ.get("TXNLOG_FAILPOINT_STATE")
    if not state:
        _hits += 1
        return _hits
    fd = os.open(state, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b"x")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rsplit(b")", 1)[1].split()[1])
