"""A transactional.id that expires under a producer, its successor, and a repeated commit."""

from __future__ import annotations

import pytest

from tests.model.revival import Revival
from tests.model.rules import REVIVES_DECIDED, REVIVES_OPEN
from tests.model.search import assert_breaks, assert_holds


def test_expired_id_is_taken_again_at_a_begin_only_and_nothing_is_published_twice() -> None:
    """A missing row says neither who had it, nor what it had decided (R35, R36, R44)."""
    result = assert_holds(Revival("ABE"), states_min=10_000)
    assert {"A finds no row, open", "A finds no row, decided"} <= result.labels
    assert_holds(Revival("AEH"), states_min=500)


@pytest.mark.soak
def test_helper_of_an_expired_id_publishes_nothing_twice_beside_its_successor() -> None:
    """All of them at once (R35, R36, R44)."""
    assert_holds(Revival("ABEH"), states_min=40_000)


def test_search_finds_the_zombie_that_commits_under_a_new_producer_id() -> None:
    """Fenced, its successor's row expired: its old transaction is the successor's work (R44)."""
    found = assert_breaks(Revival("ABE", broken=frozenset({REVIVES_OPEN})), "published twice")
    assert any(label.startswith("B") for label in found.trace)


def test_search_finds_the_repeated_commit_that_is_published_again() -> None:
    """Decided, finished, expired, and repeated: a new producer id has no marker (R36)."""
    found = assert_breaks(Revival("AEH", broken=frozenset({REVIVES_DECIDED})), "moves from offset")
    assert "E forgets the id" in found.trace
