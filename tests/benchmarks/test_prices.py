"""The table of requests and prices is what the benchmark counts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.prices import costs, table

PAGE = Path(__file__).parents[2] / "docs/object-stores.md"


def test_table_of_prices_is_as_it_is_counted_now() -> None:
    """A request more in a transaction would otherwise show in users' bills first."""
    assert table(costs()) in PAGE.read_text(), "python -m benchmarks.prices"
