"""Decisions about a group's row: generations, plain commits, and changes by operators."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import a_holder
from txnlog.errors import (
    CorruptLogError,
    IllegalGenerationError,
    NonEmptyGroupError,
    UnknownMemberIdError,
)
from txnlog.protocol.group_changes import (
    TICKET_UNKNOWN,
    is_gone,
    prepare_delete_group,
    prepare_delete_offsets,
    prepare_give_up_group,
)
from txnlog.protocol.group_metadata import CommittedOffset, GroupTickets, Member
from txnlog.protocol.groups import (
    Group,
    OffsetsCommit,
    prepare_fetch,
    prepare_generation,
    prepare_offset_commit,
    prepare_reset,
    reads_already,
    unstable,
    with_starts,
    without,
)

HELD = GroupTickets(newest=4, holders=(a_holder(3), a_holder(4, (1,))))
OFFSETS = {"in": {0: CommittedOffset(5, 2, 7), 1: CommittedOffset(6, 2, 7)}}
GROUP = Group(group_id="g", generation=2, offsets=OFFSETS, tickets=HELD)


def row_of(decision: OffsetsCommit | None) -> Group:
    assert decision is not None
    [row] = decision.groups
    return row


def commit(group: Group | None, offset: int, **more: Any) -> OffsetsCommit | None:
    given = {"generation": 2, "member_id": "", "metadata": {}, **more}
    return prepare_offset_commit(
        group, group_id="g", offsets={"in": {0: offset}}, version=9, now_ms=0, **given
    )


def reset(group: Group | None, *, generation: int = 2, done: tuple[int, ...] = ()) -> OffsetsCommit:
    return prepare_reset(
        group,
        group_id="g",
        generation=generation,
        done=done,
        positions={"in": {0: 1}},
        version=9,
        now_ms=0,
    )


def test_starts_are_committed_only_where_nobody_has_an_offset_or_the_partition() -> None:
    """An older position would replace a newer one, or one of another member (D126, D135)."""
    members = {
        name: Member(topics=("in",), assignors=("cooperative-sticky",)) for name in ("me", "other")
    }
    assignment = {"me": {"in": (2, 4)}, "other": {"in": (3,)}}
    group = replace(GROUP, members=members, assignment=assignment)
    offsets, starts = {"in": {4: 9}}, {"in": dict.fromkeys(range(5), 0), "new": {0: 0}}
    wanted = with_starts(group, member_id="me", offsets=offsets, starts=starts)
    assert wanted == {"in": {2: 0, 4: 9}, "new": {0: 0}}
    assert offsets == {"in": {4: 9}}


def test_group_reads_a_topic_by_its_offsets_or_those_of_its_pattern() -> None:
    """A topic whose offsets were deleted is read no more (D135)."""
    committed = {"orders.eu": {0: 5}, "gone": {}}
    assert reads_already(committed, "orders.eu", lambda name: False)
    assert reads_already(committed, "orders.us", lambda name: name.startswith("orders."))
    assert not reads_already(committed, "orders.us", lambda name: False)
    assert not reads_already(committed, "gone", lambda name: name == "gone")


def test_fetch_is_valid_under_its_generation_only() -> None:
    """A replaced reader would go on from a position that is its successor's (R46, R48)."""
    assert prepare_fetch(GROUP, group_id="g", generation=2) == {"in": {0: 5, 1: 6}}
    assert prepare_fetch(GROUP, group_id="g", generation=None) == {"in": {0: 5, 1: 6}}
    assert prepare_fetch(None, group_id="g", generation=None) == {}
    for generation in (1, 3):
        with pytest.raises(IllegalGenerationError, match=f"at generation 2, not {generation}"):
            prepare_fetch(GROUP, group_id="g", generation=generation)
    with pytest.raises(IllegalGenerationError):
        prepare_fetch(None, group_id="g", generation=3)


def test_error_of_unstable_offsets_names_who_has_them_open() -> None:
    error = unstable("g", HELD.holders)
    assert error.retriable
    assert "'g'" in str(error)
    assert "of id;" in str(error)


def test_generation_begins_without_assignment_and_keeps_the_holders() -> None:
    """Members would go on to read; who began it must fence the holders of that commit (R48)."""
    held = replace(GROUP, assignment={"x": {"in": (0,)}})
    begun = row_of(prepare_generation(held, group_id="g", now_ms=0))
    assert (begun.generation, begun.assignment, begun.tickets) == (3, {}, HELD)


def test_repeated_consumer_commit_is_not_written_again() -> None:
    """A lost reply, or an idle consumer that commits every 5 s (R28)."""
    once = row_of(commit(GROUP, 9, metadata={"in": {0: "note"}}))
    assert once.offsets["in"][0] == CommittedOffset(9, 2, 9, "note")
    assert commit(once, 9, metadata={"in": {0: "note"}}) is None
    assert row_of(commit(once, 9, metadata={"in": {0: "other"}})).positions()["in"][0] == 9


def test_plain_commit_leaves_the_holders_of_tickets() -> None:
    """It fences nobody: what they decide later counts as later."""
    assert row_of(commit(GROUP, 9)).tickets == HELD


def test_old_generation_or_member_commits_nothing() -> None:
    """Two consumers of one group both commit the same input (R48)."""
    for group, generation in ((None, 2), (GROUP, 1), (GROUP, 3)):
        with pytest.raises(IllegalGenerationError):
            commit(group, 5, generation=generation)
    with pytest.raises(UnknownMemberIdError, match="no member 'x'"):
        commit(GROUP, 5, member_id="x")
    member = replace(GROUP, members={"x": Member(topics=("in",))})
    with pytest.raises(UnknownMemberIdError):
        commit(member, 9, member_id="y")
    assert row_of(commit(member, 9, member_id="x")).members["x"].heartbeat == 1


def test_operator_writes_under_the_generation_that_it_began_only() -> None:
    """Who began another one since reads already, or will: it must find the old offsets (R48)."""
    later = replace(GROUP, generation=3)
    members = replace(GROUP, members={"x": Member(topics=("in",))})
    for refused in (
        lambda: reset(later),
        lambda: reset(None),
        lambda: delete_offsets(later),
        lambda: delete_group(later),
    ):
        with pytest.raises(IllegalGenerationError):
            refused()
    with pytest.raises(NonEmptyGroupError):
        delete_group(members)


def delete_offsets(group: Group) -> OffsetsCommit:
    return prepare_delete_offsets(
        group, group_id="g", generation=2, done=(3,), partitions={"in": (0,)}, now_ms=0
    )


def delete_group(group: Group, done: tuple[int, ...] = (3, 4)) -> OffsetsCommit:
    return prepare_delete_group(group, group_id="g", generation=2, done=done, now_ms=0)


def test_operator_removes_the_holders_that_it_has_fenced_and_no_other() -> None:
    """One that registered since is fenced by nobody else."""
    moved = row_of(reset(GROUP, done=(3,)))
    assert moved.offsets["in"][0] == CommittedOffset(1, 2, 9)
    assert moved.offsets["in"][1] == OFFSETS["in"][1]
    assert (moved.generation, moved.tickets) == (2, without(HELD, {3}))
    less = row_of(delete_offsets(GROUP))
    assert (less.positions(), less.tickets) == ({"in": {1: 6}}, without(HELD, {3}))
    gone = row_of(delete_group(GROUP))
    assert is_gone(gone)
    assert (gone.generation, gone.tickets) == (2, GroupTickets(newest=4))
    assert not is_gone(row_of(delete_group(GROUP, done=(3,))))


def test_group_that_is_given_up_gives_higher_tickets_than_ever() -> None:
    """Floors of its ids are unknown: a ticket below one would be refused for ever (D35)."""
    for text, generation in (("6", 7), ("x", (1 << 30) + 1)):
        row = row_of(prepare_give_up_group("g", {"generation": text}, path="p", now_ms=0))
        assert (row.generation, row.tickets) == (generation, GroupTickets(newest=TICKET_UNKNOWN))


def test_group_row_survives_the_store_and_damage_is_named() -> None:
    """A row that is read wrongly changes a group's position (R38, R66)."""
    group = replace(
        GROUP,
        members={"x": Member(topics=("in",), heartbeat=3, joined=1, host="h")},
        assignment={"x": {"in": (0, 1)}},
    )
    values = group.to_values()
    read = Group.from_values(values, path="f", source="s")
    assert read.to_values() == values
    assert (read.tickets, read.members, read.assignment) == (
        HELD,
        group.members,
        group.assignment,
    )
    for column in ("offsets", "tickets"):
        with pytest.raises(CorruptLogError, match="the-source.*'g'"):
            Group.from_values({**values, column: "{"}, path="f", source="the-source")
