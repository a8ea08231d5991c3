"""A table of others takes part in a transaction, whatever its other writers do."""

from __future__ import annotations

import pytest

from tests.model import overwriting, publication
from tests.model.overwriting import Overwriting
from tests.model.publication import Publication
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize(
    ("foreign", "cleans", "states_min"),
    [("WIURZE", False, 10_000), ("WF", False, 100), ("WAE", True, 1_000)],
)
def test_publication_beside_foreign_writers(foreign: str, cleans: bool, states_min: int) -> None:
    """A decided part is in F once, under a schema that takes it, or waits for an operator (R74)."""
    assert_holds(Publication(foreign=foreign, cleans=cleans), states_min=states_min)


@pytest.mark.parametrize(
    ("rule", "foreign", "what"),
    [
        (publication.EARLY, "WIURZE", "visible without a decision"),
        (publication.NO_TXN, "W", "published twice"),
        (publication.CHECK_ONCE, "WIURZE", "another schema"),
        (publication.ID_UNCHECKED, "WIURZE", "another table"),
        (publication.SETTLE_CHANGED, "WIURZE", "completed and lost"),
        (publication.IN_FOLDER, "WIURZE", "a decided file was deleted"),
        (publication.AGE_OF_BEFORE, "F", "published twice"),
        (publication.NO_PATHS, "WE", "published twice"),
        (publication.NO_AGE, "WF", "published twice"),
        (publication.SHARED_APP, "W", "completed and lost"),
        (publication.UNKNOWN_TABLES, "W", "completed and lost"),
        (publication.NO_WAY_OUT, "I", "never be finished"),
    ],
)
def test_search_finds_what_a_missing_rule_of_publication_breaks(
    rule: str, foreign: str, what: str
) -> None:
    """A model that holds without a rule says nothing about the rule (R74)."""
    assert_breaks(Publication(frozenset({rule}), foreign=foreign), what)


def test_publication_into_a_log_that_was_cleaned_up_is_found_by_a_look() -> None:
    """Without a look at the version before, a commit in a freed slot counts as published (R74)."""
    broken = frozenset({publication.NO_LOOK})
    assert_breaks(Publication(broken, foreign="WA", cleans=True), "completed and lost")


@pytest.mark.parametrize("unproved", [True, False])
def test_no_rule_of_ours_helps_against_a_writer_that_overwrites(unproved: bool) -> None:
    """Reading back before COMPLETE only narrows it: docs/limits.md names such writers (R74)."""
    broken = {publication.OVERWRITES, *({publication.UNPROVED} if unproved else ())}
    assert_breaks(Publication(frozenset(broken), foreign=""), "completed and lost")


def test_overwrite_and_row_ids_beside_foreign_writers() -> None:
    """What an overwrite removes is what is live where it lands (R74)."""
    assert_holds(Overwriting(), states_min=100)
    assert_holds(Overwriting(appends=True), states_min=100)


@pytest.mark.parametrize(
    ("rule", "appends", "what"),
    [
        (overwriting.LISTED, False, "survive the overwrite"),
        (overwriting.NO_DELETION_VECTOR, False, "survive the overwrite"),
        (overwriting.OVER_APPEND_ONLY, False, "append-only"),
        (overwriting.IDS_EARLY, True, "one row id"),
    ],
)
def test_search_finds_what_a_missing_rule_of_an_overwrite_breaks(
    rule: str, appends: bool, what: str
) -> None:
    """A model that holds without a rule says nothing about the rule (R74)."""
    assert_breaks(Overwriting(frozenset({rule}), appends=appends), what)
