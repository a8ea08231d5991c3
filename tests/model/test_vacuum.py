"""Vacuum among commits that make old files live."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.vacuum import (
    CHECK_BEFORE_SHARD,
    NO_AGE_CHECK,
    NO_BARRIER,
    SHARDS_FIRST,
    NewShard,
    PlainAppend,
)


def test_vacuum_and_an_append_without_a_transaction() -> None:
    """A staged file becomes live while vacuum decides that it is unreferenced (R72)."""
    assert_holds(PlainAppend(), states_min=20)


@pytest.mark.parametrize("rule", [NO_BARRIER, NO_AGE_CHECK])
def test_search_finds_the_append_that_loses_a_file(rule: str) -> None:
    """Decided before the file was old, or of a file that is old (R72)."""
    assert_breaks(PlainAppend(frozenset({rule})), "vacuum took")


def test_vacuum_and_the_first_write_to_a_shard() -> None:
    """There is no barrier in a shard that did not exist (R72)."""
    assert_holds(NewShard(), states_min=50)


@pytest.mark.parametrize("rule", [CHECK_BEFORE_SHARD, SHARDS_FIRST])
def test_search_finds_the_order_in_which_a_new_shard_loses_a_file(rule: str) -> None:
    """The shard first, then the topics; the topics' barriers first, then the shards (R72)."""
    assert_breaks(NewShard(frozenset({rule})), "vacuum took")
