"""Vacuum and forgotten markers among transactions, on the real decisions."""

from __future__ import annotations

import pytest

from tests.model.housekeeping import (
    FORGET_LIVING,
    FORGET_REMOVED,
    NO_AGE_CHECK,
    NO_BARRIER,
    NO_OWNER_AGAIN,
    NO_ROW_AGAIN,
    NO_SETTLING,
    SHORT_MARKERS,
    TABLE_FIRST,
    TIME_LAST,
    Housekeeping,
)
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize(
    ("actors", "ticks", "states_min"), [("OHVX", 7, 10_000), ("OHE", 8, 1_000), ("ZTE", 9, 3_000)]
)
def test_housekeeping_among_transactions_loses_and_doubles_nothing(
    actors: str, ticks: int, states_min: int
) -> None:
    """Vacuum takes a staged file, or a forgotten marker lets a zombie write (R4, R8, R20, R72)."""
    assert_holds(Housekeeping(actors, ticks=ticks), states_min=states_min)


def test_two_helpers_and_a_forgotten_marker_publish_once() -> None:
    """The slower helper read the row just before it went (R36, R70)."""
    assert_holds(Housekeeping("HhE", ticks=6), states_min=10_000)


@pytest.mark.soak
@pytest.mark.parametrize("actors", ["HhE", "OHhE", "OHhVX", "OHVXE"])
def test_larger_worlds_hold(actors: str) -> None:
    """The same with more time and more processes (R4, R8, R72)."""
    assert_holds(Housekeeping(actors, ticks=9), states_min=50_000, states_max=800_000, whole=False)


@pytest.mark.parametrize(
    ("actors", "ticks", "rule", "what"),
    [
        ("OHVX", 7, NO_BARRIER, "vacuum took"),
        ("OHVX", 7, TABLE_FIRST, "vacuum took"),
        ("OHVX", 7, FORGET_REMOVED, "vacuum took"),
        ("OHVX", 7, NO_AGE_CHECK, "vacuum took"),
        ("HhE", 6, FORGET_LIVING, "twice"),
        ("HhE", 6, NO_SETTLING, "twice"),
        ("HhE", 6, NO_ROW_AGAIN, "twice"),
        ("OHhE", 6, TIME_LAST, "twice"),
        ("OHE", 8, SHORT_MARKERS, "twice"),
        ("ZTE", 9, NO_OWNER_AGAIN, "undecided"),
    ],
)
def test_search_finds_what_a_missing_rule_of_housekeeping_breaks(
    actors: str, ticks: int, rule: str, what: str
) -> None:
    """A model that holds without a rule says nothing about the rule (R8, R72)."""
    assert_breaks(Housekeeping(actors, ticks=ticks, broken=frozenset({rule})), what)
