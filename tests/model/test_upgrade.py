"""The upgrade of a root beside clients of both versions, in every interleaving."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.upgrade import (
    CARRIED_FIRST,
    CONVERTED_FIRST,
    NOT_COMPARED,
    NOT_LOCKED,
    OFFSETS_OPEN,
    PREPARED_DROPPED,
    STATES_OPEN,
    SWITCHED_FIRST,
    VERSIONS_IGNORED,
    Upgrading,
)


def test_readers_see_every_acknowledged_offset_after_an_upgrade() -> None:
    """It dies anywhere, is repeated, meets another, and an old process has the root open."""
    result = assert_holds(Upgrading(), states_min=5_000)
    labels = {"A moves the offsets", "A completes", "A creates P", "N finishes", "N commits 60"}
    assert labels | {"N completes what A prepared", "U dies", "V does carry"} <= result.labels


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (NOT_LOCKED, "old form"),
        (OFFSETS_OPEN, "readers see"),
        (STATES_OPEN, "readers see"),
        (CARRIED_FIRST, "readers see"),
        (CONVERTED_FIRST, "readers see"),
        (SWITCHED_FIRST, "old form"),
        (VERSIONS_IGNORED, "readers see"),
        (PREPARED_DROPPED, "readers see"),
        (NOT_COMPARED, "readers see"),
    ],
)
def test_search_finds_the_order_that_loses_offsets(broken: str, what: str) -> None:
    """Every step of the upgrade is needed, in its order."""
    assert_breaks(Upgrading(frozenset({broken})), what)
