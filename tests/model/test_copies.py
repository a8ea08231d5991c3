"""Every interleaving of three runs that copy to one place, and a client of it."""

from __future__ import annotations

import pytest

from tests.model.copies import (
    BEGINS_BLINDLY,
    ENDS_BLINDLY,
    LISTS_LATE,
    OPENS_LATE,
    READS_BLINDLY,
    SKIPS,
    SNAPSHOT_FIRST,
    Copies,
)
from tests.model.search import assert_breaks, assert_holds


def test_place_has_one_snapshot_whatever_runs_meet_there() -> None:
    """When it is opened, and at the versions that it had when it was whole (R75)."""
    result = assert_holds(Copies(), states_min=1_000)
    assert {"C ends", "B was taken over", "B leaves it", "A gives up"} <= result.labels


def test_copy_that_is_restored_while_runs_write_it_is_of_one_snapshot() -> None:
    """Else the restore is refused (R75)."""
    result = assert_holds(Copies(runs="AB", is_restored=True), states_min=1_000)
    assert {"the reader restores", "the reader is refused", "B ends"} <= result.labels


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (OPENS_LATE, "overwritten"),
        (BEGINS_BLINDLY, "of two snapshots"),
        (SKIPS, "of two snapshots"),
        (ENDS_BLINDLY, "of two snapshots"),
        (SNAPSHOT_FIRST, "goes back"),
        (LISTS_LATE, "is gone"),
    ],
)
def test_search_finds_what_each_rule_is_for(rule: str, what: str) -> None:
    """Each rule left out alone mixes two snapshots, or loses what a client wrote."""
    assert_breaks(Copies(frozenset({rule})), what)


def test_search_finds_a_restore_that_does_not_look_again() -> None:
    assert_breaks(
        Copies(frozenset({READS_BLINDLY}), runs="AB", is_restored=True), "restored is of two"
    )
