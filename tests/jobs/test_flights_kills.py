"""The plan of kills: readable, seeded, and complete for the demo."""

from __future__ import annotations

import argparse

import pytest
from flights_kills import (
    DEFAULT_KILLS,
    DELAY_MS_MAX,
    FAILPOINTS,
    RANDOM,
    TRANSACTIONS_MAX,
    parse_kills,
    plan_kills,
)

from txnlog.process import failpoint


def test_plan_same_seed_gives_the_same_moments() -> None:
    """A failed run is repeated with the seed it printed."""
    kinds = parse_kills(DEFAULT_KILLS)
    assert plan_kills(kinds, 7) == plan_kills(kinds, 7)
    assert len({tuple(plan_kills(kinds, seed)) for seed in range(20)}) == 20


def test_plan_default_has_every_kill_the_demo_promises() -> None:
    """Each kind of kill has its own recovery (R36, R54, R59)."""
    plan = plan_kills(parse_kills(DEFAULT_KILLS), 1)
    places = [kill.place for kill in plan]
    assert places.count(RANDOM) >= 3
    assert "marker.after" in places
    assert "sink_commit.after" in places
    lost = [kill.place for kill in plan if kill.loses_checkpoint]
    assert lost == ["prepare_commit.after"]


def test_plan_moments_stay_within_their_bounds() -> None:
    """A kill that waits for more transactions than there are would never happen."""
    for seed in range(50):
        for kill in plan_kills(parse_kills(DEFAULT_KILLS), seed):
            assert 1 <= kill.transactions <= TRANSACTIONS_MAX
            assert 0 <= kill.delay_ms <= DELAY_MS_MAX


def test_failpoint_of_a_kill_exists_in_txnlog() -> None:
    """A misspelt name would never fire, and the kill would not happen."""
    assert set(FAILPOINTS) <= set(failpoint.NAMES)
    kill = plan_kills(parse_kills("marker.after"), 3)[0]
    assert kill.failpoint == f"marker.after@{2 * kill.transactions - 1}:driver"  # two topics
    assert plan_kills(parse_kills(RANDOM), 3)[0].failpoint is None


@pytest.mark.parametrize("text", ["marker", "random+lost", "random,,x"])
def test_kills_unknown_word_is_named(text: str) -> None:
    """A misspelt kill must not run a demo with fewer kills."""
    with pytest.raises(argparse.ArgumentTypeError, match="unknown kill"):
        parse_kills(text)


def test_kills_empty_list_is_a_run_without_kills() -> None:
    """For a measurement of the pipeline alone."""
    assert parse_kills("") == ()
