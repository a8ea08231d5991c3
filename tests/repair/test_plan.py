"""The plan of a repair, rule by rule, without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from txnlog.protocol.batches import ABORTED, COMMITTED, NONE, ONGOING, BatchHeader, encode_stats
from txnlog.protocol.group_metadata import CommittedOffset, Group, GroupTickets
from txnlog.protocol.metadata import (
    GroupTicket,
    LastBatch,
    Manifest,
    Owner,
    StagedBatch,
    StagedTable,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.repair.facts import (
    LEAP,
    Decisions,
    Gap,
    Markers,
    SalvagedRows,
    SalvagedTopic,
)
from txnlog.protocol.repair.plan import Planner, RepairPlan
from txnlog.protocol.shards import offsets_table, state_table
from txnlog.protocol.states import TransactionState as S

STATES, OFFSETS = state_table(0), offsets_table(0)
OTHERS = ("u", "v")


def staged(topic: str, path: str, records: int = 2) -> StagedBatch:
    return StagedBatch(
        topic=topic,
        topic_id=f"id-{topic}",
        partition=0,
        path=path,
        size_bytes=100,
        num_records=records,
        timestamp_min_us=0,
        timestamp_max_us=0,
        staged_ms=0,
    )


def row(state: S, epoch: int, **given: Any) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=given.pop("name", "t"),
        producer_id=given.pop("producer_id", 7),
        producer_epoch=given.pop("producer_epoch", epoch + 1),
        txn_epoch=epoch,
        state=state,
        timeout_ms=1_000,
        owner=Owner(run_id="run", **given.pop("owner", {})),
        path="row-1.parquet",
        **given,
    )


def topic(name: str, marker: int = -1, *, end: int = 10, **given: Any) -> SalvagedTopic:
    known = {7: marker} if marker >= 0 else {}
    markers = given.pop("markers", Markers(newest=known, before=known))
    return SalvagedTopic(name=name, topic_id=f"id-{name}", ends=[end], markers=markers, **given)


def batch(path: str, epoch: int, status: str, base: int = 4, **given: Any) -> BatchHeader:
    return BatchHeader(path, 0, base, base + 1, 7, epoch, 0, status, 100, encode_stats(2, 0, 0))


def plan(
    topics: Sequence[SalvagedTopic],
    rows: Sequence[TransactionMetadata] = (),
    decided: Sequence[TransactionMetadata] = (),
    groups: Sequence[Group] = (),
    *,
    broken: set[tuple[str, str]] = frozenset(),  # type: ignore[assignment]
    states_lost: bool = False,
    offsets_lost: bool = False,
    offsets_markers: Markers | None = None,
) -> RepairPlan:
    by_name = {one.name: one for one in topics}
    offsets = {
        OFFSETS: SalvagedRows(
            table=OFFSETS,
            rows={one.group_id: one for one in groups},
            markers=offsets_markers or Markers(),
            has_lost=offsets_lost,
            version=9,
        )
    }
    decisions = Decisions(by_name, offsets, shards=1)
    for one in (*decided, *rows):
        decisions.add(one, 1_000)
    planner = Planner(
        topics=by_name,
        states={
            STATES: SalvagedRows(
                table=STATES,
                rows={one.transactional_id: one for one in rows},
                has_lost=states_lost,
            )
        },
        offsets=offsets,
        decisions=decisions,
        broken=broken,
        offsets_shards=1,
        now_ms=5_000,
    )
    return planner.make(producer_ids_end=1_000, has_lost=False)


def raised(found: RepairPlan) -> TransactionMetadata | None:
    return found.states[STATES].puts.get("t")


def changes(found: RepairPlan) -> list[str]:
    parts = {**found.topics, **found.states, **found.offsets}
    return [name for name, one in parts.items() if one.is_needed]


def test_root_in_which_all_agrees_needs_nothing() -> None:
    """A decided transaction whose owner has died is the protocol's, not damage."""
    manifest = Manifest(batches=(staged("u", "f"),))
    rows = [row(S.PREPARE_COMMIT, 3, pending=manifest)]
    found = plan([topic("u", 2)], rows)
    assert not changes(found)
    assert found.producer_ids_end is None


def test_ended_transaction_is_published_again_where_its_marker_is_lost() -> None:
    """Decided is decided: the row has forgotten its manifest, the log of the shard has it."""
    manifest = Manifest(batches=(staged("u", "f"), staged("v", "g")))
    decided = [row(S.PREPARE_COMMIT, 3, pending=manifest)]
    found = plan([topic("u", 3), topic("v", 2)], [row(S.COMPLETE_COMMIT, 3)], decided)
    assert changes(found) == ["v"]
    [added] = found.topics["v"].adds
    assert (added.path, added.base_offset, added.last_offset) == ("g", 10, 11)
    assert (added.producer_id, added.producer_epoch, added.status) == (7, 3, COMMITTED)
    assert found.topics["v"].markers == {7: 3}
    [one] = found.transactions
    assert (one.published, one.kept, one.lost) == (("v",), ("u",), ())
    assert one.outcome == "published again"


def test_transactions_are_published_again_in_the_order_of_their_decisions() -> None:
    """Records of one producer keep their order in a partition."""
    decided = [
        row(S.PREPARE_COMMIT, epoch, pending=Manifest(batches=(staged("u", f"f{epoch}"),)))
        for epoch in (2, 3, 4)
    ]
    found = plan([topic("u", 1)], [row(S.COMPLETE_COMMIT, 4)], decided)
    assert [one.path for one in found.topics["u"].adds] == ["f2", "f3", "f4"]
    assert [one.base_offset for one in found.topics["u"].adds] == [10, 12, 14]
    assert found.topics["u"].markers == {7: 4}


def test_marker_behind_a_hole_hides_no_transaction_of_the_hole() -> None:
    """Epochs only grow, so a later marker would count as that of a transaction that is lost."""
    markers = Markers(newest={7: 4}, before={7: 2}, behind={(7, 4)})
    decided = [
        row(S.PREPARE_COMMIT, epoch, pending=Manifest(batches=(staged("u", f"f{epoch}"),)))
        for epoch in (2, 3, 4)
    ]
    found = plan([topic("u", markers=markers)], [row(S.COMPLETE_COMMIT, 4)], decided)
    assert [one.path for one in found.topics["u"].adds] == ["f3"]
    assert not found.topics["u"].markers


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.COMPLETE_COMMIT])
def test_what_a_segment_behind_a_hole_has_is_not_published_again(state: S) -> None:
    """The marker and its batches are lost, and compaction had merged one of them: who published it
    again would double its records.
    """
    manifest = Manifest(batches=(staged("u", "f"), staged("u", "g"), staged("v", "h")))
    decided = [row(S.PREPARE_COMMIT, 3, pending=manifest)]
    rows = decided if state is S.PREPARE_COMMIT else [row(state, 3)]
    topics = [
        topic("u", 2, has_lost=True, removed={"f"}),
        topic("v", 2, has_lost=True, removed={"h"}),
    ]
    found = plan(topics, rows, decided)
    assert [one.path for one in found.topics["u"].adds] == ["g"]
    assert found.topics["u"].markers == found.topics["v"].markers == {7: 3}
    assert not found.topics["v"].adds
    [one] = found.transactions
    assert (one.published, one.kept, one.lost) == (("u",), ("v",), ())


def test_forgotten_marker_is_not_lost() -> None:
    """A marker that has expired would publish its transaction a second time."""
    decided = [row(S.PREPARE_COMMIT, 3, pending=Manifest(batches=(staged("u", "f"),)))]
    found = plan([topic("u", markers=Markers(expired_ms=2_000))], decided=decided)
    assert not changes(found)


def test_row_behind_a_marker_is_raised_above_it() -> None:
    """The next commits would be taken for ones that have ended: nothing would be published."""
    found = plan([topic("u", 9)], [row(S.COMPLETE_COMMIT, 3)])
    after = raised(found)
    assert after is not None
    assert after.producer_epoch > 9
    assert after.txn_epoch == 9
    assert after.state.is_idle
    assert "run" in after.owner.former_runs
    [one] = found.transactions
    assert (one.first_epoch, one.epoch, one.outcome) == (4, 9, "may be half")


def test_decision_that_a_later_marker_ends_is_carried_out_first() -> None:
    """Its row ends with the repair, so nobody would move its offsets or publish it later."""
    ticket = GroupTicket(group_id="g", producer_id=7, ticket=1, generation=1, offsets={"u": {0: 8}})
    manifest = Manifest(batches=(staged("v", "f"),), tickets=(ticket,))
    group = Group(group_id="g", generation=1, tickets=GroupTickets(newest=1))
    rows = [row(S.PREPARE_COMMIT, 3, pending=manifest)]
    found = plan([topic("u", 5), topic("v", 2)], rows, groups=[group])
    assert [one.path for one in found.topics["v"].adds] == ["f"]
    [moved] = found.offsets[OFFSETS].puts.values()
    assert moved.positions() == {"u": {0: 8}}
    assert found.offsets[OFFSETS].txns == {7: 3}
    after = raised(found)
    assert after is not None
    assert after.state.is_idle
    assert after.txn_epoch == 5


def test_rows_of_a_shard_with_lost_commits_are_raised_and_refused_to_their_owners() -> None:
    """Which epochs and owners the lost commits had is not known."""
    found = plan([], [row(S.EMPTY, 3)], states_lost=True)
    after = raised(found)
    assert after is not None
    assert after.producer_epoch >= 4 + LEAP
    assert after.owner.former_runs == ("run",)


def test_prepared_transaction_of_a_client_stays_prepared() -> None:
    """Its database may have decided to commit."""
    pending = Manifest(batches=(staged("u", "f"),), prepared_by_client=True)
    rows = [row(S.ONGOING, 3, pending=pending)]
    found = plan([topic("u", 2)], rows, states_lost=True)
    assert raised(found) is None


def test_prepared_transaction_whose_files_are_lost_aborts() -> None:
    """A commit would succeed, without its records."""
    pending = Manifest(batches=(staged("u", "f"),), prepared_by_client=True)
    rows = [row(S.ONGOING, 3, pending=pending)]
    found = plan([topic("u", 2)], rows, broken={("u", "f")})
    after = raised(found)
    assert after is not None
    assert after.state is S.PREPARE_ABORT


@pytest.mark.parametrize("committed", [True, False])
def test_undecided_batches_end_as_another_topic_shows(committed: bool) -> None:
    """The decision is lost; where a topic shows a commit, the other follows it."""
    waiting = topic("u", 2, undecided=[batch("f", 3, ONGOING)])
    shown = topic("v", 3, committed={7: 3} if committed else {})
    found = plan([waiting, shown], [row(S.COMPLETE_COMMIT, 2)])
    [settled] = found.topics["u"].adds
    assert settled.status == (COMMITTED if committed else ABORTED)
    assert found.topics["u"].markers == {7: 3}


def test_open_transaction_of_which_a_topic_shows_the_end_is_decided_alike() -> None:
    """Its PREPARE is lost: the time-out would abort what a reader has seen as committed."""
    partitions = tuple(
        TopicPartitions(topic=name, topic_id=f"id-{name}", partitions=(0,)) for name in OTHERS
    )
    waiting = topic("u", 2, undecided=[batch("f", 3, ONGOING)])
    shown = topic("v", 3, committed={7: 3})
    found = plan([waiting, shown], [row(S.ONGOING, 3, partitions=partitions)])
    after = raised(found)
    assert after is not None
    assert after.state is S.PREPARE_COMMIT
    assert [one.topic for one in after.partitions] == ["u"]


@pytest.mark.parametrize("offsets", [False, True])
def test_transaction_that_a_table_decides_is_left_to_the_table(offsets: bool) -> None:
    """Its PREPARE is lost, its marker is there: the table has it (R77)."""
    table = StagedTable(
        name="f", url="f", table_id="f", part="p", size_bytes=1, digest="", mode="merge",
        num_files=1, num_records=1, staged_ms=0,
    )  # fmt: skip
    last = LastBatch(batch_id=7)
    pending = Manifest(batches=(staged("u", "f"),), tables=(table,), last_batch=last)
    known = Markers(newest={7: 3}, before={7: 3})
    shown = topic("u", 2) if offsets else topic("u", 3, committed={7: 3})
    asked = row(S.ONGOING, 3, producer_epoch=3, pending=pending)
    found = plan([shown], [asked], offsets_markers=known if offsets else None, states_lost=True)
    after = raised(found)
    assert after is not None
    assert (after.decider, after.pending, after.transaction) == (table, pending, asked.transaction)
    assert after.owner.former_runs == ("run",)
    assert not found.transactions


def test_open_transaction_below_a_marker_ends_with_the_repair() -> None:
    """Its row goes on above the marker, so nothing would decide its batches."""
    partitions = (TopicPartitions(topic="u", topic_id="id-u", partitions=(0,)),)
    waiting = topic("u", 1, undecided=[batch("f", 3, ONGOING)])
    found = plan([waiting, topic("v", 4)], [row(S.ONGOING, 3, partitions=partitions)])
    [settled] = found.topics["u"].adds
    assert settled.status == ABORTED
    after = raised(found)
    assert after is not None
    assert after.state is S.EMPTY
    assert after.txn_epoch == 4
    assert not after.partitions


def test_damaged_file_keeps_its_offsets_without_records() -> None:
    """Offsets, sequences and markers around it stay true."""
    damaged = batch("f", 2, COMMITTED)
    found = plan([topic("u", 2, damaged=[damaged])], [row(S.COMPLETE_COMMIT, 2)])
    [empty] = found.topics["u"].empties
    assert empty == damaged
    assert found.topics["u"].removes == ["f"]
    [lost] = found.topics["u"].lost
    assert (lost.first, lost.last, lost.records, lost.next_offset) == (4, 5, 2, None)
    [one] = found.transactions
    assert one.lost == ("u",)


def test_lost_offsets_are_never_given_out_again() -> None:
    """A reader that has read them would take other records for them."""
    found = plan([topic("u", has_lost=True, gaps=[Gap(0, 3, 4)])])
    gap, tail = found.topics["u"].empties
    assert (gap.base_offset, gap.last_offset, gap.status, gap.producer_id) == (3, 4, NONE, -1)
    assert (tail.base_offset, tail.last_offset) == (10, 9 + LEAP)
    assert found.topics["u"].ends == [10 + LEAP]


def test_offset_of_a_group_beyond_the_end_is_covered() -> None:
    """The newest commits of the topic are lost without a trace; the group has read them."""
    known = {"u": {0: CommittedOffset(14, 1, 1)}}
    found = plan([topic("u")], groups=[Group(group_id="g", generation=1, offsets=known)])
    assert found.topics["u"].ends == [14]
    assert not found.offsets[OFFSETS].puts


def test_offset_of_a_group_far_beyond_the_end_is_lowered() -> None:
    """It was never one of this topic: the group would read nothing for years."""
    known = {"u": {0: CommittedOffset(10 * LEAP, 1, 1)}}
    found = plan([topic("u")], groups=[Group(group_id="g", generation=1, offsets=known)])
    [group] = found.offsets[OFFSETS].puts.values()
    assert group.positions() == {"u": {0: 10}}
    [moved] = found.moved
    assert (moved.before, moved.after) == (10 * LEAP, 10)


def test_groups_of_a_shard_with_lost_commits_begin_another_generation() -> None:
    """Lost commits gave out generations and tickets: nobody may commit under a new one's number."""
    owner = {"floors": {"lost": 6}}
    group = Group(group_id="g", generation=4, tickets=GroupTickets(newest=2))
    found = plan([], [row(S.EMPTY, 3, owner=owner)], groups=[group], offsets_lost=True)
    assert found.groups_behind == ["g", "lost"]
    puts = found.offsets[OFFSETS].puts
    assert puts["g"].generation == 4 + LEAP
    assert puts["g"].tickets.newest == 2 + LEAP
    assert puts["lost"].generation == LEAP
    assert puts["lost"].tickets.newest == 5 + LEAP


def test_ticket_that_a_row_has_is_not_given_again() -> None:
    """The newest commit of the group's shard is lost without a trace."""
    owner = {"floors": {"g": 6}}
    group = Group(group_id="g", generation=4, tickets=GroupTickets(newest=2))
    found = plan([], [row(S.EMPTY, 3, owner=owner)], groups=[group])
    assert found.offsets[OFFSETS].puts["g"].tickets.newest == 5
    assert found.offsets[OFFSETS].puts["g"].generation == 4


def test_offsets_below_a_newer_marker_of_their_producer_stay() -> None:
    """The marker of a later transaction says that those of earlier ones were moved."""
    ticket = GroupTicket(group_id="g", producer_id=7, ticket=1, generation=1, offsets={"u": {0: 3}})
    decided = [row(S.PREPARE_COMMIT, 2, pending=Manifest(tickets=(ticket,)))]
    group = Group(
        group_id="g",
        generation=1,
        offsets={"u": {0: CommittedOffset(9, 1, 1)}},
        tickets=GroupTickets(newest=1),
    )
    found = plan(
        [topic("u", 3)],
        [row(S.COMPLETE_COMMIT, 3)],
        decided,
        [group],
        offsets_markers=Markers(newest={7: 3}, before={7: 3}),
    )
    assert not changes(found)


def test_offsets_of_all_transactions_are_moved_though_the_last_is_not_complete() -> None:
    """The protocol would move those of the last one, and its marker would hide the others."""
    decided = [
        row(
            S.PREPARE_COMMIT,
            epoch,
            pending=Manifest(
                tickets=(
                    GroupTicket(
                        group_id="g", producer_id=7, ticket=1, generation=1, offsets={"u": offsets}
                    ),
                )
            ),
        )
        for epoch, offsets in ((2, {0: 3}), (3, {1: 4}))
    ]
    group = Group(group_id="g", generation=1, tickets=GroupTickets(newest=1))
    markers = Markers(newest={7: 1}, before={7: 1})
    u = topic("u", 3)
    u.ends = [10, 10]
    found = plan([u], decided[1:], decided, [group], offsets_markers=markers)
    assert found.offsets[OFFSETS].puts["g"].positions() == {"u": {0: 3, 1: 4}}
    assert found.offsets[OFFSETS].txns == {7: 3}


def test_marker_of_a_group_does_not_go_back() -> None:
    """Behind a hole is a newer one than those of the offsets that the hole has swallowed."""
    ticket = GroupTicket(group_id="g", producer_id=7, ticket=1, generation=1, offsets={"u": {0: 3}})
    decided = [row(S.PREPARE_COMMIT, 2, pending=Manifest(tickets=(ticket,)))]
    markers = Markers(newest={7: 3}, before={7: 1}, behind={(7, 3)})
    group = Group(group_id="g", generation=1, tickets=GroupTickets(newest=1))
    found = plan(
        [topic("u", 3)], [row(S.COMPLETE_COMMIT, 3)], decided, [group], offsets_markers=markers
    )
    assert found.offsets[OFFSETS].puts["g"].positions() == {"u": {0: 3}}
    assert not found.offsets[OFFSETS].txns


def test_producer_id_that_is_in_use_is_not_given_out_again() -> None:
    """Two producers with one id would be taken for one."""
    found = plan([topic("u", producer_id_max=5_000)])
    assert found.producer_ids_end is not None
    assert found.producer_ids_end > 5_000
