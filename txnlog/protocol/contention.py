"""Turns of several writers at one log, where a request takes tens of milliseconds.

The writer whose commit is the newest puts the next one at once; the others have first to read that,
and come too late as long as it goes on. So a writer that has won several times in a row, on a log
that others have written lately, waits for a moment; and who has lost waits in proportion to the
latency, since a retry that is sure to come too late only costs requests. On a local disk, where a
request takes a fraction of a millisecond, nobody gives way.
"""

from __future__ import annotations

LATENCY_MS_MIN = 2.0
"""Stores that answer faster are treated as a local disk."""
WINS_MAX = 4
"""Commits in a row after which a writer gives way: two transactions in a shard."""
WANTED_MS = 60_000
"""For how long a commit of another process shows that others want the log."""


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

    At once at first; then up to some requests, but never as long as a winner gives way.
    """
    if attempt < 3:
        return 0.0
    local_ms = min(200.0, 0.5 * 2.0 ** min(attempt - 3, 9))
    if latency_ms < LATENCY_MS_MIN:
        return (0.5 + 0.5 * jitter) * local_ms
    return jitter * min(2.0, 0.25 * (attempt - 2)) * latency_ms
