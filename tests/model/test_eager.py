"""Every interleaving of eager and two-phase producers, their successors, and the sweeper."""

from __future__ import annotations

import pytest

from tests.model.eager import APPEND_BEFORE_ADD, Eager
from tests.model.rules import (
    ABORT_MOVES_OFFSETS,
    COMPLETE_BEFORE_OFFSETS,
    FENCE_BREAKS_PROMISE,
    FORGETS_BY_OLD_ROW,
    MARKER_WITHOUT_TXN,
    START_FENCES_NOBODY,
)
from tests.model.search import assert_breaks, assert_holds

SOAK_STATES_MAX = 600_000


def test_successor_of_the_same_id_aborts_or_finishes_what_it_finds() -> None:
    """A zombie keeps writing while its successor and the sweeper end it (R4, R27, R31, R44)."""
    assert_holds(Eager("PQS", same_id=True), states_min=20_000)


def test_two_producers_of_one_group_never_both_commit_an_input() -> None:
    """A ticket whose holder is slow looks like one whose holder is dead (R32, R45, R46, R48)."""
    assert_holds(Eager("PQS"), states_min=15_000)


def test_offsets_that_are_sent_with_the_end_are_refused_all_the_same() -> None:
    """The row of an open transaction does not say that it will commit offsets (R46)."""
    result = assert_holds(Eager("PQS", sends=False), states_min=5_000)
    assert "P PREPARE COMMIT e0: IllegalGenerationError" in result.labels


def test_holder_of_an_open_transaction_is_not_forgotten() -> None:
    """A sweeper takes what is over from the group's row, and nothing else (R73)."""
    result = assert_holds(Eager("PQG"), states_min=1_000)
    assert "G forgets id0 ticket 1" in result.labels


@pytest.mark.parametrize("same_id", [False, True])
def test_row_that_expires_beside_a_sweeper_that_forgets_lets_nobody_commit_twice(
    same_id: bool,
) -> None:
    """The floors go with the row, and the holders with the group's (R35, R46, R73)."""
    result = assert_holds(Eager("PQGE", same_id=same_id), states_min=15_000)
    assert {"G forgets id0 ticket 1", "E expires id0"} <= result.labels


def test_prepared_two_phase_transaction_waits_for_its_client() -> None:
    """A process that meets its ticket must not end the transaction (R46)."""
    assert_holds(Eager("PQS", two_phase=True), states_min=5_000)


def test_lost_replies_of_a_producer_are_settled_by_asking_again() -> None:
    """Every write lands, and its writer does not know (R2, R28, R30, R31, R63)."""
    assert_holds(Eager("PQ", same_id=True, lost_replies=True), states_min=3_000)


@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (MARKER_WITHOUT_TXN, "undecided for ever"),
        (ABORT_MOVES_OFFSETS, "position 1"),
        (COMPLETE_BEFORE_OFFSETS, "position 0"),
        (APPEND_BEFORE_ADD, "undecided for ever"),
    ],
)
def test_search_finds_what_a_missing_rule_breaks(rule: str, what: str, same_id: bool) -> None:
    """A model that holds without a rule says nothing about the rule (R4, R30, R45, R46)."""
    assert_breaks(Eager("PQS", same_id=same_id, broken=frozenset({rule})), what)


@pytest.mark.parametrize(
    ("rule", "actors"), [(START_FENCES_NOBODY, "PQ"), (FORGETS_BY_OLD_ROW, "PQG")]
)
def test_search_finds_who_commits_beside_another(rule: str, actors: str) -> None:
    """Two producers of one group commit one input (R45, R46)."""
    assert_breaks(Eager(actors, broken=frozenset({rule})), "twice")


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
        {"actors": "PQE", "units": 2, "same_id": True},
    ],
    ids=str,
)
def test_larger_worlds_hold(model: dict[str, object]) -> None:
    """The same hazards with one helper or one transaction more (R4, R32, R44, R45, R46, R47)."""
    held = Eager(**model)  # type: ignore[arg-type]
    assert_holds(held, states_min=2_000, states_max=SOAK_STATES_MAX, whole=False)
