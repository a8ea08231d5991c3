"""docs/reliability.md agrees with the recorded figures."""

from __future__ import annotations

import pytest

from tests.counts import PAGE, added, figures_of_runs, tables, with_tables
from txnlog.testing.counts import GROUPS, count


def test_page_is_generated_from_the_recorded_figures() -> None:
    """An edited figure, or an outdated page, would claim what no run has shown."""
    page = PAGE.read_text()
    assert page == with_tables(page, figures_of_runs())


def test_counts_of_processes_are_added_and_shown_by_run() -> None:
    """Figures of the workers of pytest-xdist must not replace one another."""
    sums = added([{"kills": {"driver": 2}}, {"states": {"M": 1_000}, "kills": {"driver": 1}}])
    assert sums == {"kills": {"driver": 3}, "states": {"M": 1_000}}
    shown = tables({"test": {"tests": 7, "counts": sums}, "mutants": {"counts": {}}})
    assert "| tests | 7 |  |\n" in shown
    assert f"| states: {GROUPS['states']} | 1,000 |  |\n" in shown
    assert "| kills | driver | 3 |  |\n" in shown


def test_counting_in_an_unknown_group_raises() -> None:
    """A typo would silently create a new row."""
    with pytest.raises(KeyError):
        count("kill", "driver")
