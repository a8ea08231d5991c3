"""The page of what the tests have done agrees with the figures that they recorded."""

from __future__ import annotations

import pytest

from tests.counts import PAGE, added, figures_of_runs, tables, with_tables
from txnlog.testing.counts import GROUPS, count


def test_page_is_made_from_the_recorded_figures() -> None:
    """A figure edited by hand, or a page not renewed, claims what no run has shown."""
    page = PAGE.read_text()
    assert page == with_tables(page, figures_of_runs())


def test_sums_of_processes_are_added_and_shown_by_run() -> None:
    """Figures of the workers of pytest-xdist must not replace one another."""
    sums = added([{"kills": {"driver": 2}}, {"states": {"M": 1_000}, "kills": {"driver": 1}}])
    assert sums == {"kills": {"driver": 3}, "states": {"M": 1_000}}
    shown = tables({"test": {"tests": 7, "counts": sums}, "mutants": {"counts": {}}})
    assert "| tests | 7 |  |\n" in shown
    assert f"| states: {GROUPS['states']} | 1,000 |  |\n" in shown
    assert "| kills | driver | 3 |  |\n" in shown


def test_counting_in_an_unknown_group_is_refused() -> None:
    """A typo would be a row of its own, which nobody misses."""
    with pytest.raises(KeyError):
        count("kill", "driver")
