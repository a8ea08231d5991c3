"""txnlog on an S3 server that answers as late as a real one does: `make bench-stores`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.scale import Scale
from benchmarks.suite import Suite, run

GROUPS = ("commits", "groups", "writers", "opening", "upkeep", "micro_batches", "bulk", "tables")


def measure(group: str, scale: Scale) -> list[Figure]:
    """The figures of one group; each starts a server and stops it."""
    figures: list[Figure] = import_module(f"benchmarks.stores.{group}").measure(scale)
    return figures


SUITE = Suite(
    module="benchmarks.stores",
    description=__doc__ or "",
    groups=GROUPS,
    results=Path(__file__).parent.parent / "stores.json",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run(SUITE))
