"""Every interleaving of eager and two-phase producers, their successors, and the sweeper."""

from __future__ import annotations

import pytest

from tests.model.eager import APPEND_BEFORE_ADD, Eager
from tests.model.rules import (
    ABORT_SKIPS_OFFSETS,
    CLEAR_WITHOUT_FENCE,
    COMPLETE_BEFORE_OFFSETS,
    FENCE_BREAKS_PROMISE,
    MARKER_WITHOUT_TXN,
    STEP0_IGNORES_MARKERS,
)
from tests.model.search import assert_breaks, assert_holds

SOAK_STATES_MAX = 600_000


def test_successor_of_the_same_id_aborts_or_finishes_what_it_finds() -> None:
    """A zombie keeps writing while its successor and the sweeper end it (R4, R27, R31, R44)."""
    assert_holds(Eager("PQS", same_id=True), states_min=20_000)


def test_two_producers_of_one_group_never_both_commit_an_input() -> None:
    """An entry whose holder is slow looks like one whose holder is dead (R32, R45, R46, R48)."""
    assert_holds(Eager("PQS"), states_min=15_000)


def test_group_that_the_row_does_not_name_is_settled_by_who_meets_the_entry() -> None:
    """An abort that knows of no group leaves the entry behind (R46)."""
    assert_holds(Eager("PQS", named_groups=False), states_min=10_000)


def test_prepared_two_phase_transaction_waits_for_its_client() -> None:
    """A process that meets its pending entry must not end the transaction (R46)."""
    assert_holds(Eager("PQS", two_phase=True), states_min=5_000)


def test_lost_replies_of_a_producer_are_settled_by_asking_again() -> None:
    """Every write lands, and its writer does not know (R2, R28, R30, R31, R63)."""
    assert_holds(Eager("PQ", same_id=True, lost_replies=True), states_min=3_000)


@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (STEP0_IGNORES_MARKERS, "came back"),
        (MARKER_WITHOUT_TXN, "undecided for ever"),
        (ABORT_SKIPS_OFFSETS, "entry is still there"),
        (CLEAR_WITHOUT_FENCE, "position 0"),
        (COMPLETE_BEFORE_OFFSETS, "position 0"),
        (APPEND_BEFORE_ADD, "undecided for ever"),
    ],
)
def test_search_finds_what_a_missing_rule_breaks(rule: str, what: str, same_id: bool) -> None:
    """A model that holds without a rule says nothing about the rule (R4, R30, R45, R46)."""
    assert_breaks(Eager("PQS", same_id=same_id, broken=frozenset({rule})), what)


def test_search_finds_the_race_of_fencing_with_a_two_phase_prepare() -> None:
    """The holder prepares between the read of its row and the write that fences it (R46)."""
    broken = frozenset({FENCE_BREAKS_PROMISE})
    assert_breaks(Eager("PQ", two_phase=True, broken=broken), "ended by another process")


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "PQSL"},
        {"actors": "PQS", "units": 2},
        {"actors": "PQS", "units": 2, "same_id": True},
        {"actors": "PQSL", "two_phase": True},
        {"actors": "PQ", "lost_replies": True},
    ],
    ids=str,
)
def test_larger_worlds_hold(model: dict[str, object]) -> None:
    """The same hazards with one helper or one transaction more (R4, R32, R44, R45, R46, R47)."""
    held = Eager(**model)  # type: ignore[arg-type]
    assert_holds(held, states_min=2_000, states_max=SOAK_STATES_MAX, whole=False)
