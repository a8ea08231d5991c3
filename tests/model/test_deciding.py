"""A change that depends on what was read: the table decides, and any process carries it out."""

from __future__ import annotations

import pytest

from tests.model import deciding
from tests.model.deciding import Deciding
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize("foreign", ["WK", "AF", "M", "R"])
def test_table_decides_beside_helpers_new_owners_floors_and_foreign_writers(foreign: str) -> None:
    """The change and all else of its transaction are there, or nothing is (R77)."""
    assert_holds(Deciding(foreign=foreign), states_min=50_000)


@pytest.mark.parametrize(
    ("rule", "foreign", "what"),
    [
        (deciding.IN_ROW, "W", "not in the table"),
        (deciding.TIMED_OUT, "W", "aborted, and in the table"),
        (deciding.UNFENCED, "A", "aborted, and in the table"),
        (deciding.NO_LOOK, "A", "aborted, and in the table"),
        (deciding.UNCHECKED, "W", "overwritten"),
        (deciding.NO_TXN, "W", "changed twice"),
        (deciding.EARLY, "W", "not in the table"),
        (deciding.UNPROVED, "M", "not in the table"),
        (deciding.OLD_ROW, "AF", "aborted, and in the table"),
        (deciding.REPLACED, "R", "aborted, and in the table"),
        (deciding.TWO, "W", "can never be finished"),
    ],
)
def test_search_finds_what_a_missing_rule_of_deciding_breaks(
    rule: str, foreign: str, what: str
) -> None:
    """A model that holds without a rule says nothing about the rule (R77)."""
    assert_breaks(Deciding(frozenset({rule}), foreign=foreign), what)
