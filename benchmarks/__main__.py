"""The figures of txnlog, and comparisons with peers that need no server: `make bench`."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.figures import Figure
from benchmarks.result_tables import RESULTS, write_page
from benchmarks.scale import Scale
from benchmarks.suite import Suite, run

SPARK_GROUPS = ("sink", "source", "sql", "latency", "table_batches")
GROUPS = (
    *("transactions", "clients", "aborted", "opening", "flatness", "history", "staging"),
    "task_phases",
    *("writers", "tables", "copies"),
    *("guards", "verify", "checkpoints"),
    *SPARK_GROUPS,
)


def measure(group: str, scale: Scale) -> list[Figure]:
    """The figures of one group, measured in this process."""
    module = import_module(f"benchmarks.{group}")
    figures: list[Figure]
    if group in SPARK_GROUPS:
        from benchmarks.session import bench_session

        with bench_session() as spark:
            figures = module.measure(spark, scale)
    else:
        figures = module.measure(scale)
    return figures


SUITE = Suite(
    module="benchmarks",
    description=__doc__ or "",
    groups=GROUPS,
    results=RESULTS,
    measure=measure,
    finish=write_page,
)

if __name__ == "__main__":
    sys.exit(run(SUITE))
