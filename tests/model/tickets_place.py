"""What the processes of the model of tickets share, and each access to it, by project code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tests.model.search import Pool
from tests.model.tickets_rules import (
    ABSENT_ACCEPTS,
    CHAIN_IGNORES_OWNER,
    COMPLETE_CLEARS_FLOOR,
    FENCE_LEAVES_ONGOING,
    FENCES_PREPARED,
    FLOOR_BEFORE_DONE,
    FLOOR_FALLS,
    FLOOR_ONLY_DECIDED,
    FORGETS_DECIDED,
    FORGETS_OWN,
    INIT_DROPS_DECIDED,
    INIT_RENAMES_DECIDED,
    MARKER_REPEATS,
    NO_FLOOR_CHECK,
    NO_OVERLAP_CHECK,
    NO_START_CHECK,
    REGISTERS_UNCHECKED,
    START_DROPS_HOLDERS,
)
from tests.model.values import Row, row_key
from tests.staged_files import named_file
from txnlog.errors import TxnLogError
from txnlog.protocol import transitions
from txnlog.protocol.group_metadata import CommittedOffset, Group, GroupTickets, TicketHolder
from txnlog.protocol.groups import prepare_generation, without
from txnlog.protocol.metadata import (
    GroupTicket,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import (
    MustFence,
    Registered,
    is_over,
    prepare_carried_offsets,
    prepare_floor,
    prepare_forget,
    prepare_registration,
)
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_expire,
    prepare_init,
)

GROUP = "g"
INPUT = "input"
COMMIT = TransactionResult.COMMIT


class Txn(NamedTuple):
    """A transaction: inputs `first` to `end`, by the process with this number."""

    producer_id: int
    epoch: int
    name: int
    first: int
    end: int
    by: int
    ticket: int
    generation: int

    def __str__(self) -> str:
        return f"T{self.producer_id}.{self.epoch}[{self.first},{self.end})"


class Stored(NamedTuple):
    """Pool numbers of the rows (-1: none) and of the group; markers and what topics show."""

    rows: tuple[int, ...]
    group: int
    offset_markers: tuple[int, ...]
    topic_markers: tuple[tuple[int, ...], ...]
    shown: tuple[tuple[Txn, ...], ...]


def holder_of(txn: Txn) -> Holder:
    return Holder(
        transactional_id=f"id{txn.name}",
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        run_id=run_of(txn.by),
    )


def run_of(by: int) -> str:
    return f"run{by}"


class Place:
    """`names`: how many transactional ids; `place_of`: input -> (partition, offset after it)."""

    def __init__(
        self, names: int, place_of: Callable[[int], tuple[int, int]], broken: frozenset[str]
    ) -> None:
        self.names = names
        self._place_of = place_of
        self.broken = broken
        self._rows: Pool[Row] = Pool(row_key)
        self._groups: Pool[Group] = Pool(_group_key)

    def empty(self) -> Stored:
        """Every id has a row, the first process owns the first; the group is at generation 1."""
        rows = tuple(
            self._rows.put(
                TransactionMetadata(
                    transactional_id=f"id{name}",
                    producer_id=name,
                    producer_epoch=1,
                    timeout_ms=1,
                    owner=Owner(run_id=run_of(0) if name == 0 else "", since_ms=0),
                )
            )
            for name in range(self.names)
        )
        group = Group(group_id=GROUP, generation=1)
        ids = 2 * self.names
        none = (-1,) * ids
        return Stored(rows, self._groups.put(group), none, (none, none), ((), ()))

    # -- rows ------------------------------------------------------------------------------------

    def row(self, stored: Stored, name: int) -> Row:
        return self._rows[stored.rows[name]] if stored.rows[name] >= 0 else None

    def put_row(self, stored: Stored, name: int, row: Row) -> Stored:
        number = -1 if row is None else self._rows.put(replace(row, updated_ms=0))
        return stored._replace(rows=(*stored.rows[:name], number, *stored.rows[name + 1 :]))

    def _change(self, stored: Stored, name: int, decision: Transition | Done) -> Stored:
        if isinstance(decision, Done):
            return stored
        after = decision.next
        return self.put_row(stored, name, None if after.state is TransactionState.DEAD else after)

    def prepared(self, stored: Stored, name: int) -> Txn | None:
        """The decided commit of a row that is not complete."""
        row = self.row(stored, name)
        return self.decided(row) if row is not None and row.state.is_prepared else None

    def decided(self, row: TransactionMetadata) -> Txn:
        """What a prepared row decides; the Txn of an abort has no inputs."""
        first = end = "0"
        by = "-1"
        if TransactionResult.of(row.state) is COMMIT and row.pending.batches:
            _, units, by = row.pending.batches[0].path.split("-", 2)
            first, _, end = units.partition("_")
        carried = row.pending.tickets[0] if row.pending.tickets else None
        return Txn(
            row.producer_id,
            row.txn_epoch,
            int(row.transactional_id[2:]),
            int(first),
            int(end),
            int(by),
            carried.ticket if carried is not None else 0,
            carried.generation if carried is not None else 0,
        )

    def manifest(self, txn: Txn) -> Manifest:
        """Files of both topics, and the offsets with the ticket."""
        batches = tuple(
            named_file(f"{topic}-{txn.first}_{txn.end}-{txn.by}", topic) for topic in ("a", "b")
        )
        offsets: dict[int, int] = {}
        for unit in range(txn.first, txn.end):
            partition, after = self._place_of(unit)
            offsets[partition] = after
        carried = GroupTicket(
            group_id=GROUP,
            producer_id=txn.producer_id,
            ticket=txn.ticket,
            generation=txn.generation,
            offsets={INPUT: offsets},
        )
        return Manifest(batches=batches, tickets=(carried,))

    def prepare(
        self, stored: Stored, txn: Txn, follows: ProducerIdAndEpoch | None, *, remembers: bool
    ) -> tuple[Stored, str]:
        """PREPARE_COMMIT, perhaps with the end that a query remembers; "" or the error's name."""
        row = self.row(stored, txn.name)
        manifest = self.manifest(txn)
        if row is None and ABSENT_ACCEPTS in self.broken:
            owner = Owner(run_id=run_of(txn.by), since_ms=0)
            row = TransactionMetadata(
                transactional_id=f"id{txn.name}", producer_id=txn.producer_id,
                producer_epoch=txn.epoch, timeout_ms=1, owner=owner,
            )  # fmt: skip
        if row is not None and NO_FLOOR_CHECK in self.broken:
            row = replace(row, owner=replace(row.owner, floors={}))
        if row is not None and follows is not None and CHAIN_IGNORES_OWNER in self.broken:
            owner = replace(row.owner, run_id=run_of(txn.by), former_runs=())
            row = replace(row, owner=owner, producer_epoch=txn.epoch - row.state.is_prepared)
        try:
            if row is not None and FLOOR_BEFORE_DONE in self.broken:
                transitions.check_tickets(row, manifest.tickets)
            decision = prepare_end(
                row,
                holder=holder_of(txn),
                result=COMMIT,
                manifest=manifest,
                last_batch=LastBatch(batch_id=txn.end) if remembers else None,
                follows=follows,
                now_ms=0,
            )
        except TxnLogError as error:
            return stored, type(error).__name__
        return self._change(stored, txn.name, decision), ""

    def hold(self, stored: Stored, txn: Txn) -> tuple[Stored, str]:
        """The client's prepare of a two-phase commit."""
        try:
            decision = prepare_add_partitions(
                self.row(stored, txn.name),
                holder=holder_of(txn),
                manifest=self.manifest(txn),
                now_ms=0,
            )
        except TxnLogError as error:
            return stored, type(error).__name__
        return self._change(stored, txn.name, decision), ""

    def open(self, stored: Stored, txn: Txn) -> tuple[Stored, str]:
        """Offsets sent in an eager transaction: the row names group and ticket."""
        try:
            decision = prepare_add_partitions(
                self.row(stored, txn.name),
                holder=holder_of(txn),
                tickets=self.manifest(txn).tickets,
                now_ms=0,
            )
        except TxnLogError as error:
            return stored, type(error).__name__
        return self._change(stored, txn.name, decision), ""

    def init(self, stored: Stored, name: int, by: int) -> tuple[Stored, TransactionMetadata] | None:
        """Take over the id; None while a decided transaction of its own must be finished first."""
        row = self.row(stored, name)
        try:
            decision = prepare_init(
                row,
                transactional_id=f"id{name}",
                new_producer_id=self.names + name,
                owner=Owner(run_id=run_of(by)),
                timeout_ms=1,
                now_ms=0,
            )
        except TxnLogError:
            return None
        if row is not None and row.state.is_prepared and isinstance(decision, Transition):
            decision = self._broken_take_over(decision)
        after = self._change(stored, name, decision)
        now = self.row(after, name)
        assert now is not None
        return after, now

    def _broken_take_over(self, decision: Transition) -> Transition:
        row = decision.next
        if INIT_DROPS_DECIDED in self.broken:
            row = replace(row, state=TransactionState.EMPTY, pending=Manifest())
        if INIT_RENAMES_DECIDED in self.broken:
            row = replace(row, txn_epoch=row.producer_epoch)
        return replace(decision, next=row)

    def expire(self, stored: Stored, name: int) -> Stored:
        return self._change(stored, name, prepare_expire(self.row(stored, name), now_ms=0))

    def raise_floor(self, stored: Stored, holder: TicketHolder) -> tuple[Stored, bool]:
        """False: it must wait for a client that has prepared."""
        name = int(holder.transactional_id[2:])
        row = self.row(stored, name)
        decides = row is not None and row.state.is_prepared
        if FLOOR_ONLY_DECIDED in self.broken and not decides:
            return stored, True
        if row is not None and row.pending.prepared_by_client and FENCES_PREPARED in self.broken:
            row = replace(row, pending=replace(row.pending, prepared_by_client=False))
        try:
            decision = prepare_floor(row, group_id=GROUP, holder=holder, by="", now_ms=0)
        except TxnLogError:
            return stored, False
        aborts = (
            isinstance(decision, Transition)
            and decision.next.state is TransactionState.PREPARE_ABORT
        )
        if FENCE_LEAVES_ONGOING in self.broken and aborts and row is not None:
            assert isinstance(decision, Transition)
            raised = replace(row, owner=replace(row.owner, floors=decision.next.owner.floors))
            decision = Transition(operation="", previous=row, next=raised)
        if FLOOR_FALLS in self.broken and isinstance(decision, Done) and row is not None:
            floors = {GROUP: holder.ticket + 1}
            fallen = replace(row, owner=replace(row.owner, floors=floors))
            if row.producer_id == holder.producer_id:
                decision = Transition(operation="", previous=row, next=fallen)
        return self._change(stored, name, decision), True

    def complete(self, stored: Stored, txn: Txn) -> Stored:
        row = self.row(stored, txn.name)
        name = ProducerIdAndEpoch(txn.producer_id, txn.epoch)
        decision = prepare_complete(row, transaction=name, now_ms=0)
        if COMPLETE_CLEARS_FLOOR in self.broken and isinstance(decision, Transition):
            owner = replace(decision.next.owner, floors={})
            after = replace(decision.next, owner=owner)
            decision = Transition(operation="", previous=row, next=after)
        return self._change(stored, txn.name, decision)

    # -- topics and offsets ----------------------------------------------------------------------

    def mark(self, stored: Stored, topic: int, txn: Txn) -> Stored:
        """The marker of a topic: data appears with it, once (R14)."""
        known = stored.topic_markers[topic]
        if known[txn.producer_id] >= txn.epoch:
            return stored
        markers = list(stored.topic_markers)
        markers[topic] = _put(known, txn.producer_id, txn.epoch)
        shown = list(stored.shown)
        if txn.end > txn.first:
            shown[topic] = (*shown[topic], txn)
        return stored._replace(topic_markers=tuple(markers), shown=tuple(shown))

    def move_offsets(self, stored: Stored, txn: Txn) -> Stored:
        """The offsets marker of a commit; an abort writes none."""
        if txn.end == txn.first:
            return stored
        at = self.group(stored)
        markers = dict(enumerate(stored.offset_markers))
        if MARKER_REPEATS in self.broken:
            markers = {}
        moved = prepare_carried_offsets(
            {GROUP: at},
            markers,
            self.manifest(txn).tickets,
            transaction=ProducerIdAndEpoch(txn.producer_id, txn.epoch),
            version=0,
            now_ms=0,
        )
        if moved is None:
            return stored
        known = max(stored.offset_markers[txn.producer_id], txn.epoch)
        numbers = _put(stored.offset_markers, txn.producer_id, known)
        return self.put_group(stored, moved.groups[0])._replace(offset_markers=numbers)

    # -- the group -------------------------------------------------------------------------------

    def group(self, stored: Stored) -> Group:
        return self._groups[stored.group]

    def put_group(self, stored: Stored, group: Group) -> Stored:
        return stored._replace(group=self._groups.put(replace(group, updated_ms=0)))

    def offset(self, stored: Stored, partition: int) -> int:
        known = self.group(stored).offsets.get(INPUT, {}).get(partition)
        return 0 if known is None else known.offset

    def set_offset(self, stored: Stored, offset: int) -> Stored:
        """A reset writes under the generation that it began."""
        at = self.group(stored)
        offsets = {INPUT: {0: CommittedOffset(offset, at.generation, 0)}}
        return self.put_group(stored, replace(at, offsets=offsets))

    def bump(self, stored: Stored) -> Stored:
        """A generation begins, which registers nobody."""
        [begun] = prepare_generation(self.group(stored), group_id=GROUP, now_ms=0).groups
        if START_DROPS_HOLDERS in self.broken:
            begun = replace(begun, tickets=GroupTickets())
        return self.put_group(stored, begun)

    def register(
        self,
        stored: Stored,
        holder: Holder,
        *,
        generation: int,
        partitions: tuple[int, ...],
        start: Mapping[int, int],
        fenced: frozenset[int],
    ) -> tuple[Stored, Registered | MustFence | str]:
        """Register under a generation."""
        at = self.group(stored)
        if REGISTERS_UNCHECKED in self.broken:
            generation = at.generation
        if NO_OVERLAP_CHECK in self.broken:
            fenced = fenced | {one.ticket for one in at.tickets.holders}
        try:
            found = prepare_registration(
                at, group_id=GROUP, generation=generation, member_id="",
                holder=holder, partitions={INPUT: partitions},
                start={} if NO_START_CHECK in self.broken else {INPUT: start},
                done=fenced, now_ms=0,
            )  # fmt: skip
        except TxnLogError as error:
            return stored, type(error).__name__
        if isinstance(found, MustFence):
            return stored, found
        kept = found.group.tickets
        if NO_OVERLAP_CHECK in self.broken:
            kept = replace(kept, holders=(*at.tickets.holders, kept.holders[-1]))
        if FORGETS_OWN in self.broken:
            others = [one for one in kept.holders if not one.is_of(holder)]
            kept = replace(kept, holders=(*others, kept.holders[-1]))
        return self.put_group(stored, replace(found.group, tickets=kept)), found

    def is_over(self, stored: Stored, holder: TicketHolder) -> bool:
        """Whether a sweeper that reads the holder's row now would let the group forget it."""
        row = self.row(stored, int(holder.transactional_id[2:]))
        if row is not None and FORGETS_DECIDED in self.broken:
            row = replace(row, state=TransactionState.EMPTY)
        return is_over(row, GROUP, holder)

    def forget(self, stored: Stored, holder: TicketHolder) -> Stored:
        """The sweeper's write."""
        found = prepare_forget(self.group(stored), holder, now_ms=0)
        return stored if found is None else self.put_group(stored, found.groups[0])

    def remove(self, stored: Stored, done: frozenset[int]) -> Stored:
        at = self.group(stored)
        return self.put_group(stored, replace(at, tickets=without(at.tickets, done)))


def _put(numbers: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*numbers[:at], value, *numbers[at + 1 :])


def _group_key(group: Group) -> Hashable:
    return msgspec.json.encode(group)
