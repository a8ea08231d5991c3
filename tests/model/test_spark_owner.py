"""Every interleaving of a query's runs, its successor after a lost checkpoint, and helpers."""

from __future__ import annotations

import pytest

from tests.model.rules import (
    COMPLETE_BEFORE_OFFSETS,
    FENCE_BY_EPOCH,
    FENCE_FORGETS_RUN,
    FORGETS_BY_OLD_ROW,
    MARKER_WITHOUT_TXN,
    START_FENCES_NOBODY,
)
from tests.model.search import assert_breaks, assert_holds
from tests.model.spark_owner import (
    FETCH_BEFORE_BUMP,
    FORGET_BATCHES,
    LEAVES_A_MARKER,
    SparkOwner,
)

SOAK_STATES_MAX = 600_000


def test_two_runs_on_one_checkpoint_commit_each_batch_once() -> None:
    """A zombie run repeats or tears a batch that its successor has committed (R36, R54, R58)."""
    result = assert_holds(SparkOwner("AB", batches=3), states_min=1_500)
    assert {"A leaves COMPLETE", "A goes on with batch 1", "B complete of id0 e0"} <= result.labels


def test_two_runs_without_a_group_commit_each_batch_once() -> None:
    """Without offsets only the last batch id in the row says what is done (R54, R55)."""
    assert_holds(SparkOwner("ABH", batches=3, grouped=False), states_min=500)


def test_lost_checkpoint_with_the_old_runs_alive_is_exactly_once() -> None:
    """The old driver dies, or does not, at any moment of its last batch. The new query knows the
    old one only by the holder in the group's row (R45, R46, R47, R59).
    """
    result = assert_holds(SparkOwner("ABC"), states_min=15_000)
    assert "C fences id0 ticket 1" in result.labels


def test_holder_that_is_over_is_forgotten_without_harm() -> None:
    """A sweeper takes it from the group's row while others register and start (R73)."""
    result = assert_holds(SparkOwner("ACS"), states_min=1_000)
    assert "S forgets id0 ticket 1" in result.labels


def test_run_whose_ticket_was_refused_does_not_get_another() -> None:
    """The query was started anew; the old run asks again, under its generation (R45)."""
    result = assert_holds(SparkOwner("AC"), states_min=400)
    assert "A PREPARE: IllegalGenerationError" in result.labels
    assert "A registers: IllegalGenerationError" in result.labels


def test_late_helper_of_a_finished_transaction_changes_nothing() -> None:
    """A helper wakes up with a row that is history by now (R5, R36, R47)."""
    assert_holds(SparkOwner("ABH", batches=2), states_min=3_000)


def test_operator_reset_among_runs_keeps_output_and_position_together() -> None:
    """A reset between registering and PREPARE: the batch commits its input again (R46, R48)."""
    assert_holds(SparkOwner("ACR"), states_min=2_000)


def test_lost_replies_are_settled_by_asking_again() -> None:
    """Every write lands, and its writer does not know (R28, R36, R63)."""
    assert_holds(SparkOwner("ABH", lost_replies=True), states_min=3_000)
    assert_holds(SparkOwner("AC", lost_replies=True), states_min=900)


def test_fenced_run_decides_nothing_any_more() -> None:
    """A fresh commit worker of a fenced run adopts the raised epoch and continues (R43)."""
    assert_holds(SparkOwner("ABF", batches=2, grouped=False), states_min=200)


@pytest.mark.parametrize(
    ("rule", "model", "what"),
    [
        (START_FENCES_NOBODY, {"actors": "AC"}, "twice"),
        (COMPLETE_BEFORE_OFFSETS, {"actors": "AC"}, "position 0"),
        (FETCH_BEFORE_BUMP, {"actors": "AC"}, "twice"),
        (FORGETS_BY_OLD_ROW, {"actors": "ACS"}, "twice"),
        (MARKER_WITHOUT_TXN, {"actors": "AH"}, "moves from offset"),
        (LEAVES_A_MARKER, {"actors": "A", "batches": 2}, "its output is not there"),
        (FORGET_BATCHES, {"actors": "AB", "grouped": False}, "twice"),
        (FENCE_FORGETS_RUN, {"actors": "AF", "batches": 2}, "was fenced"),
        (FENCE_BY_EPOCH, {"actors": "AF", "batches": 3}, "was fenced"),
    ],
)
def test_search_finds_what_a_missing_rule_breaks(
    rule: str, model: dict[str, object], what: str
) -> None:
    """A model that holds without a rule says nothing about it (R4, R43, R46, R55, R58, R59)."""
    assert_breaks(SparkOwner(**model, broken=frozenset({rule})), what)  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "ABC", "batches": 2},
        {"actors": "ABCH"},
        {"actors": "ABCH", "batches": 2},
        {"actors": "ABCR"},
        {"actors": "ACHR", "batches": 2},
        {"actors": "AC", "batches": 2, "lost_replies": True},
        {"actors": "ABC", "batches": 3},
        {"actors": "ABCF", "batches": 2},
    ],
    ids=str,
)
def test_larger_worlds_hold(model: dict[str, object]) -> None:
    """The same hazards with one process or one batch more (R36, R46, R47, R58, R59)."""
    held = SparkOwner(**model)  # type: ignore[arg-type]
    assert_holds(held, states_min=2_000, states_max=SOAK_STATES_MAX, whole=False)
