"""Run all benchmarks, show one table, write benchmarks/results.json."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import transactions
from benchmarks.figures import Figure, environment

RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Exit status 1 when a goal does not hold."""
    figures = transactions.measure()
    RESULTS.write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")
    print(
        f"{platform.machine()}, {environment()}, Python {platform.python_version()}, "
        f"obstore {version('obstore')}, deltalake {version('deltalake')}"
    )
    show(figures)
    print(f"written to {RESULTS}")
    return 0 if all(figure.holds for figure in figures) else 1


def show(figures: list[Figure]) -> None:
    """A table for people."""
    print(f"{'figure':<58} {'value':>10} {'unit':<6} {'goal':>8}  holds")
    for figure in figures:
        holds = "yes" if figure.holds else "NO"
        print(
            f"{figure.name:<58} {figure.value:>10.3f} {figure.unit:<6} {figure.goal:>8}  {holds}"
            + (f"   against {figure.against}" if figure.against else "")
        )


if __name__ == "__main__":
    sys.exit(main())
