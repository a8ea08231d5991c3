"""Turns of several writers at one log, in units of a put (D97).

The writer whose commit is the newest puts the next one at once; the others first have to read it,
at the same pace, and may lose every time. So a writer that has won several times in a row, on a log
that others have written lately, waits for a moment. A writer that has lost waits for a random part
of the latency, so that it does not stay in step with the winner, and for less the more often it has
lost. No winner knows a writer that has never won there: that one waits, too, though seldom. On a
local disk, where a put is a small part of a commit, it tries again at once: its turn comes by
chance, and to wait would be to leave the log to the others.
"""

from __future__ import annotations

SLOW_MS = 2.0
"""A store whose puts take so long: an object store, or a disk with fsync."""
AT_ONCE_MAX = 500
STARVED_MS = 50.0
"""A writer that has lost so often waits after all, so that it does not give up in a second."""
WINS_MAX = 4
"""Commits in a row after which a writer waits: two transactions in a shard."""
WINS_ALONE_MAX = 32
"""The same where no other writer is known."""
WANTED_PUTS = 2_000
WANTED_MS_MAX = 60_000
"""For so many puts, and so long, the commit of another process shows that a log is contended."""


def is_wanted(since_others_ms: int | None, *, latency_ms: float) -> bool:
    """Whether other processes have committed lately; `since_others_ms` is the time since then, or
    None, `latency_ms` that of a put.
    """
    if since_others_ms is None:
        return False
    return since_others_ms <= min(WANTED_MS_MAX, WANTED_PUTS * latency_ms)


def give_way_ms(*, wins: int, is_wanted: bool, latency_ms: float, jitter: float) -> float:
    """How long to wait before the next commit to a log; `jitter` is between 0 and 1, `wins` are
    this writer's commits in a row.

    A loser needs two reads and a put to get in.
    """
    if wins < (WINS_MAX if is_wanted else WINS_ALONE_MAX):
        return 0.0
    return (3.0 + 2.0 * jitter) * latency_ms


def retry_ms(attempt: int, *, latency_ms: float, jitter: float) -> float:
    """Wait before retry number `attempt` (0, 1, ...) of a commit that another process has beaten.

    `latency_ms` is that of a put, `jitter` is between 0 and 1.
    """
    if latency_ms >= SLOW_MS:
        return jitter * max(0.5, 1.5 - 0.1 * attempt) * latency_ms
    return 0.0 if attempt < AT_ONCE_MAX else jitter * STARVED_MS
