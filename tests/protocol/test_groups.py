"""Decisions about a group's row: pending entries, generations, and which write wins."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from txnlog.errors import (
    CorruptLogError,
    IllegalGenerationError,
    OffsetConflictError,
    ProducerFencedError,
    UnknownMemberIdError,
)
from txnlog.protocol.group_metadata import Member
from txnlog.protocol.groups import (
    Group,
    GroupOffsets,
    OffsetsCommit,
    PendingOffsets,
    UnstableOffsets,
    prepare_clear,
    prepare_fetch,
    prepare_generation,
    prepare_offset_commit,
    prepare_offsets_marker,
    prepare_pending,
    prepare_reset,
    unstable,
)
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch
from txnlog.protocol.states import TransactionResult

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


@dataclass
class Table:
    """`__consumer_offsets` in memory: decisions are written at once."""

    version: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)

    def write(self, decision: object) -> object:
        if isinstance(decision, OffsetsCommit):
            self.version += 1
            self.groups.update({group.group_id: group for group in decision.groups})
            self.markers.update(decision.txns)
        return decision

    @property
    def group(self) -> Group:
        return self.groups["g"]

    def bump(self) -> int:
        self.write(prepare_generation(self.groups.get("g"), group_id="g", now_ms=0))
        return self.group.generation

    def pending(
        self,
        start: int,
        end: int,
        *,
        producer_id: int = 7,
        epoch: int = 0,
        generation: int = 1,
        partition: int = 0,
        merge: bool = False,
        member_id: str = "",
    ) -> object:
        request = GroupOffsets(
            group_id="g",
            generation=generation,
            start={} if merge else {"in": {partition: start}},
            end={"in": {partition: end}},
            member_id=member_id,
        )
        decision = prepare_pending(
            self.groups,
            self.markers,
            [request],
            holder=Holder(
                transactional_id=f"id{producer_id}",
                producer_id=producer_id,
                producer_epoch=epoch,
                run_id="",
            ),
            version=self.version + 1,
            now_ms=0,
            merge=merge,
        )
        return self.write(decision)

    def commit(
        self,
        offset: int,
        *,
        partition: int = 0,
        generation: int = 1,
        member_id: str = "",
        metadata: str = "",
    ) -> object:
        decision = prepare_offset_commit(
            self.groups.get("g"),
            group_id="g",
            generation=generation,
            member_id=member_id,
            offsets={"in": {partition: offset}},
            metadata={"in": {partition: metadata}},
            version=self.version + 1,
            now_ms=0,
        )
        return self.write(decision)

    def mark(self, result: TransactionResult, *, producer_id: int = 7, epoch: int = 0) -> object:
        decision = prepare_offsets_marker(
            self.groups,
            self.markers,
            group_ids=["g", "missing"],
            transaction=ProducerIdAndEpoch(producer_id, epoch),
            result=result,
            version=self.version + 1,
            now_ms=0,
        )
        return self.write(decision)

    def reset(self, offset: int) -> object:
        decision = prepare_reset(
            self.groups.get("g"),
            group_id="g",
            positions={"in": {0: offset}},
            version=self.version + 1,
            now_ms=0,
        )
        return self.write(decision)

    def position(self) -> int | None:
        return self.group.positions().get("in", {}).get(0)


@pytest.fixture
def table() -> Table:
    made = Table()
    made.bump()
    return made


def test_offsets_of_a_transaction_show_when_it_commits(table: Table) -> None:
    """Input would count as read although its output may still be aborted (R45)."""
    table.pending(0, 5)
    assert table.position() is None
    table.mark(COMMIT)
    assert (table.position(), table.group.pending) == (5, ())


def test_offsets_of_an_aborted_transaction_are_dropped(table: Table) -> None:
    """Input of an aborted transaction would be skipped (R45, R46, R49)."""
    table.pending(0, 5)
    table.mark(ABORT)
    assert (table.position(), table.group.pending) == (None, ())


def test_fetch_while_pending_names_the_entries_to_settle(table: Table) -> None:
    """Two readers would read the same input from a position about to change (R46)."""
    table.pending(0, 5)
    found = prepare_fetch(table.group, group_id="g", generation=1)
    assert isinstance(found, UnstableOffsets)
    assert [entry.transactional_id for entry in found.entries] == ["id7"]
    error = unstable("g", found.entries)
    assert error.retriable
    assert "id7" in str(error)
    table.mark(COMMIT)
    assert prepare_fetch(table.group, group_id="g", generation=1) == {"in": {0: 5}}


def test_fetch_of_a_group_that_was_never_written_is_empty() -> None:
    """A first start is no error (R46)."""
    assert prepare_fetch(None, group_id="g", generation=None) == {}
    with pytest.raises(IllegalGenerationError):
        prepare_fetch(None, group_id="g", generation=3)


def test_marker_repeated_late_never_overwrites_a_newer_commit(table: Table) -> None:
    """A slow helper restores an old position (R5, R47)."""
    table.pending(0, 5)
    table.mark(COMMIT)
    table.pending(5, 9, epoch=1)
    table.mark(COMMIT, epoch=1)
    assert table.mark(COMMIT) is None
    assert table.position() == 9


def test_end_of_an_older_transaction_does_not_overwrite_newer_offsets(table: Table) -> None:
    """Another producer's older entry is settled after a newer commit of the group (R47)."""
    table.pending(0, 5)
    entry = table.group.pending[0]
    newer = Table(table.version, dict(table.groups), dict(table.markers))
    newer.write(prepare_clear(newer.group, entry, now_ms=0))
    newer.reset(9)
    revived = OffsetsCommit(operation="x", groups=(_with_entry(newer.group, entry),))
    newer.write(revived)
    newer.mark(COMMIT)
    assert newer.position() == 9


def _with_entry(group: Group, entry: PendingOffsets) -> Group:
    return Group(group_id="g", generation=group.generation, offsets=group.offsets, pending=(entry,))


def test_marker_without_an_entry_only_refuses_later_entries(table: Table) -> None:
    """A step 0 after the end would leave an entry that is never settled (R4, R46)."""
    before = table.group
    assert isinstance(table.mark(ABORT, epoch=3), OffsetsCommit)
    assert table.group == before
    for epoch in (2, 3):
        with pytest.raises(ProducerFencedError, match="has ended"):
            table.pending(0, 5, epoch=epoch)
    assert isinstance(table.pending(0, 5, epoch=4), OffsetsCommit)


def test_stale_generation_is_refused_everywhere(table: Table) -> None:
    """A replaced consumer would overwrite its successor's offsets (R48)."""
    table.bump()
    with pytest.raises(IllegalGenerationError, match="at generation 2, not 1"):
        table.pending(0, 5, generation=1)
    with pytest.raises(IllegalGenerationError):
        prepare_fetch(table.group, group_id="g", generation=1)
    with pytest.raises(IllegalGenerationError):
        Table().pending(0, 5)


def test_entry_of_a_newer_epoch_of_the_producer_fences_it(table: Table) -> None:
    """The successor's entry exists when the zombie resumes (R44, R47)."""
    table.pending(0, 5, epoch=2)
    with pytest.raises(ProducerFencedError, match="newer than this producer's epoch 1"):
        table.pending(0, 5, epoch=1)


def test_own_older_entry_is_replaced_and_a_foreign_one_must_be_settled(table: Table) -> None:
    """Two entries on one partition: the later end would win, right or wrong (R46, R47)."""
    table.pending(0, 5)
    table.pending(0, 6, epoch=1)
    assert [(e.txn_epoch, e.offsets) for e in table.group.pending] == [(1, {"in": {0: 6}})]
    found = table.pending(0, 7, producer_id=8)
    assert isinstance(found, UnstableOffsets)
    assert [entry.producer_id for entry in found.entries] == [7]
    assert isinstance(table.pending(0, 7, producer_id=8, partition=1), OffsetsCommit)
    assert len(table.group.pending) == 2


def test_existing_entry_is_not_written_again(table: Table) -> None:
    """A lost reply must not give the entry a newer version (R28, R47)."""
    table.pending(0, 5)
    assert table.pending(0, 5) is None
    table.bump()
    assert isinstance(table.pending(0, 5, generation=2), OffsetsCommit)
    assert table.group.pending[0].generation == 2


def test_start_below_a_position_of_the_same_generation_is_refused(table: Table) -> None:
    """Another run of the checkpoint has committed this input already (R55, R58)."""
    table.pending(0, 5)
    table.mark(COMMIT)
    with pytest.raises(OffsetConflictError, match="offset 5 of 'in' partition 0"):
        table.pending(0, 5, producer_id=8)
    table.bump()
    assert isinstance(table.pending(0, 5, producer_id=8, generation=2), OffsetsCommit)


def test_offsets_sent_in_several_calls_are_all_committed(table: Table) -> None:
    """A second send_offsets_to_transaction must keep the offsets of the first one (R45)."""
    table.pending(0, 5, merge=True)
    table.pending(0, 7, partition=1, merge=True)
    table.pending(0, 6, merge=True)
    entries = [(e.version, e.offsets) for e in table.group.pending]
    assert entries == [(3, {"in": {1: 7}}), (4, {"in": {0: 6}})]
    assert table.pending(0, 6, merge=True) is None
    table.mark(COMMIT)
    assert table.group.positions() == {"in": {0: 6, 1: 7}}
    assert table.group.pending == ()


def test_offsets_sent_in_several_calls_keep_the_version_of_their_call(table: Table) -> None:
    """A commit between two calls overrides the first and is overridden by the second (R47)."""
    table.pending(0, 5, merge=True)
    table.commit(9)
    table.commit(3, partition=1)
    table.pending(0, 7, partition=1, merge=True)
    table.mark(COMMIT)
    assert table.group.positions() == {"in": {0: 9, 1: 7}}


def test_failed_attempt_leaves_no_offsets_in_the_next_one_of_its_epoch(table: Table) -> None:
    """A deferred commit failed after step 0; the next one has the same epoch (R47)."""
    table.pending(0, 5)
    table.pending(0, 7, partition=1)
    table.mark(COMMIT)
    assert table.group.positions() == {"in": {1: 7}}


def test_offsets_of_an_older_transaction_are_not_extended(table: Table) -> None:
    """Entries of the former epoch must never commit with this one (R47)."""
    table.pending(0, 5, merge=True)
    table.pending(0, 7, partition=1, epoch=1, merge=True)
    assert [(e.txn_epoch, e.offsets) for e in table.group.pending] == [(1, {"in": {1: 7}})]


def test_consumer_commit_overrides_entries_pending_before_it(table: Table) -> None:
    """The transaction's older position would repeat records (R47)."""
    table.pending(0, 5)
    table.commit(8)
    assert table.position() == 8
    table.mark(COMMIT)
    assert table.position() == 8
    table.pending(8, 9, epoch=1)
    table.mark(COMMIT, epoch=1)
    assert table.position() == 9


def test_repeated_consumer_commit_is_not_written_again(table: Table) -> None:
    """A lost reply, or an idle consumer that commits every 5 s (R28)."""
    table.commit(5, metadata="note")
    assert table.commit(5, metadata="note") is None
    assert table.group.offsets["in"][0].metadata == "note"
    assert isinstance(table.commit(5, metadata="other"), OffsetsCommit)
    table.pending(5, 7)
    assert isinstance(table.commit(5, metadata="other"), OffsetsCommit)
    table.mark(COMMIT)
    assert table.position() == 5


def test_old_generation_or_member_commits_nothing(table: Table) -> None:
    """Two consumers of one group both commit the same input (R48)."""
    with pytest.raises(IllegalGenerationError):
        Table().commit(5)
    with pytest.raises(UnknownMemberIdError, match="no member 'x'"):
        table.commit(5, member_id="x")
    with pytest.raises(UnknownMemberIdError):
        table.pending(0, 5, member_id="x", merge=True)
    table.groups["g"] = replace(table.group, members={"x": Member(topics=("in",))})
    table.commit(5, member_id="x")
    assert table.group.members["x"].heartbeat == 1
    assert isinstance(table.pending(0, 6, member_id="x", merge=True), OffsetsCommit)
    table.bump()
    for refused in (table.commit, lambda n, **k: table.pending(0, n, merge=True, **k)):
        with pytest.raises(IllegalGenerationError):
            refused(7, member_id="x")
    assert table.position() == 5


def test_fetch_for_some_partitions_ignores_entries_on_others(table: Table) -> None:
    """A starting member must not fence the transactions of all the others (R46)."""
    table.pending(0, 5)
    only: dict[str, tuple[int, ...]] = {"in": (1,)}
    assert prepare_fetch(table.group, group_id="g", generation=1, partitions=only) == {}
    found = prepare_fetch(table.group, group_id="g", generation=1, partitions={"in": (0, 1)})
    assert isinstance(found, UnstableOffsets)


def test_generation_started_by_no_member_clears_the_assignment(table: Table) -> None:
    """Members would continue to read beside a Spark query, or before a reset (R48)."""
    held = replace(table.group, assignment={"x": {"in": (0,)}})
    for decision in (
        prepare_generation(held, group_id="g", now_ms=0),
        prepare_reset(held, group_id="g", positions={}, version=9, now_ms=0),
    ):
        assert isinstance(decision, OffsetsCommit)
        assert decision.groups[0].assignment == {}


def test_clear_drops_exactly_the_given_entry(table: Table) -> None:
    """The entry has been replaced: the new one's producer is alive (R46)."""
    table.pending(0, 5)
    met = table.group.pending[0]
    table.pending(0, 6, epoch=1)
    assert prepare_clear(table.group, met, now_ms=0) is None
    assert prepare_clear(None, met, now_ms=0) is None
    table.write(prepare_clear(table.group, table.group.pending[0], now_ms=0))
    assert table.group.pending == ()


def test_reset_waits_for_entries_and_begins_a_generation(table: Table) -> None:
    """A batch under way would overwrite the operator's position (R46, R48)."""
    table.pending(0, 5)
    assert isinstance(table.reset(3), UnstableOffsets)
    table.mark(ABORT)
    table.reset(3)
    assert (table.position(), table.group.generation) == (3, 2)
    with pytest.raises(IllegalGenerationError):
        table.pending(0, 5, epoch=1)


def test_group_row_survives_the_store_and_damage_is_named(table: Table) -> None:
    """A row that is read wrongly changes a group's position (R38, R66)."""
    table.pending(0, 5)
    table.groups["g"] = replace(
        table.group,
        members={"x": Member(topics=("in",), heartbeat=3, joined=1, host="h")},
        assignment={"x": {"in": (0, 1)}},
    )
    values = {**table.group.to_values(), "from_the_future": "kept"}
    read = Group.from_values(values, path="f", source="s")
    assert read.to_values() == values
    assert read.pending == table.group.pending
    assert (read.members, read.assignment) == (table.group.members, table.group.assignment)
    with pytest.raises(CorruptLogError, match="the-source.*'g'"):
        Group.from_values({**values, "offsets": "{"}, path="f", source="the-source")
