"""Every interleaving of a named snapshot with vacuum and the clean-up of logs."""

from __future__ import annotations

import pytest

from tests.model.pins import BY_TOMBSTONES, KNOWS_OLD, SAVES_LATE, SNAPSHOTS_FIRST, UNREAD, Pins
from tests.model.search import assert_breaks, assert_holds


def test_named_snapshot_keeps_its_files_and_its_versions() -> None:
    """It is written after the reads: soon, against the time for which everything is kept."""
    result = assert_holds(Pins(), states_min=2_000)
    assert {"S saves its snapshot", "V reads the snapshots", "V ends"} <= result.labels
    assert "W cleans up version 0" in result.labels


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (SAVES_LATE, "the snapshot"),
        (UNREAD, "a file that vacuum has deleted"),
        (SNAPSHOTS_FIRST, "a file that vacuum has deleted"),
        (BY_TOMBSTONES, "a file that vacuum has deleted"),
        (KNOWS_OLD, "a version that the log no longer shows"),
    ],
)
def test_search_finds_what_each_rule_is_for(rule: str, what: str) -> None:
    """Each rule left out alone loses a file or a version of a kept snapshot."""
    assert_breaks(Pins(frozenset({rule})), what)
