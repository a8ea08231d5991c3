"""Vacuum among commits that make old files live."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.vacuum import (
    FORGET_REMOVED,
    NO_AGE_CHECK,
    NO_BARRIER,
    TOPIC_FIRST,
    Vacuum,
)


def test_vacuum_deletes_nothing_that_may_still_be_referenced() -> None:
    """A staged file becomes live while vacuum decides that it is unreferenced (R20, R72)."""
    assert_holds(Vacuum(), states_min=200)


@pytest.mark.parametrize("rule", [NO_BARRIER, TOPIC_FIRST, FORGET_REMOVED, NO_AGE_CHECK])
def test_search_finds_what_a_missing_step_of_vacuum_breaks(rule: str) -> None:
    """A model that holds without a step says nothing about the step (R72)."""
    assert_breaks(Vacuum(frozenset({rule})), "vacuum took")
