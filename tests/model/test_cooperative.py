"""Every interleaving of cooperative members that hand over partitions while others come and go."""

from __future__ import annotations

import re

import pytest

from tests.model import cooperative_copies as copies
from tests.model.cooperative import (
    COMMITS_WHAT_IT_REVOKED,
    JOINS_BLINDLY,
    KEEPS_AFTER_A_GAP,
    KEEPS_ITS_ID,
    LATE_IN_ANY_GENERATION,
    MOVES_AT_ONCE,
    NEVER_REJOINS,
    REJOINS_FIRST,
    SUCCESSOR_FORGETS,
    Cooperative,
)
from tests.model.cooperative_copies import CooperativeMembers
from tests.model.members import REGISTERS_UNDER_ANY
from tests.model.rules import FETCH_FENCES_NOBODY, FETCHES_ONCE
from tests.model.search import assert_breaks, assert_holds


def test_two_members_hand_over_without_two_owners_or_none() -> None:
    """Whoever is expelled or dead, and whenever (R48)."""
    result = assert_holds(Cooperative("AB", joins=3, expulsions=2), states_min=5_000)
    assert {"A revokes", "A has lost its partitions", "B gets its part"} <= result.labels


def test_member_that_leaves_and_comes_back_owns_nothing_of_before() -> None:
    assert_holds(Cooperative("AB", joins=3, leaves=1), states_min=3_000)


def test_three_members_hand_over_to_two_at_once() -> None:
    """The rebalance that a revocation asks for meets that of another member (R48)."""
    assert_holds(Cooperative("ABC", partitions=3, joins=2), states_min=2_000)


def test_generation_from_outside_leaves_members_nothing() -> None:
    """A Spark query, assign() or a reset, at any moment of a rebalance (R48)."""
    result = assert_holds(Cooperative("ABS", joins=3), states_min=4_000)
    assert "S begins a generation" in result.labels


def test_restarted_instance_takes_over_what_the_former_one_holds_and_revokes() -> None:
    """Both may live; the successor may be expelled before the former one has seen it (KIP-345)."""
    result = assert_holds(Cooperative("ABR", joins=2), states_min=5_000)
    assert {"A is fenced", "R is fenced"} <= result.labels


@pytest.mark.soak
def test_members_that_join_once_more_hand_over() -> None:
    """The same in larger spaces, each to its end (R48, KIP-345)."""
    assert_holds(Cooperative("AB", joins=4, expulsions=2), states_min=10_000)
    assert_holds(Cooperative("ABR", joins=3), states_min=10_000)


@pytest.mark.parametrize(
    ("rule", "actors", "what"),
    [
        (MOVES_AT_ONCE, "AB", "may not commit what it revokes"),
        (COMMITS_WHAT_IT_REVOKED, "AB", "may both commit"),
        (LATE_IN_ANY_GENERATION, "AB", "may both commit"),
        (LATE_IN_ANY_GENERATION, "AS", "A and S may both commit"),
        (KEEPS_AFTER_A_GAP, "AB", "at rest the members hold"),
        (JOINS_BLINDLY, "ABR", "at rest the members hold"),
        (REJOINS_FIRST, "AB", "at rest the members hold"),
        (NEVER_REJOINS, "AB", "at rest the members hold [('in', 0)]"),
        (SUCCESSOR_FORGETS, "ABR", "at rest the members hold"),
        (KEEPS_ITS_ID, "AB", "may commit what it read before it lost"),
    ],
)
def test_search_finds_what_a_missing_rule_of_cooperation_breaks(
    rule: str, actors: str, what: str
) -> None:
    """A model that holds without a rule says nothing about it (R48)."""
    assert_breaks(Cooperative(actors, broken=frozenset({rule})), what)


# --- with transactions ----------------------------------------------------------------------------


def test_cooperative_members_copy_every_record_once() -> None:
    """A partition moves, is lost and comes back, with a transaction under way (R46, R48)."""
    result = assert_holds(CooperativeMembers("AB", records=1, joins=3), states_min=50_000)
    assert {"A keeps 1", "A revokes", "A rejoins with 1", "B1 fetches 0"} <= result.labels
    assert "B registers to 1: UnknownMemberIdError" in result.labels
    assert any(re.fullmatch(r"B1 fences idA ticket \d", label) for label in result.labels)
    assert "A sends offsets in on_revoke" in result.labels


def test_cooperative_members_copy_one_record_after_another() -> None:
    """A transaction that was refused, and the next one of the same member (R46, R49)."""
    result = assert_holds(CooperativeMembers("AB"), states_min=20_000)
    assert {"A goes back", "A reads 1"} <= result.labels


def test_cooperative_members_and_others_copy_every_record_once() -> None:
    """A Spark query, or a restarted instance, beside a hand-over (R48, KIP-345)."""
    assert_holds(CooperativeMembers("ABS", records=1, expulsions=0), states_min=10_000)
    result = assert_holds(CooperativeMembers("ABR", records=1, expulsions=0), states_min=5_000)
    assert {"A is fenced", "R is fenced"} <= result.labels


def test_cooperative_members_that_chain_transactions_copy_every_record_once() -> None:
    """A partition is handed over while the COMPLETE of its last transaction is left (R46, R48)."""
    result = assert_holds(CooperativeMembers("AB", chains=True), states_min=40_000)
    assert "A PREPARE of 1: after e0 " in result.labels
    assert "A PREPARE of 1: after e0 IllegalGenerationError" in result.labels


@pytest.mark.parametrize(
    ("rule", "joins", "expulsions"),
    [
        (FETCH_FENCES_NOBODY, 2, 1),
        (FETCHES_ONCE, 2, 1),
        (REGISTERS_UNDER_ANY, 2, 1),
        (copies.KEEPS_AFTER_A_GAP, 3, 1),
        (KEEPS_ITS_ID, 4, 1),
        (copies.RETURNS_AT_ONCE, 3, 1),
        (copies.EXPELLED_IS_NOBODY, 3, 1),
        (copies.EXPELLED_KEEPS, 3, 2),
    ],
)
def test_search_finds_copies_that_a_missing_rule_lets_through(
    rule: str, joins: int, expulsions: int
) -> None:
    """Rejoining under the old id lets a transaction of before the loss commit (D126)."""
    broken = frozenset({rule})
    assert_breaks(
        CooperativeMembers("AB", records=1, joins=joins, expulsions=expulsions, broken=broken),
        "twice",
    )


@pytest.mark.soak
def test_cooperative_members_copy_every_record_once_in_larger_spaces() -> None:
    """The same with another join or expulsion, or chained beside others, each to its end (R46,
    R48).
    """
    assert_holds(CooperativeMembers("AB", records=1, joins=4), states_min=80_000)
    assert_holds(CooperativeMembers("AB", records=1, joins=3, expulsions=2), states_min=500_000)
    result = assert_holds(CooperativeMembers("ABS", expulsions=0, chains=True), states_min=70_000)
    assert "A1 PREPARE of 1: after e0 " in result.labels
    assert_holds(CooperativeMembers("ABR", expulsions=0, chains=True), states_min=40_000)


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "ABC", "partitions": 3, "joins": 3},
        {"actors": "ABRS", "joins": 3, "expulsions": 2},
        {"actors": "AB", "partitions": 3, "joins": 5, "leaves": 1, "expulsions": 3},
    ],
    ids=str,
)
def test_larger_cooperative_groups_hand_over(model: dict[str, object]) -> None:
    """The same, with more of everything (R48)."""
    assert_holds(
        Cooperative(**model),  # type: ignore[arg-type]
        states_min=10_000,
        states_max=300_000,
        whole=False,
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        {"actors": "AB", "records": 2, "joins": 3, "expulsions": 2},
        {"actors": "ABS", "records": 1, "expulsions": 1},
        {"actors": "ABR", "records": 1, "expulsions": 1},
        {"actors": "AB", "records": 3, "joins": 3, "expulsions": 2, "chains": True},
        {"actors": "ABR", "records": 2, "expulsions": 1, "chains": True},
    ],
    ids=str,
)
def test_larger_cooperative_groups_copy_every_record_once(model: dict[str, object]) -> None:
    """The same, with more of everything (R46, R48)."""
    assert_holds(
        CooperativeMembers(**model),  # type: ignore[arg-type]
        states_min=100_000,
        states_max=1_000_000,
        whole=False,
    )
