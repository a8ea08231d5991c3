"""What lies in the store, and the shell's compare-and-swaps on it, for the models of transactions.

Every write here is one commit of `txnlog/coordinator/`: a pure function of txnlog.protocol, called
on the state as it is at that moment. Whatever is stored is a number in a Pool, so that states of a
model hash fast and each decision is taken once per distinct input.

`broken` names rules that are left out on purpose: a search that cannot find what a missing rule
breaks would prove nothing about the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.model.rules import (
    ABORT_MOVES_OFFSETS,
    COMPLETE_ANY_PRODUCER,
    COMPLETE_BEFORE_OFFSETS,
    FENCE_BREAKS_PROMISE,
    FENCE_FORGETS_RUN,
    MARKER_WITHOUT_TXN,
    ONE_ID_PER_TOPIC,
)
from tests.model.search import Pool
from tests.model.values import (
    NOTHING,
    OffsetsTable,
    Row,
    Stored,
    Wrote,
    broken_history,
    forget_run,
    offsets_key,
    row_key,
    topic_key,
)
from txnlog.errors import TxnLogError
from txnlog.protocol.appends import Appended, Settled, prepare_append, prepare_marker
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.groups import (
    Group,
    GroupOffsets,
    OffsetsCommit,
    prepare_generation,
    prepare_reset,
)
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch, StagedBatch
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import (
    MustFence,
    Registered,
    find_ticket,
    own_holders,
    prepare_carried_offsets,
    prepare_floor,
    prepare_forget,
    prepare_registration,
    with_known,
)
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_complete,
    prepare_expire,
    prepare_fence,
    prepare_time_out,
)

Known = tuple[int, str, tuple[int, ...], int]


class World:
    """The compare-and-swaps, each as one function (store, arguments) -> Wrote."""

    def __init__(
        self, ids: Sequence[str], topics: Sequence[str], broken: frozenset[str] = frozenset()
    ) -> None:
        self.ids = tuple(ids)
        self.topic_names = tuple(topics)
        self.broken = broken
        self.rows: Pool[Row] = Pool(row_key)
        self.topics: Pool[TopicState] = Pool(topic_key)
        self.offsets: Pool[OffsetsTable] = Pool(offsets_key)
        self.holders: Pool[TicketHolder] = Pool(msgspec.json.encode)
        self._known: dict[Hashable, Known] = {}
        self._histories: dict[tuple[int, int], str | None] = {}

    def empty(self) -> Stored:
        """No rows, empty topics of one partition, no groups."""
        topics = []
        for name in self.topic_names:
            state = TopicState()
            state.set_topic(f"{name}-id", {"partitions": "1"})
            topics.append(self.topics.put(state))
        rows = (self.rows.put(None),) * len(self.ids)
        return Stored(rows, tuple(topics), self.offsets.put(OffsetsTable()))

    def row(self, stored: Stored, which: int) -> Row:
        return self.rows[stored.rows[which]]

    def group(self, stored: Stored, group_id: str) -> Group | None:
        return self.offsets[stored.offsets].groups.get(group_id)

    def broken_history(self, before: Stored, after: Stored) -> str | None:
        """What a step did to a topic that no commit may do, see values.broken_history."""
        for pair in zip(before.topics, after.topics, strict=True):
            if pair not in self._histories:
                old, new = (self.topics[number] for number in pair)
                self._histories[pair] = broken_history(old, new)
            if self._histories[pair] is not None:
                return self._histories[pair]
        return None

    # -- rows ------------------------------------------------------------------------------------

    def transition(
        self,
        stored: Stored,
        which: int,
        asked: Hashable,
        decide: Callable[[Row], Transition | Done],
    ) -> Wrote:
        """One transition of a row; `asked` identifies `decide` and its arguments."""
        before = stored.rows[which]
        key = (before, asked)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._transition(before, decide)
        rows = (*stored.rows[:which], known[0], *stored.rows[which + 1 :])
        return Wrote(stored._replace(rows=rows), known[1])

    def _transition(self, before: int, decide: Callable[[Row], Transition | Done]) -> Known:
        try:
            decision = decide(self.rows[before])
        except TxnLogError as error:
            return before, type(error).__name__, NOTHING, 0
        if isinstance(decision, Done):
            return before, "", NOTHING, 0
        after = None if decision.next.state is TransactionState.DEAD else decision.next
        return self.rows.put(after), "", NOTHING, 0

    def fence(self, stored: Stored, which: int, above_epoch: int) -> Wrote:
        """coordinator.fence's write."""

        def decide(row: Row) -> Transition | Done:
            decision = prepare_fence(row, above_epoch=above_epoch, by="", reason="", now_ms=0)
            return forget_run(row, decision) if FENCE_FORGETS_RUN in self.broken else decision

        return self.transition(stored, which, ("fence", above_epoch), decide)

    def time_out(self, stored: Stored, which: int, producer_id: int, txn_epoch: int) -> Wrote:
        """coordinator.time_out's write."""
        return self.transition(
            stored,
            which,
            ("time out", producer_id, txn_epoch),
            lambda row: prepare_time_out(
                row, transaction=ProducerIdAndEpoch(producer_id, txn_epoch), by="", now_ms=0
            ),
        )

    def expire(self, stored: Stored, which: int) -> Wrote:
        """Housekeeping's write: an idle row goes."""
        return self.transition(stored, which, "expire", lambda row: prepare_expire(row, now_ms=0))

    # -- topics ----------------------------------------------------------------------------------

    def change_topic(
        self,
        stored: Stored,
        which: int,
        asked: Hashable,
        decide: Callable[[TopicState], TopicCommit | Appended | Settled],
    ) -> Wrote:
        """One commit to a topic."""
        before = stored.topics[which]
        key = ("topic", before, asked)
        known = self._known.get(key)
        if known is None:
            try:
                decision = decide(self.topics[before])
            except TxnLogError as error:
                known = (before, type(error).__name__, NOTHING, 0)
            else:
                after = before
                if isinstance(decision, TopicCommit):
                    state = deepcopy(self.topics[before])
                    decision.apply(state)
                    after = self.topics.put(state)
                known = (after, "", NOTHING, 0)
            self._known[key] = known
        topics = (*stored.topics[:which], known[0], *stored.topics[which + 1 :])
        return Wrote(stored._replace(topics=topics), known[1])

    def append(
        self, stored: Stored, which: int, producer_id: int, producer_epoch: int, batch: StagedBatch
    ) -> Wrote:
        """append_in_transaction: one `ongoing` batch, the first of its epoch in this topic."""
        return self.change_topic(
            stored,
            which,
            ("append", producer_id, producer_epoch, batch.path),
            lambda state: prepare_append(
                state,
                [batch],
                producer=ProducerIdAndEpoch(producer_id, producer_epoch),
                base_sequences={0: 0},
                transactional=True,
            ),
        )

    def _marker(self, stored: Stored, number: int, topic: str, topic_id: str) -> Wrote:
        row = self.rows[number]
        assert row is not None

        def decide(state: TopicState) -> TopicCommit | Settled:
            assert row is not None
            decision = prepare_marker(
                state,
                topic_id=topic_id,
                transaction=row.transaction,
                result=TransactionResult.of(row.state),
                batches=[
                    b for b in row.pending.batches if (b.topic, b.topic_id) == (topic, topic_id)
                ],
            )
            if isinstance(decision, TopicCommit):
                txns = {} if MARKER_WITHOUT_TXN in self.broken else decision.txns
                return TopicCommit(operation=decision.operation, adds=decision.adds, txns=txns)
            return decision

        which = self.topic_names.index(topic)
        return self.change_topic(stored, which, ("marker", number, topic_id), decide)

    # -- groups ----------------------------------------------------------------------------------

    def change_offsets(
        self,
        stored: Stored,
        asked: Hashable,
        decide: Callable[[OffsetsTable, int], Any],
    ) -> Wrote:
        """One commit to `__consumer_offsets`."""
        before = stored.offsets
        key = ("offsets", before, asked)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._change_offsets(before, decide)
        return Wrote(stored._replace(offsets=known[0]), *known[1:])

    def _change_offsets(self, before: int, decide: Callable[[OffsetsTable, int], Any]) -> Known:
        table = self.offsets[before]
        version = table.version + 1
        try:
            decision = decide(table, version)
        except TxnLogError as error:
            return before, type(error).__name__, NOTHING, 0
        if isinstance(decision, int):
            return before, "", NOTHING, decision
        if isinstance(decision, MustFence):
            return before, "", self.put_holders(decision.holders), 0
        if not isinstance(decision, OffsetsCommit):
            return before, "", NOTHING, 0
        groups = {**table.groups, **{group.group_id: group for group in decision.groups}}
        markers = {**table.markers, **decision.txns}
        tickets = decision.groups[0].tickets
        number = self.offsets.put(OffsetsTable(version, groups, markers))
        return number, "", self.put_holders(tickets.holders), tickets.newest

    def put_holders(self, holders: Sequence[TicketHolder]) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(self.holders.put(one) for one in holders)

    def begin(self, stored: Stored, group_id: str) -> Wrote:
        """The write of groups.start, with the holders of that very commit."""
        return self.change_offsets(
            stored,
            ("bump", group_id),
            lambda table, _: prepare_generation(
                table.groups.get(group_id), group_id=group_id, now_ms=0
            ),
        )

    def reset(
        self, stored: Stored, group_id: str, topic: str, offset: int, generation: int
    ) -> Wrote:
        """The last write of groups.reset."""
        return self.change_offsets(
            stored,
            ("reset", group_id, topic, offset, generation),
            lambda table, version: prepare_reset(
                table.groups.get(group_id),
                group_id=group_id,
                generation=generation,
                done=(),
                positions={topic: {0: offset}},
                version=version,
                now_ms=0,
            ),
        )

    def register(
        self,
        stored: Stored,
        holder: Holder,
        request: GroupOffsets,
        *,
        floor: int = 0,
        fenced: frozenset[int] = frozenset(),
        under_way: frozenset[int] = frozenset(),
    ) -> Wrote:
        """groups.tickets: the ticket, or the holders to fence before it is given.

        `fenced` are tickets that this call has fenced.
        """

        def decide(table: OffsetsTable, _: int) -> OffsetsCommit | MustFence | int:
            group = table.groups.get(request.group_id)
            known = find_ticket(
                group,
                holder,
                floor=floor,
                generation=request.generation,
                member_id=request.member_id,
                partitions=request.end,
            )
            if known is not None:
                return known
            own = [] if group is None else own_holders(group, holder)
            done = fenced | ({one.ticket for one in own} - under_way)
            found = prepare_registration(
                group,
                group_id=request.group_id,
                generation=request.generation,
                member_id=request.member_id,
                holder=holder,
                partitions=with_known(own, request),
                start=request.start,
                done=done,
                now_ms=0,
            )
            return found.commit if isinstance(found, Registered) else found

        asked = (
            "register", holder, request.group_id, request.generation, request.member_id,
            repr(request.start), repr(request.end), floor, fenced, under_way,
        )  # fmt: skip
        return self.change_offsets(stored, asked, decide)

    def raise_floor(self, stored: Stored, group_id: str, number: int) -> Wrote:
        """The write of fence_holders."""
        holder = self.holders[number]

        def decide(row: Row) -> Transition | Done:
            if row is not None and FENCE_BREAKS_PROMISE in self.broken:
                row = replace(row, pending=replace(row.pending, prepared_by_client=False))
            return prepare_floor(row, group_id=group_id, holder=holder, by="", now_ms=0)

        which = self.ids.index(holder.transactional_id)
        return self.transition(stored, which, ("floor", group_id, number), decide)

    def forget(self, stored: Stored, group_id: str, number: int) -> Wrote:
        """The sweeper's write; it has seen that the holder is over."""
        return self.change_offsets(
            stored,
            ("forget", group_id, number),
            lambda table, _: prepare_forget(
                table.groups.get(group_id), self.holders[number], now_ms=0
            ),
        )

    def _offsets_marker(self, stored: Stored, number: int) -> Wrote:
        row = self.rows[number]
        assert row is not None
        return self.change_offsets(
            stored,
            ("offsets marker", number),
            lambda table, version: prepare_carried_offsets(
                table.groups,
                table.markers,
                row.pending.tickets,
                transaction=row.transaction,
                version=version,
                now_ms=0,
            ),
        )

    # -- what others left ------------------------------------------------------------------------

    def plan(self, number: int) -> tuple[tuple[str, str, str], ...]:
        """The writes of finishing.finish for a decided row, in order: (what, topic, topic id)."""
        row = self.rows[number]
        assert row is not None
        topic_ids = row.topics.items() if ONE_ID_PER_TOPIC in self.broken else row.topic_ids
        writes = [("marker", topic, topic_id) for topic, topic_id in topic_ids]
        moves = row.pending.tickets if ABORT_MOVES_OFFSETS in self.broken else row.moves
        if moves:
            writes.append(("offsets", "", ""))
        writes.append(("complete", "", ""))
        if COMPLETE_BEFORE_OFFSETS in self.broken and moves:
            writes[-2:] = [writes[-1], writes[-2]]
        return tuple(writes)

    def finish(self, stored: Stored, which: int, number: int, at: int) -> tuple[str, Wrote, bool]:
        """Write `at` of finishing a row as it was read; (what, outcome, whether it was the last).

        `number` may be long out of date: that is what a slow helper does.
        """
        writes = self.plan(number)
        what, topic, topic_id = writes[at]
        if what == "marker":
            wrote = self._marker(stored, number, topic, topic_id)
            what = f"marker in {topic}"
        elif what == "offsets":
            wrote = self._offsets_marker(stored, number)
            what = "offsets marker"
        else:
            wrote = self._complete(stored, which, number)
        return what, wrote, at + 1 == len(writes)

    def _complete(self, stored: Stored, which: int, number: int) -> Wrote:
        row = self.rows[number]
        assert row is not None
        anyones = COMPLETE_ANY_PRODUCER in self.broken

        def decide(now: Row) -> Transition | Done:
            owner = now if anyones and now is not None else row
            return prepare_complete(
                now, transaction=ProducerIdAndEpoch(owner.producer_id, row.txn_epoch), now_ms=0
            )

        operation = ("complete", -1 if anyones else row.producer_id, row.txn_epoch)
        return self.transition(stored, which, operation, decide)
