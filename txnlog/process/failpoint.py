"""Named places where a test can kill or pause the process; off unless TXNLOG_FAILPOINT is set.

TXNLOG_FAILPOINT = "<name>[@<n>][:driver|:pause]": die by SIGKILL at the n-th time (1 by default)
that this place is reached. With ":driver" the parents die first, the JVM, then the Python daemon,
then this process: a whole Spark driver dies between two instructions. With ":pause" the process
waits here until the fail point is changed.

TXNLOG_FAILPOINT = "file:<path>" reads the setting from a file at each place; a missing file means
off. So a test changes the fail point of running processes, and of those with an older environment.
Hits are counted in the file TXNLOG_FAILPOINT_STATE names, else in <path>.hits (so the count spans
the worker processes of a Spark driver, and the fail point fires once), else in memory.
"""

from __future__ import annotations

import os
import signal
import threading
import time

TRANSACTION = (
    "take_over.after",
    "tickets.after",
    "prepare_commit.before",
    "prepare_commit.after",
    "marker.after",
    "markers.after",
    "offsets.after",
    "sink_commit.after",
    "stage.after",
)
COMPACTION = (
    "compaction.staged",
    "compaction.committed",
    "compaction.cleaned.before",
    "compaction.cleaned.after",
)
# On an executor of jobs/compact.py.
COMPACTION_TASK = ("compaction.rewritten",)
NAMES = (*TRANSACTION, *COMPACTION, *COMPACTION_TASK)

PAUSE_S_MAX = 300
POLL_S = 0.02
_FILE = "file:"

_hits = 0
_counting = threading.Lock()


def reach(name: str) -> None:
    """Kill or pause the process if TXNLOG_FAILPOINT names this place and its count is reached."""
    setting = os.environ.get("TXNLOG_FAILPOINT")
    if not setting:
        return
    spec = _spec(setting)
    if not spec.startswith(name):
        return
    place, _, action = spec.partition(":")
    place, _, count = place.partition("@")
    if place != name or _count_hit(setting) != int(count or 1):
        return
    if action == "pause":
        _pause(setting, spec)
        return
    if action == "driver":
        _kill_parents()
    os.kill(os.getpid(), signal.SIGKILL)


def _spec(setting: str) -> str:
    if not setting.startswith(_FILE):
        return setting
    try:
        with open(setting[len(_FILE) :], encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def _count_hit(setting: str) -> int:
    global _hits
    state = os.environ.get("TXNLOG_FAILPOINT_STATE")
    if not state and setting.startswith(_FILE):
        state = f"{setting[len(_FILE) :]}.hits"
    if not state:
        with _counting:
            _hits += 1
            return _hits
    # Not on Windows, where nobody sets a fail point.
    import fcntl

    fd = os.open(state, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        # Other threads and processes may hit it now: closing the file lets the next one count.
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, b"x")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _pause(setting: str, spec: str) -> None:
    deadline_s = time.monotonic() + PAUSE_S_MAX
    while _spec(setting) == spec:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"fail point {spec} was not released for {PAUSE_S_MAX} s")
        time.sleep(POLL_S)


def _kill_parents() -> None:
    daemon = os.getppid()
    jvm = _parent_of(daemon)
    if jvm > 1:
        os.kill(jvm, signal.SIGKILL)
    if daemon > 1:
        os.kill(daemon, signal.SIGKILL)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rsplit(b")", 1)[1].split()[1])
