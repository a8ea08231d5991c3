"""The plan of a repair: from what is whole of each table, the one commit that each table gets.

No table is cut for the sake of another (D133): that would end at the last sync. What a decision
says and a topic lacks is published again where its files are whole; lost offsets are covered by
files without records, so that they are never given out again; and what must not go back (epochs,
generations, tickets, producer ids) is raised above everything that any table refers to, so that no
later commit is taken for an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from msgspec.structs import replace

from txnlog.protocol.group_metadata import CommittedOffset, Group
from txnlog.protocol.metadata import Manifest, TransactionMetadata
from txnlog.protocol.repair.facts import (
    LEAP,
    Decision,
    Decisions,
    Row,
    SalvagedRows,
    SalvagedTopic,
)
from txnlog.protocol.repair.fates import Fates
from txnlog.protocol.repair.losses import LostTransaction, MovedOffset
from txnlog.protocol.repair.topics import TopicRepair, plan_topic
from txnlog.protocol.shards import offsets_table_of
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import Transition, as_completed, prepare_fence

BY = "txnlog repair"
REASON = "newer states of this transactional.id were lost"


@dataclass(slots=True)
class RowsRepair(Generic[Row]):
    """The commit of a row table: rows by id, markers by producer id, paths of rows that end."""

    puts: dict[str, Row] = field(default_factory=dict)
    txns: dict[int, int] = field(default_factory=dict)
    removes: list[str] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return bool(self.puts or self.txns or self.removes)

    def keep(self, shard: SalvagedRows[Row]) -> None:
        """Rows with a broken file get a new one; rows that were replaced end."""
        for name, row in shard.rows.items():
            if row.path in shard.broken and row.path not in self.removes:
                self.puts[name] = replace(self.puts.get(name, row), path="")
                self.removes.append(row.path)
        self.removes += shard.stale


@dataclass(slots=True)
class RepairPlan:
    """The commits by table, and what became of transactions and groups.

    `producer_ids_end` is None if that of `__cluster` may stay.
    """

    topics: dict[str, TopicRepair] = field(default_factory=dict)
    states: dict[str, RowsRepair[TransactionMetadata]] = field(default_factory=dict)
    offsets: dict[str, RowsRepair[Group]] = field(default_factory=dict)
    producer_ids_end: int | None = None
    transactions: list[LostTransaction] = field(default_factory=list)
    moved: list[MovedOffset] = field(default_factory=list)
    groups_behind: list[str] = field(default_factory=list)


class Planner:
    """Makes one plan. `broken` are staged files (topic, path) that are not whole."""

    def __init__(
        self,
        *,
        topics: Mapping[str, SalvagedTopic],
        states: Mapping[str, SalvagedRows[TransactionMetadata]],
        offsets: Mapping[str, SalvagedRows[Group]],
        decisions: Decisions,
        broken: Collection[tuple[str, str]],
        offsets_shards: int,
        now_ms: int,
    ) -> None:
        self._topics = topics
        self._states = states
        self._offsets = offsets
        self._decisions = decisions
        self._broken = broken
        self._fates = Fates(topics, broken)
        self._shards = offsets_shards
        self._now_ms = now_ms
        self._row_of = {
            row.producer_id: row for shard in states.values() for row in shard.rows.values()
        }
        self._groups = {name: row for shard in offsets.values() for name, row in shard.rows.items()}
        self._plan = RepairPlan()
        self._newest = self._markers()
        """The newest epoch of each producer id that a log shows, before the repair."""
        for topic in topics.values():
            for one in topic.undecided:
                epoch = max(one.producer_epoch, self._newest.get(one.producer_id, -1))
                self._newest[one.producer_id] = epoch

    def make(self, *, producer_ids_end: int, has_lost: bool) -> RepairPlan:
        """The plan; the arguments say what is whole of `__cluster`."""
        self._move_offsets()
        self._mend_topics()
        self._lower_offsets()
        self._raise_groups()
        self._raise_rows()
        self._raise_producer_ids(producer_ids_end, has_lost=has_lost)
        self._plan.transactions = self._fates.described(self._names())
        return self._plan

    def _names(self) -> dict[int, str]:
        """The transactional.id of each producer id that is known."""
        decided = [one.row for one in self._decisions.unpublished.values()]
        rows = [*decided, *self._row_of.values()]
        return {row.producer_id: row.transactional_id for row in rows}

    # -- groups ----------------------------------------------------------------------------------

    def _move_offsets(self) -> None:
        """Offsets that are decided and not moved. What a row still says the protocol moves, if that
        is all.
        """
        for (table, producer_id), unmoved in sorted(self._decisions.unmoved.items()):
            shard, row = self._offsets.get(table), self._row_of.get(producer_id)
            if shard is None:
                continue
            says_all = (
                row is not None
                and bool(row.moves)
                and row.txn_epoch == unmoved.first_epoch == unmoved.epoch
            )
            if says_all and not (shard.has_lost or (row is not None and self._is_behind(row))):
                continue
            for (group_id, topic, partition), found in sorted(unmoved.positions.items()):
                group = self._groups.get(group_id) or Group(group_id=group_id)
                known = group.offsets.get(topic, {}).get(partition)
                if known is None or known.offset < found.offset:
                    self._move(group, topic, partition, found.offset, found.generation)
            if shard.markers.newest.get(producer_id, -1) < unmoved.epoch:
                self._repair_of(table).txns[producer_id] = unmoved.epoch

    def _move(self, group: Group, topic: str, partition: int, offset: int, generation: int) -> None:
        known = group.offsets.get(topic, {}).get(partition)
        table = offsets_table_of(group.group_id, self._shards)
        moved = CommittedOffset(offset, generation, self._offsets[table].version)
        offsets = {**group.offsets, topic: {**group.offsets.get(topic, {}), partition: moved}}
        self._put(replace(group, offsets=offsets))
        self._plan.moved.append(
            MovedOffset(
                group=group.group_id,
                topic=topic,
                partition=partition,
                before=None if known is None else known.offset,
                after=offset,
            )
        )

    def _put(self, group: Group) -> None:
        group = replace(group, updated_ms=self._now_ms)
        self._groups[group.group_id] = group
        table = offsets_table_of(group.group_id, self._shards)
        self._repair_of(table).puts[group.group_id] = group

    def _repair_of(self, table: str) -> RowsRepair[Group]:
        return self._plan.offsets.setdefault(table, RowsRepair())

    def _lower_offsets(self) -> None:
        """An offset that is above what may have been lost was never one of this topic."""
        for name, group in list(self._groups.items()):
            for topic, partition, offset in _positions(group):
                if topic not in self._topics or self._topics[topic].is_deleted:
                    continue
                ends = self._plan.topics[topic].ends
                if partition < len(ends) and offset > ends[partition]:
                    generation = group.offsets[topic][partition].generation
                    self._move(self._groups[name], topic, partition, ends[partition], generation)

    def _raise_groups(self) -> None:
        """Tickets are at least those that rows know; where commits are lost, all go on higher."""
        newest = self._tickets()
        for name in sorted({*newest, *self._groups}):
            shard = self._offsets.get(offsets_table_of(name, self._shards))
            group = self._groups.get(name)
            if shard is None or (group is None and not shard.has_lost):
                continue
            group = group or Group(group_id=name)
            ticket = max(newest.get(name, 0), group.tickets.newest)
            if shard.has_lost:
                self._plan.groups_behind.append(name)
                # Its members were of a generation that may have ended.
                generation = group.generation + LEAP
                group = replace(group, generation=generation, members={}, assignment={})
                ticket += LEAP
            elif ticket == group.tickets.newest:
                continue
            self._put(replace(group, tickets=replace(group.tickets, newest=ticket)))
        for table, shard in self._offsets.items():
            self._repair_of(table).keep(shard)

    def _tickets(self) -> dict[str, int]:
        """The highest ticket of each group that a row, or a holder, has."""
        rows = list(self._row_of.values())
        known = [(name, floor - 1) for row in rows for name, floor in row.owner.floors.items()]
        known += [(one.group_id, one.ticket) for row in rows for one in row.pending.tickets]
        known += [
            (name, holder.ticket)
            for name, group in self._groups.items()
            for holder in group.tickets.holders
        ]
        newest: dict[str, int] = {}
        for name, ticket in known:
            newest[name] = max(ticket, newest.get(name, 0))
        return newest

    # -- topics ----------------------------------------------------------------------------------

    def _mend_topics(self) -> None:
        todo = self._to_publish()
        wanted: dict[str, dict[int, int]] = {}
        for topic, partition, offset in self._wanted():
            ends = wanted.setdefault(topic, {})
            ends[partition] = max(offset, ends.get(partition, 0))
        for name, found in sorted(self._topics.items()):
            planned = plan_topic(
                found,
                todo.get(name, ()),
                self._result,
                self._broken,
                wanted=wanted.get(name, {}),
            )
            self._plan.topics[name] = planned
            self._fates.note_lost(found, planned, self._decisions.unpublished)

    def _wanted(self) -> Iterable[tuple[str, int, int]]:
        """Every committed offset: of the groups, and those that rows have left for them."""
        for group in self._groups.values():
            yield from _positions(group)
        for row in self._row_of.values():
            for one in row.moves:
                for topic, offsets in one.offsets.items():
                    for partition, offset in offsets.items():
                        yield topic, partition, offset

    def _to_publish(self) -> dict[str, list[Decision]]:
        """By topic, in the order of decisions. What a row still says, and can be done, is left to
        the protocol.
        """
        found: dict[str, list[Decision]] = {}
        for decision in self._decisions.unpublished.values():
            if self._is_left_to_protocol(decision):
                continue
            for name in decision.topics:
                found.setdefault(name, []).append(decision)
            self._fates.note_decision(decision)
        return found

    def _is_left_to_protocol(self, decision: Decision) -> bool:
        row = decision.row
        newest = self._row_of.get(row.producer_id)
        if newest is None or (newest.state, newest.transaction) != (row.state, row.transaction):
            return False
        if self._fates.lost_topics(decision) or self._is_behind(row):
            return False
        topics = [self._topics[name] for name in decision.topics]
        if any(one.files_of(row) & set(one.removed) for one in topics):
            return False
        return all(one.markers.newest.get(row.producer_id, -1) < row.txn_epoch for one in topics)

    def _is_behind(self, row: TransactionMetadata) -> bool:
        """Whether logs show newer transactions: then this one ends with the repair."""
        return self._newest.get(row.producer_id, -1) > row.txn_epoch

    def _result(self, producer_id: int, epoch: int, marker: int) -> TransactionResult | None:
        """See ResultOf."""
        row = self._row_of.get(producer_id)
        if row is not None and row.txn_epoch == epoch:
            if marker < epoch and not row.state.is_idle and not self._is_behind(row):
                return None
            if row.state in _ENDED:
                return TransactionResult.of(row.state)
        return self._seen_result(producer_id, epoch)

    def _seen_result(self, producer_id: int, epoch: int) -> TransactionResult:
        """A commit, if a topic shows it; otherwise nobody can know of one."""
        is_seen = any(one.committed.get(producer_id) == epoch for one in self._topics.values())
        return TransactionResult.COMMIT if is_seen else TransactionResult.ABORT

    # -- transactions ----------------------------------------------------------------------------

    def _raise_rows(self) -> None:
        tops = self._markers()
        for table, shard in self._states.items():
            repair: RowsRepair[TransactionMetadata] = RowsRepair()
            for name, found in shard.rows.items():
                row, top = self._without_settled(found), tops.get(found.producer_id, -1)
                if row is not found:
                    repair.puts[name] = row
                if not self._must_raise(row, top, has_lost=shard.has_lost):
                    continue
                raised = self._raised(row, top)
                if raised is None:
                    repair.removes.append(row.path)
                else:
                    repair.puts[name] = raised
                is_open = row.state is TransactionState.ONGOING and row.decider is None
                if top > row.txn_epoch or (top == row.txn_epoch and is_open):
                    self._fates.note_newer(row, top)
            repair.keep(shard)
            self._plan.states[table] = repair

    def _without_settled(self, row: TransactionMetadata) -> TransactionMetadata:
        """A decided row without the files of topics where the repair has settled it.

        A file that such a topic has lost would stop whoever finishes the transaction (D131).
        """
        if not row.state.is_prepared:
            return row
        settled = {
            name
            for name, topic in self._topics.items()
            if (topic.has_lost or self._plan.topics[name].is_needed)
            and self._marker(name, row.producer_id) >= row.txn_epoch
        }
        left = tuple(one for one in row.pending.batches if one.topic not in settled)
        if len(left) == len(row.pending.batches):
            return row
        return replace(row, pending=replace(row.pending, batches=left))

    def _marker(self, topic: str, producer_id: int) -> int:
        logs = self._topics[topic].markers.newest, self._plan.topics[topic].markers
        return max(markers.get(producer_id, -1) for markers in logs)

    def _markers(self) -> dict[int, int]:
        """The newest marker of each producer id in any log, after the repair."""
        logs = [one.markers.newest for one in self._topics.values()]
        logs += [one.markers.newest for one in self._offsets.values()]
        logs += [one.markers for one in self._plan.topics.values()]
        logs += [one.txns for one in self._plan.offsets.values()]
        newest: dict[int, int] = {}
        for markers in logs:
            for producer_id, epoch in markers.items():
                newest[producer_id] = max(epoch, newest.get(producer_id, -1))
        return newest

    def _must_raise(self, row: TransactionMetadata, top: int, *, has_lost: bool) -> bool:
        if row.state is not TransactionState.ONGOING:
            return has_lost or top > row.txn_epoch
        is_broken = bool(self._fates.broken_topics(row))
        if row.pending.prepared_by_client:
            # Its client may have been told so, and will end it.
            return is_broken or top >= row.txn_epoch
        return has_lost or is_broken or top >= row.txn_epoch

    def _raised(self, row: TransactionMetadata, top: int) -> TransactionMetadata | None:
        """The row with an epoch above everything, refused to its owner; None: it ends."""
        ended = row
        if top > row.txn_epoch and row.state.is_prepared:
            ended = as_completed(row)
        elif top > row.txn_epoch:
            ended = replace(row, state=TransactionState.EMPTY, partitions=(), pending=Manifest())
        if ended.state is TransactionState.DEAD:
            return None
        above = max(ended.producer_epoch, top) + LEAP
        fence = prepare_fence(ended, above_epoch=above, by=BY, reason=REASON, now_ms=self._now_ms)
        assert isinstance(fence, Transition)
        raised = fence.next
        # Where a table decides, only that knows.
        if row.state is TransactionState.ONGOING and not row.decider and top == row.txn_epoch:
            result = self._seen_result(row.producer_id, row.txn_epoch)
            there = tuple(one for one in row.partitions if self._fates.waits(one.topic, row))
            raised = replace(raised, state=result.prepared, partitions=there)
        return replace(raised, txn_epoch=max(top, raised.txn_epoch))

    def _raise_producer_ids(self, end: int, *, has_lost: bool) -> None:
        used = [*self._row_of, *self._markers()]
        used += [one.producer_id_max for one in self._topics.values()]
        wanted = max(end, max(used, default=-1) + 1)
        if has_lost or wanted > end:
            self._plan.producer_ids_end = wanted + LEAP


_ENDED = frozenset(
    {
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)


def _positions(group: Group) -> Iterable[tuple[str, int, int]]:
    for topic, offsets in group.offsets.items():
        for partition, known in offsets.items():
            yield topic, partition, known.offset
