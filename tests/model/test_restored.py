"""Every interleaving of two clients whose transaction log is restored alone."""

from __future__ import annotations

import pytest

from tests.model.restored import Restored
from tests.model.rules import DECIDES_UNSEEN, MARKER_IS_OWN
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize("at_rest", [True, False])
def test_what_a_client_was_told_is_in_every_topic(at_rest: bool) -> None:
    """Also where clients went on while the log was restored (R4, R36, D131)."""
    result = assert_holds(Restored(at_rest=at_rest), states_min=1_000)
    assert {"B decides", "B decides: LogGapError", "A is told"} <= result.labels


def test_search_finds_who_takes_the_marker_of_a_lost_transaction_for_its_own() -> None:
    """Acknowledged, and in no topic (R4)."""
    broken = frozenset({DECIDES_UNSEEN, MARKER_IS_OWN})
    assert_breaks(Restored(at_rest=True, broken=broken), "told, and in no topic")


def test_search_finds_the_marker_that_comes_after_the_topics_were_read() -> None:
    """A client that goes on publishes what it decided before the restore (R5)."""
    broken = frozenset({MARKER_IS_OWN})
    assert_breaks(Restored(at_rest=False, broken=broken), "told, and in no topic")


def test_search_finds_what_is_decided_and_can_never_be_published() -> None:
    """Its id would be blocked for ever (R36)."""
    broken = frozenset({DECIDES_UNSEEN})
    assert_breaks(Restored(at_rest=True, broken=broken), "never to be published")
