"""A part that its table takes no more is staged again, beside helpers with the former row."""

from __future__ import annotations

import pytest

from tests.model import restaging
from tests.model.restaging import Restaging
from tests.model.search import assert_breaks, assert_holds


def test_restaging_beside_helpers_and_changes() -> None:
    """Old or new files are in the table, once, and the transaction ends (R74, R76)."""
    assert_holds(Restaging(), states_min=500)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (restaging.BLIND, "decided again"),
        (restaging.OWN_APP, "published twice"),
        (restaging.ONLY_NEW, "published twice"),
        (restaging.OLD_ROW, "published twice"),
        (restaging.VACUUMED, "deleted file"),
    ],
)
def test_search_finds_what_a_missing_rule_of_restaging_breaks(rule: str, what: str) -> None:
    """A model that holds without a rule says nothing about the rule (R76)."""
    assert_breaks(Restaging(frozenset({rule})), what)
