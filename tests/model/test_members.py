"""Every interleaving of members that join, revoke, are expelled and copy in transactions."""

from __future__ import annotations

import re

import pytest

from tests.model.members import REGISTERS_UNDER_ANY, TWO_OWNERS, Members
from tests.model.rules import FETCH_FENCES_NOBODY, FETCHES_ONCE, FORGETS_BY_OLD_ROW
from tests.model.search import assert_breaks, assert_holds


def test_two_members_copy_every_record_once() -> None:
    """A member that was expelled wakes up in the middle of its transaction (R45, R46, R48)."""
    result = assert_holds(Members("AB", expulsions=2), states_min=5_000)
    assert {"A revokes: REBALANCING", "A revokes: LOST"} <= result.labels
    assert "A registers to 1: UnknownMemberIdError" in result.labels
    assert any(re.fullmatch(r"B fences idA ticket \d", label) for label in result.labels)


def test_three_members_copy_every_record_once() -> None:
    """Two take over from a third, one after the other (R48)."""
    assert_holds(Members("ABC", records=1, joins=1), states_min=6_000)


def test_members_and_an_outsider_copy_every_record_once() -> None:
    """A Spark query starts in the group at any moment of a rebalance (R48, R59)."""
    assert_holds(Members("ABS", records=1), states_min=10_000)


def test_instance_that_restarts_while_it_lives_copies_every_record_once() -> None:
    """Both have the same part under the same generation (R48)."""
    result = assert_holds(Members("AR", expulsions=0), states_min=1_000)
    assert "R takes its part of generation 1" in result.labels
    assert_holds(Members("ABR", records=1, joins=1), states_min=5_000)


def test_holders_that_are_over_are_forgotten_beside_members() -> None:
    """A holder is not forgotten while it could commit, whenever a sweeper looks (R73)."""
    result = assert_holds(Members("ABH", records=1, joins=1), states_min=1_000)
    assert "outsider forgets idA ticket 1" in result.labels


def test_members_that_chain_transactions_copy_every_record_once() -> None:
    """Who takes over completes what was left; the next decision is refused then (R46)."""
    result = assert_holds(Members("AB", records=3, chains=True), states_min=15_000)
    assert {"A PREPARE of 1: after e0 ", "A PREPARE of 2: after e1 "} <= result.labels
    assert "A PREPARE of 1: after e0 IllegalGenerationError" in result.labels
    result = assert_holds(Members("ABH", joins=1, chains=True), states_min=8_000)
    assert "outsider forgets idA ticket 1" in result.labels
    assert_holds(Members("ABS", joins=1, chains=True), states_min=30_000)


@pytest.mark.parametrize(
    "rule",
    [TWO_OWNERS, REGISTERS_UNDER_ANY, FETCH_FENCES_NOBODY, FETCHES_ONCE, FORGETS_BY_OLD_ROW],
)
def test_search_finds_what_a_missing_rule_of_membership_breaks(rule: str) -> None:
    """A model that holds without a rule says nothing about it (R46, R48)."""
    actors = "ABH" if rule == FORGETS_BY_OLD_ROW else "AB"
    assert_breaks(Members(actors, broken=frozenset({rule})), "twice")


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "ABC", "records": 2},
        {"actors": "ABS", "records": 2, "joins": 3, "expulsions": 2},
        {"actors": "ABC", "records": 2, "chains": True},
        {"actors": "ABS", "records": 3, "chains": True},
        {"actors": "ABR", "records": 3, "chains": True},
    ],
    ids=str,
)
def test_larger_groups_copy_every_record_once(model: dict[str, object]) -> None:
    """The same, with more of everything (R48)."""
    assert_holds(
        Members(**model),  # type: ignore[arg-type]
        states_min=50_000,
        states_max=1_000_000,
        whole=False,
    )
