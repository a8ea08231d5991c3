"""txnlog compared with Kafka, Delta and confluent-kafka on the same data: `make bench-peers`."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.figures import Figure, package_versions
from benchmarks.peers.broker import peer_versions
from benchmarks.peers.report import FIGURES, write_report
from benchmarks.scale import Scale
from benchmarks.suite import Suite, run

GROUPS = ("sink", "source", "latency", "clients")


def measure(group: str, scale: Scale) -> list[Figure]:
    """The figures of one group; each starts a broker and stops it."""
    figures: list[Figure] = import_module(f"benchmarks.peers.{group}").measure(scale)
    return figures


SUITE = Suite(
    module="benchmarks.peers",
    description=__doc__ or "",
    groups=GROUPS,
    results=FIGURES,
    measure=measure,
    versions=lambda: package_versions() | peer_versions(),
    finish=write_report,
    shapes=True,
)

if __name__ == "__main__":
    sys.exit(run(SUITE))
