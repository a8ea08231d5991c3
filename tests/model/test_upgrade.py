"""The upgrade of a root beside clients of both versions, in every interleaving."""

from __future__ import annotations

import pytest

from tests.model.search import assert_breaks, assert_holds
from tests.model.upgrade import (
    ENTRIES_LEFT,
    FORMAT_UNCHECKED,
    NOT_SEALED,
    SEALED_LATE,
    SWITCHED_FIRST,
    VERSIONS_KEPT,
    Upgrading,
)


def test_readers_see_every_acknowledged_offset_before_and_after_an_upgrade() -> None:
    """It dies anywhere, is repeated, and an old process keeps the root open (R45, R47, R62)."""
    result = assert_holds(Upgrading(), states_min=500)
    assert {"A finishes", "N finishes", "N commits 21", "U dies"} <= result.labels


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (NOT_SEALED, "readers see"),
        (SEALED_LATE, "readers see"),
        (SWITCHED_FIRST, "readers see"),
        (VERSIONS_KEPT, "readers see"),
        (FORMAT_UNCHECKED, "readers see"),
        (ENTRIES_LEFT, "readers see"),
    ],
)
def test_search_finds_the_order_that_loses_offsets(broken: str, what: str) -> None:
    """Every step of the upgrade is needed, in its order."""
    assert_breaks(Upgrading(frozenset({broken})), what)
