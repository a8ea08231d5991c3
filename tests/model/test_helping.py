"""Several markers in one commit: each transaction once, at its offsets, if and only if decided."""

from __future__ import annotations

import pytest

from tests.model import helping
from tests.model.helping import Helping
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize(
    ("model", "states_min"),
    [
        (Helping(), 50_000),
        (Helping(epochs=1, opens=True), 2_000),
        (Helping(epochs=1, deletes=True), 20_000),
        (Helping(epochs=1, deletes=True, renewed=True), 1_000),
        (Helping(epochs=1, forgets=True), 5_000),
    ],
)
def test_owners_publish_what_others_have_decided(model: Helping, states_min: int) -> None:
    """Old rows, old heads, puts without a reply, a topic created again, markers forgotten (R79)."""
    found = assert_holds(model, states_min=states_min)
    assert "A puts" in found.labels


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (helping.UNDECIDED, "visible without a decision"),
        (helping.UNPLACED, "offsets are not dense"),
        (helping.REPEATED, "published twice"),
        (helping.ON_TOP, "completed and lost"),
    ],
)
def test_search_finds_what_a_missing_rule_of_helping_breaks(rule: str, what: str) -> None:
    """A model that holds without a rule says nothing about the rule (R79)."""
    assert_breaks(Helping(rule), what)


def test_rows_that_were_read_before_markers_were_forgotten_do_not_count() -> None:
    assert_breaks(Helping(helping.OLD, forgets=True), "published twice")


def test_row_of_a_topic_that_was_created_again_is_not_for_the_new_one() -> None:
    assert_breaks(Helping(helping.ANY_ID, deletes=True, renewed=True), "a topic that was deleted")
