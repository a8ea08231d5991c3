"""Every interleaving of a producer for two groups, and of who takes over one of them."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.several_groups import (
    CHAINS_BEFORE_LAST,
    COMPLETES_ONE,
    FLOOR_OF_ONE,
    ONE_GROUP_MOVES,
    SeveralGroups,
)

SOAK_STATES_MAX = 600_000


@pytest.mark.parametrize(
    ("same_id", "sparse"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.soak),
        pytest.param(True, False, marks=pytest.mark.soak),
    ],
)
def test_who_takes_over_one_group_of_a_transaction_repeats_and_skips_nothing(
    same_id: bool, sparse: bool
) -> None:
    """Its offsets move in both groups, or it is refused in both (R45, R46, R47)."""
    result = assert_holds(SeveralGroups(same_id=same_id, sparse=sparse), states_min=15_000)
    assert {"O leaves COMPLETE", "O PREPARE unit 1 e1 IllegalGenerationError"} <= result.labels
    assert {"G offsets of h of id0 e0", "H offsets of g of id0 e0"} <= result.labels


@pytest.mark.parametrize("units", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_lost_reply_of_a_chained_decision_is_settled_by_asking_again(units: int) -> None:
    """Of O, and of who takes over (R36, R63)."""
    assert_holds(SeveralGroups(units=units, lost_replies=True), states_min=10_000)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (FLOOR_OF_ONE, "topic y holds"),
        (ONE_GROUP_MOVES, "position 0 of h"),
        (CHAINS_BEFORE_LAST, "position 0 of h"),
        (COMPLETES_ONE, "position 0 of h"),
    ],
)
def test_search_finds_what_a_missing_rule_breaks(rule: str, what: str) -> None:
    """A model that holds without a rule says nothing about it."""
    assert_breaks(SeveralGroups(sparse=True, broken=frozenset({rule})), what)


@pytest.mark.soak
@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize("actors", ["OGH", "OGHL"])
def test_larger_worlds_hold(actors: str, same_id: bool) -> None:
    """One transaction, or one late helper, more."""
    units = 3 if actors == "OGH" else 2
    held = SeveralGroups(actors, units=units, same_id=same_id)
    assert_holds(held, states_min=50_000, states_max=SOAK_STATES_MAX, whole=False)
