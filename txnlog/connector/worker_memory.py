"""Garbage in Spark's Python workers, collected without looking at everything ever imported.

Spark's daemon calls gc.collect() in a worker after each task, each plan and each commit. With
pyspark, pyarrow and this package loaded it looks at 55,000 objects and more that are no garbage,
which takes 12 to 50 ms of processor time, in each of the four workers of a small micro-batch.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
UNFREEZE_EVERY = 1_000
"""How often everything is looked at after all: for what died after it was set aside."""

_calls = 0


def collect_garbage() -> None:
    """Collect what is garbage by now and set the rest aside, in a worker of Spark's daemon.

    The collection that follows finds next to nothing to look at. The first time everything is set
    aside as it is, since a worker may have no second call. Elsewhere nothing is done.
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
