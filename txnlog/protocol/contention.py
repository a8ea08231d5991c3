"""Turns of several writers at one log, where a request takes tens of milliseconds.

The writer whose commit is the newest puts the next one at once; the others first have to read it,
at the same pace, and may lose every time. So a writer that has won several times in a row, on a log
that others have written lately, waits for a moment. A writer that has lost waits for a random part
of the latency, so that it does not stay in step with the winner, and for less the more often it has
lost. On a local disk, where a request takes a fraction of a millisecond, nothing of this is needed.
"""

from __future__ import annotations

LATENCY_MS_MIN = 2.0
"""Stores that answer faster are treated as a local disk."""
WINS_MAX = 4
"""Commits in a row after which a writer waits: two transactions in a shard."""
WANTED_MS = 60_000
"""For how long a commit of another process shows that the log is contended."""


def give_way_ms(
    *, wins: int, since_others_ms: int | None, latency_ms: float, jitter: float
) -> float:
    """How long to wait before the next commit; `jitter` is between 0 and 1.

    `wins` are this writer's commits in a row, `since_others_ms` the time since it has met another's
    (None: never), `latency_ms` that of a put. A loser needs two reads and a put to get in.
    """
    is_wanted = since_others_ms is not None and since_others_ms <= WANTED_MS
    if latency_ms < LATENCY_MS_MIN or wins < WINS_MAX or not is_wanted:
        return 0.0
    return (3.0 + 2.0 * jitter) * latency_ms


def retry_ms(attempt: int, *, latency_ms: float, jitter: float) -> float:
    """Wait before retry number `attempt` (0, 1, ...) of a commit that another process has beaten.

    `latency_ms` is that of a put, `jitter` is between 0 and 1.
    """
    if latency_ms >= LATENCY_MS_MIN:
        return jitter * max(0.5, 1.5 - 0.1 * attempt) * latency_ms
    if attempt < 3:
        return 0.0
    return (0.5 + 0.5 * jitter) * min(200.0, 0.5 * 2.0 ** min(attempt - 3, 9))
