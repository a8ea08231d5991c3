"""Topics created again, and transactional.ids that expired, while they are in use."""

from __future__ import annotations

import pytest

from tests.model.lifetimes import Lifetimes
from tests.model.rules import COMPLETE_ANY_PRODUCER, ONE_ID_PER_TOPIC
from tests.model.search import assert_breaks, assert_holds


@pytest.mark.parametrize("second_id", ["a", "z"])
def test_topic_created_again_never_gets_what_was_for_the_old_one(second_id: str) -> None:
    """Old writers, staged files and markers meet the new topic of the same name (R11, R71)."""
    assert_holds(Lifetimes("PQDS", second_id=second_id), states_min=10_000)


def test_expired_id_is_another_producer_to_every_late_process() -> None:
    """Epochs start at 0 again: a late helper takes the new transaction for its own (R8, R35)."""
    assert_holds(Lifetimes("PQESH"), states_min=10_000)


def test_search_finds_the_topic_id_that_gets_no_marker() -> None:
    """A row that names both ids of a topic marks one of them: the other hangs (R71)."""
    model = Lifetimes("PDS", second_id="a", broken=frozenset({ONE_ID_PER_TOPIC}))
    assert_breaks(model, "undecided for ever")


def test_search_finds_the_helper_that_completes_another_producers_transaction() -> None:
    """COMPLETE by epoch alone ends the transaction of the id's next life unmarked (R35, R36)."""
    assert_breaks(
        Lifetimes("QPEH", broken=frozenset({COMPLETE_ANY_PRODUCER})), "undecided for ever"
    )
