"""Every interleaving of a snapshot with transactions, helpers and compaction."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.model.search import assert_breaks, assert_holds, search
from tests.model.snapshots import (
    ASKED_IGNORED,
    ASKED_OLD,
    BLOCKED_SHOWN,
    BY_ID,
    CHANGE,
    CHECKPOINT,
    CLEAN,
    COMPACT,
    CROSSED,
    DRAWN_UNMOVED,
    GROUPS_LAST,
    HEADS_FIRST,
    KNOWN_LATE,
    LIVE_IS_ENOUGH,
    MOVED_ONLY,
    NO_HELP,
    NO_LAST,
    NO_OFFSETS,
    NO_S0,
    NO_TICKETS,
    REAPPLIED,
    REMOVED_UNSEEN,
    REWRITTEN,
    ROWS_ONLY,
    SAME_ID,
    TABLE_HEADS,
    TABLE_OLD,
    TABLE_UNHELPED,
    UNDO,
    UNKNOWN,
    Snapshots,
    Tx,
)

TWO = {"X": Tx(0, "ab", 0), "Y": Tx(1, "ab", 1)}
AGAIN = {"X": Tx(0, "ab", 0, is_rewritten=True), "Y": Tx(1, "b", 1)}
CAUSES = {"P": Tx(0, "ac", 0), "C": Tx(1, "b", 1, cause="P", ticket=1)}
KEYS = {
    "O": Tx(0, "a", 0),
    "X": Tx(0, "ab", 0, epoch=1, after="O", over="O"),
}
OFFSETS = {
    "X1": Tx(0, "a", 0, ticket=1),
    "X2": Tx(0, "a", 0, epoch=1, after="X1", ticket=1),
    "Y": Tx(1, "a", 1, ticket=2, partition=1),
}
PLAIN = {
    "X": Tx(0, "a", 0, ticket=1),
    "Z": Tx(0, "", 9, after="X", ticket=1),
}
FENCED = {
    "X": Tx(0, "a", 1, ticket=1),
    "Y": Tx(1, "a", 0, after="X", ticket=2),
}
TABLES = {"X": Tx(0, "aF", 0), "Y": Tx(1, "F", 1)}
TWO_TABLES = {"X": Tx(0, "FG", 0), "Y": Tx(1, "FG", 1)}
SAME_IDS = {
    "X1": Tx(0, "a", 0),
    "X2": Tx(0, "F", 0, epoch=1, after="X1"),
    "Y": Tx(1, "F", 1),
}
MOVING = {"X": Tx(0, "aF", 0, ticket=1), "Y": Tx(1, "F", 1)}
CAUSES_OF_TABLE = {"P": Tx(0, "aF", 0), "C": Tx(1, "bF", 1, cause="P", ticket=1)}
THREE = {**TWO_TABLES, "Z": Tx(2, "G", 2)}
BOTH_LATE = {"X1": Tx(0, "F", 0), "X2": Tx(0, "aF", 0, epoch=1, after="X1")}

DECIDED = {"X": Tx(0, "aF", 0, decides="F"), "Y": Tx(1, "aF", 1)}
DECIDED_BOTH = {"X": Tx(0, "aF", 0, decides="F"), "Y": Tx(1, "bF", 1, decides="F")}
DECIDED_OFFSETS = {
    "X": Tx(0, "aF", 0, ticket=1, decides="F"),
    "Y": Tx(1, "bF", 1, after="X", ticket=2),
}


@pytest.mark.parametrize(
    ("world", "removes", "states_min"),
    [
        (TWO, (), 20_000),
        (AGAIN, (), 20_000),
        (CAUSES, (), 10_000),
        (KEYS, (CLEAN,), 4_000),
        (KEYS, (CLEAN, COMPACT), 40_000),
        ({name: OFFSETS[name] for name in ("X1", "X2")}, (), 2_000),
        (PLAIN, (), 500),
        (FENCED, (COMPACT,), 30_000),
    ],
)
def test_snapshot_shows_the_same_transactions_everywhere(
    world: Mapping[str, Tx], removes: tuple[str, ...], states_min: int
) -> None:
    """Half of a transaction, a loss, an output without its input, offsets of another moment."""
    result = assert_holds(Snapshots(world, removes=removes), states_min=states_min)
    assert "reader ends" in result.labels
    assert ("reader begins again" in result.labels) == (bool(removes) or world is CAUSES)


@pytest.mark.parametrize(
    ("world", "removes", "states_min", "is_cold"),
    [
        (TABLES, (CHECKPOINT,), 40_000, True),
        (TABLES, (CHANGE,), 20_000, False),
        (TWO_TABLES, (), 20_000, False),
        (SAME_IDS, (), 30_000, False),
        (MOVING, (), 30_000, False),
        (CAUSES_OF_TABLE, (), 40_000, False),
        (BOTH_LATE, (CHECKPOINT,), 10_000, True),
        (BOTH_LATE, (CHECKPOINT,), 10_000, False),
    ],
)
def test_snapshot_shows_the_same_transactions_in_tables(
    world: Mapping[str, Tx], removes: tuple[str, ...], states_min: int, is_cold: bool
) -> None:
    """Publications in another order than decisions, a log that is known from a checkpoint on, a
    table that takes no parts for a time.
    """
    model = Snapshots(world, removes=removes, is_cold=is_cold)
    result = assert_holds(model, states_min=states_min)
    assert "reader ends" in result.labels
    begins_again = is_cold or world is CAUSES_OF_TABLE
    assert ("reader begins again" in result.labels) == begins_again
    is_drawn = any(label.startswith("reader shows") for label in result.labels)
    assert is_drawn == (world is not BOTH_LATE)


@pytest.mark.parametrize("world", [DECIDED, DECIDED_BOTH, DECIDED_OFFSETS])
def test_snapshot_shows_of_what_a_table_decides_all_or_nothing(world: Mapping[str, Tx]) -> None:
    """The table's log says so before the row does; or the table refuses it (R77)."""
    result = assert_holds(Snapshots(world), states_min=30_000)
    assert {"reader ends", "reader settles", "X is refused"} <= result.labels
    assert "reader begins again" not in result.labels


def test_snapshot_waits_for_what_a_table_was_to_decide_before() -> None:
    """The table as it was before has no known version: a reader would begin again for as long as
    nobody ends the transaction (R77).
    """
    model = Snapshots(DECIDED, broken=frozenset({ASKED_OLD}))
    assert "reader gives up" in search(model).labels


@pytest.mark.soak
@pytest.mark.parametrize(
    ("world", "removes"),
    [
        (TWO, (COMPACT,)),
        (CAUSES, (COMPACT,)),
        (AGAIN, (COMPACT,)),
        (OFFSETS, ()),
        (THREE, ()),
        (TABLES, (CHANGE, UNDO, CHECKPOINT)),
    ],
)
def test_snapshot_shows_the_same_transactions_in_larger_worlds(
    world: Mapping[str, Tx], removes: tuple[str, ...]
) -> None:
    """The same with compaction beside, two producers of a group, three of tables."""
    assert_holds(Snapshots(world, removes=removes), states_min=200_000)


@pytest.mark.parametrize(
    ("rule", "world", "removes", "what"),
    [
        (NO_HELP, TWO, (), "was decided before, and is missing"),
        (HEADS_FIRST, TWO, (), "was decided before, and is missing"),
        (NO_LAST, TWO, (), "is half visible"),
        (ROWS_ONLY, TWO, (), "is half visible"),
        (REWRITTEN, AGAIN, (), "was decided before, and is missing"),
        (REMOVED_UNSEEN, TWO, (COMPACT,), "is half visible"),
        (KNOWN_LATE, TWO, (COMPACT,), "is half visible"),
        (LIVE_IS_ENOUGH, KEYS, (CLEAN,), "O was decided before, and is missing"),
        (NO_OFFSETS, CAUSES, (), "C is visible without its cause"),
        (NO_TICKETS, FENCED, (), "Y is visible without what its id, or its group, has done"),
        (NO_S0, OFFSETS, (), "the offsets at"),
        (GROUPS_LAST, OFFSETS, (), "the offsets at"),
        (MOVED_ONLY, OFFSETS, (), "the offsets at"),
        (REAPPLIED, PLAIN, (), "the offsets at"),
        (BY_ID, FENCED, (), "the offsets at"),
        (TABLE_HEADS, TABLES, (), "X is half visible"),
        (CROSSED, TABLES, (), "Y was decided before, and is missing"),
        (SAME_ID, SAME_IDS, (), "X2 is visible without what its id, or its group, has done"),
        (DRAWN_UNMOVED, MOVING, (), "the offsets at"),
        (UNKNOWN, TABLES, (CHECKPOINT,), "X is half visible"),
        (TABLE_UNHELPED, TABLES, (), "Y was decided before, and is missing"),
        (TABLE_OLD, TABLES, (), "Y was decided before, and is missing"),
        (BLOCKED_SHOWN, TABLES, (CHANGE,), "X is half visible"),
        (ASKED_IGNORED, DECIDED, (), "X is half visible"),
    ],
)
def test_search_finds_what_each_rule_is_for(
    rule: str, world: Mapping[str, Tx], removes: tuple[str, ...], what: str
) -> None:
    """Each rule left out alone gives a wrong snapshot."""
    broken = frozenset({rule})
    model = Snapshots(world, removes=removes, broken=broken, is_cold=rule == UNKNOWN)
    violation = assert_breaks(model, what)
    assert "reader ends" in violation.trace
