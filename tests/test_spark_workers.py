"""Garbage collection in Spark's Python workers: nothing stays, and little is looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, sys, types, weakref
from txnlog import spark_workers

class Thing:
    pass

def cycle():
    thing = Thing()
    thing.itself = thing
    return thing, weakref.ref(thing)

gc.disable()
thing, before = cycle()
del thing
spark_workers.collect_garbage()
assert before() is not None and gc.get_freeze_count() == 0, "not a worker of Spark"

sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
kept, later = cycle()
spark_workers.collect_garbage()
assert before() is None, "garbage of the call"
assert gc.get_freeze_count() > 1_000 and len(gc.get_objects()) < 100, "set aside"

del kept
thing, between = cycle()
del thing
spark_workers.collect_garbage()
assert between() is None and later() is not None, "what died after it was set aside"
for _ in range(spark_workers.UNFREEZE_EVERY):
    spark_workers.collect_garbage()
assert later() is None, "has its turn, too"
assert gc.get_freeze_count() > 1_000
"""


def test_only_what_is_new_is_looked_at_and_all_garbage_goes_in_time() -> None:
    project = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=project)
