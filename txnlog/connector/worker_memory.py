"""Garbage collection in Spark's Python workers without traversing all imported objects.

Spark's daemon calls gc.collect() in a worker after each task, each plan and each commit. With
pyspark, pyarrow and this package imported it traverses more than 55,000 live objects, which takes
12 to 50 ms of processor time in each of the four workers of a small micro-batch.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
UNFREEZE_EVERY = 1_000
"""Every this many calls all objects are traversed: some may have become garbage while frozen."""

_calls = 0


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
