"""Memory of Spark's Python workers: garbage collection, and pages that a task uses again.

Spark's daemon calls gc.collect() in a worker after each task, each plan and each commit. With
pyspark, pyarrow and this package imported it traverses more than 55,000 live objects, which takes
12 to 50 ms of processor time in each of the four workers of a small micro-batch. So only what is
new is collected; a cycle that dies later waits for a thousandth call (D50).

By default glibc gives arrays back to the system from 128 KiB on, and the end of the heap from 256
KiB on, so that the columns of each Arrow batch would lie in new pages: 10,000 page faults for a
million records. It raises both limits by itself when a larger block is freed.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
UNFREEZE_EVERY = 1_000
"""Every this many calls all objects are traversed: some may have become garbage while frozen."""

BLOCK_BYTES = 31 << 20
"""Just below 32 MiB, up to which glibc raises its limits."""

_calls = 0
_keeps = False


def collect_garbage() -> None:
    """Collect garbage and freeze the remaining objects, in a worker of Spark's daemon.

    The daemon's collection that follows then traverses few objects. The first call freezes without
    collecting, since a worker may have no second call. In other processes it does nothing.
    """
    global _calls
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != DAEMON:
        return
    _calls += 1
    if _calls % UNFREEZE_EVERY == 0:
        gc.unfreeze()
    if _calls > 1:
        gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Make glibc keep up to 62 MiB of freed memory for this process, as if it had used them.

    The first call's block is zeroed memory of the system that is never touched; a later one would
    be memory that is used again, and zeroed. Limits that were set by MALLOC_* variables stay, and
    other C libraries are not affected.
    """
    global _keeps
    if not _keeps:
        bytes(BLOCK_BYTES)
    _keeps = True
