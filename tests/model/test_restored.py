"""Every interleaving of two clients whose transaction log is restored alone."""

from __future__ import annotations

import pytest

from tests.model.restored import Restored
from tests.model.rules import COMMITS_UNSEEN, DECIDES_UNSEEN, MARKER_IS_OWN, PUBLISHES_UNSEEN
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("at_rest", [True, False])
def test_what_a_client_was_told_is_in_every_topic_in_two_phases(
    at_rest: bool, unread: bool
) -> None:
    """Also where the restored log has what is prepared, and lacks its decision (R36, D131)."""
    model = Restored(at_rest=at_rest, in_two_phases=True, unread=unread)
    result = assert_holds(model, states_min=1_000)
    met = {"B keeps what is prepared", "B ends: LogGapError", "B decides COMMIT", "A is told"}
    assert met <= result.labels
    assert ("B finds another marker in x" in result.labels) == (unread or not at_rest)


def test_search_finds_the_marker_in_a_topic_that_could_not_be_read() -> None:
    """The commit of what is prepared waits for no topic: its publication must look (R4)."""
    broken = frozenset({MARKER_IS_OWN})
    model = Restored(at_rest=True, in_two_phases=True, unread=True, broken=broken)
    assert_breaks(model, "told, and in no topic")


def test_search_finds_the_commit_of_what_is_prepared_that_asks_no_topic() -> None:
    """Each kept transaction whose successor was lost would block its id for ever (R36)."""
    model = Restored(at_rest=True, in_two_phases=True, broken=frozenset({COMMITS_UNSEEN}))
    assert_breaks(model, "never to be published")


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


def test_header_of_a_restored_topic_names_no_file_that_is_gone() -> None:
    """Its newest transaction has COMPLETE left, and is published again by the next start."""
    result = assert_holds(Restored(at_rest=True, of_topic=True), states_min=1_000)
    assert {"B misses a file of x", "B publishes in x", "A is told"} <= result.labels


def test_search_finds_who_publishes_for_another_and_does_not_look_at_the_files() -> None:
    """A reader of the topic would stop at that header, for ever."""
    broken = frozenset({PUBLISHES_UNSEEN})
    assert_breaks(Restored(at_rest=True, of_topic=True, broken=broken), "a reader stops at")
