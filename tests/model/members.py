"""Members of one group that copy an input, a transaction per record, while the group rebalances.

A, B and C may join, leave, pause, resume and be expelled at any moment, whatever their
clocks say; R is a restart of A with its instance id, while A may live on; S is no member
and begins a generation; H lets the group forget a holder. Time-outs are not modelled: an
expulsion may come at any time, also of a member that is well. Judged as the model of Spark queries
is: nothing twice, nothing skipped, output and position together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from tests.model.recovery import DEAD, Pc, Recovery, fencing
from tests.model.spark_owner import GROUP, INPUT, REGISTRATIONS_MAX, SparkOwner, State
from tests.model.values import OffsetsTable, Stored, Wrote, staged
from tests.model.world import World
from txnlog.protocol.cooperation import is_member_of
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.groups import GroupOffsets, OffsetsCommit
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    membership_status,
    prepare_heartbeat,
    prepare_join,
)
from txnlog.protocol.metadata import GroupTicket, Holder, Manifest, Owner, ProducerIdAndEpoch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import prepare_end, prepare_init
from txnlog.protocol.watching import Watch

TWO_OWNERS = "the assignment gives a partition to every member"
REGISTERS_UNDER_ANY = "a run registers under any generation, for any member"

Step = tuple[str, Stored, Pc]

COUNTS = {INPUT: 1}
MEMBER = Member(topics=(INPUT,), session_timeout_ms=1)
COPIES = frozenset({"own", "register", "prepare"})
"""Where a member stands in its transaction."""
NOTHING_LEFT = -1
"""Instead of the epoch of the transaction whose COMPLETE is left."""
STATIC = Member(topics=(INPUT,), session_timeout_ms=1, instance_id="a")


class Members(SparkOwner):
    """`joins`: how often each member joins at most; `expulsions`: how many there are in all.

    `chains`: a member may leave the COMPLETE of a transaction to its next one, which then is
    decided with the same ticket, in the same write.
    """

    partition = 0
    counts: Mapping[str, int] = COUNTS
    member = MEMBER
    static = STATIC

    def __init__(
        self,
        actors: str = "AB",
        *,
        records: int = 2,
        joins: int = 2,
        expulsions: int = 1,
        chains: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__("", batches=records, broken=broken)
        self.chains = chains
        self.names = actors
        self.members = tuple(name for name in actors if name not in "SH")
        self.joins = joins
        self.expulsions = expulsions
        self.world = World([f"id{name}" for name in self.members], ("x",), broken)
        self.recovery = Recovery(self.world, GROUP)
        self._known: dict[tuple[Stored, int, Pc], list[Step]] = {}

    def initial(self) -> State:
        places: list[Pc] = [("join", -1, self.joins) for _ in self.members]
        if "S" in self.names:
            places.append(("bump",))
        if "H" in self.names:
            places.append(("see",))
        places.append(("expel", self.expulsions))
        return State(self.world.empty(), (), tuple(places))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, pc in enumerate(state.places):
            for label, stored, after in self._moves(state.stored, number, pc):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield label, State(stored, (), places)

    def _moves(self, stored: Stored, number: int, pc: Pc) -> list[Step]:
        """What one process may do, whatever the others are about to do."""
        key = (stored, number, pc)
        if key not in self._known:
            member = number < len(self.members)
            steps = self._member(*key) if member else self._outsider(stored, pc)
            self._known[key] = list(steps)
        return self._known[key]

    def unsafe(self, before: State, after: State) -> str | None:
        if after.stored == before.stored:
            return None
        for old, new in zip(before.stored.topics, after.stored.topics, strict=True):
            if old != new and (what := self._history(old, new)) is not None:
                return what
        if self._position(after.stored) < self._position(before.stored):
            return "the group's position goes back"
        if after.stored not in self._judged:
            self._judged[after.stored] = self._judge(after.stored)
        return self._judged[after.stored]

    # -- outsiders ---------------------------------------------------------------------------------

    def _outsider(self, stored: Stored, pc: Pc) -> Iterator[Step]:
        if pc[0] in Recovery.NAMES:
            for label, after, place in self.recovery.steps(stored, pc):
                yield f"outsider {label}", after, place
        elif pc[0] == "see":
            for label, after, place in self.recovery.look_at_holders(stored):
                yield f"H {label}", after, place
        elif pc[0] == "bump":
            wrote = self.world.begin(stored, GROUP)
            yield "S begins a generation", wrote.stored, fencing(wrote.holders, DEAD)
        elif pc[0] == "expel" and pc[1] > 0:
            group = self.world.group(stored, GROUP)
            for name in sorted(group.members) if group is not None else ():
                yield f"{name} is expelled", self._expelled(stored, name), ("expel", pc[1] - 1)

    def _expelled(self, stored: Stored, name: str) -> Stored:
        group = self.world.group(stored, GROUP)
        assert group is not None
        observers = sorted(set(group.members) - {name})
        if not observers:
            return stored
        seen = {name: (group.members[name].heartbeat, Watch(0, watched_ms=1))}
        observation = GroupObservation(heartbeats=seen)

        def decide(table: OffsetsTable, _: int) -> OffsetsCommit | None:
            return prepare_heartbeat(
                table.groups.get(GROUP),
                group_id=GROUP,
                member_id=observers[0],
                beat=False,
                observation=observation,
                counts=self.counts,
                now_ms=0,
            )

        return self.world.change_offsets(stored, ("expel", name), decide).stored

    # -- members -----------------------------------------------------------------------------------

    def _member(self, stored: Stored, number: int, pc: Pc, name: str = "") -> Iterator[Step]:
        """One step; `name` is its member id, if that is not its name."""
        name = name or self.members[number]
        if pc[0] in Recovery.NAMES:
            for label, after, place in self.recovery.steps(stored, pc):
                yield f"{name} {label}", after, place
            yield from self._leave(stored, pc, name)
        elif pc[0] == "join":
            _, released, joins = pc
            if joins > 0:
                wrote = self._join(stored, name, released)
                yield f"{name} joins", wrote.stored, ("wait", released, joins - 1)
        elif pc[0] == "wait":
            yield from self._wait(stored, name, pc)
        elif pc[0] == "fetch":
            yield from self._fetch_part(stored, number, pc, name)
        elif pc[0] == "poll":
            yield from self._poll(stored, pc, name)
        elif pc[0] in COPIES:
            yield from self._copy(stored, number, pc, name)

    def _join(self, stored: Stored, name: str, released: int, former: str = "") -> Wrote:
        def decide(table: OffsetsTable, _: int) -> OffsetsCommit | None:
            return prepare_join(
                self._met_by(table.groups.get(GROUP), name),
                group_id=GROUP,
                member_id=name,
                member=self.static if "R" in self.names and name[0] in "AR" else self.member,
                released=released,
                counts=self.counts,
                now_ms=0,
                former=former,
            )

        return self.world.change_offsets(stored, ("join", name, released, former), decide)

    def _met_by(self, group: Group | None, name: str) -> Group | None:
        """The row that a member decides to join by."""
        return group

    def _wait(self, stored: Stored, name: str, pc: Pc) -> Iterator[Step]:
        _, released, joins = pc
        group = self.world.group(stored, GROUP)
        assert group is not None
        if is_member_of(group, name, after=released):
            generation = group.generation
            assigned = group.assignment[name].get(INPUT, ())
            has_it = TWO_OWNERS in self.broken or self.partition in assigned
            after: Pc = (
                ("fetch", generation, joins, None) if has_it else ("poll", generation, joins, -1)
            )
            yield f"{name} takes its part of generation {generation}", stored, after
        elif name not in group.members or group.members[name].joined != group.generation:
            yield f"{name} is not waited for any more", stored, ("join", released, joins)

    def _fetch_part(self, stored: Stored, number: int, pc: Pc, name: str) -> Iterator[Step]:
        _, generation, joins, _ = pc
        found = self.recovery.fetch(stored, pc, generation, name)
        if isinstance(found, int):
            yield f"{name} fetches {found}", stored, ("poll", generation, joins, found)
        else:
            label, after = found
            lost = self._refused(stored, pc, name) if after == DEAD else after
            yield f"{name} {label}", stored, lost

    def _poll(self, stored: Stored, pc: Pc, name: str) -> Iterator[Step]:
        """Between two transactions: read on, or see that the group has changed."""
        _, generation, joins, offset, *left = pc
        group = self.world.group(stored, GROUP)
        found = membership_status(group, member_id=name, generation=generation)
        if found is not MembershipStatus.STABLE:
            yield f"{name} revokes: {found.name}", stored, ("join", generation, joins)
        if 0 <= offset < self.batches:
            # It may not have seen the change yet.
            begun = (generation, joins, offset)
            after = self._next(begun, left[0]) if left else ("own", *begun)
            yield f"{name} reads {offset}", stored, after

    def _leave(self, stored: Stored, pc: Pc, name: str) -> Iterator[Step]:
        """Instead of COMPLETE of its own transaction, whose offsets have moved."""
        if not self.chains or pc[0] != "fin" or pc[-1][0] != "poll":
            return
        _, _, number, at, done = pc
        row = self.world.rows[number]
        if row is not None and self.world.plan(number)[at][0] == "complete":
            left = (row.producer_id, row.txn_epoch, row.pending.tickets[0].ticket)
            yield f"{name} leaves COMPLETE", stored, (*done, left)

    def _next(self, begun: tuple[Any, ...], left: tuple[int, int, int]) -> Pc:
        """The transaction whose decision completes the one before."""
        producer_id, epoch, ticket = left
        return ("prepare", *begun, producer_id, epoch + 1, ticket, REGISTRATIONS_MAX, epoch)

    def _copy(self, stored: Stored, number: int, pc: Pc, name: str) -> Iterator[Step]:
        step, generation, joins, offset = pc[:4]
        lost = self._refused(stored, pc, name)
        if step == "own":
            met = self.recovery.meet_prepared(stored, number, pc)
            if met is not None:
                yield f"{name} meets PREPARE", stored, met
                return
            wrote = self._init(stored, number)
            row = self.world.row(wrote.stored, number)
            assert row is not None
            begun = ("register", *pc[1:], row.producer_id, row.producer_epoch, 0, frozenset())
            after = DEAD if wrote.error else begun
            yield f"{name} begins{wrote.error}", wrote.stored, after
        elif step == "register":
            *_, producer_id, epoch, times, fenced = pc
            request = self._request(stored, name, generation, offset)
            row = self.world.row(stored, number)
            floor = 0 if row is None else row.owner.floors.get(GROUP, 0)
            holder = self._member_holder(number, producer_id, epoch)
            wrote = self.world.register(stored, holder, request, floor=floor, fenced=fenced)
            if wrote.error or wrote.ticket:
                ready = ("prepare", *pc[1:6], wrote.ticket, times + 1, NOTHING_LEFT)
                after = ready if wrote.ticket else lost
                note = wrote.error or f"ticket {wrote.ticket}"
                yield f"{name} registers to {offset + 1}: {note}", wrote.stored, after
            else:
                seen = {self.world.holders[held].ticket for held in wrote.holders}
                after = fencing(wrote.holders, (*pc[:7], fenced | seen))
                yield f"{name} meets {len(seen)} holders", stored, after
        else:
            wrote = self._end(stored, number, pc)
            done: Pc = ("poll", generation, joins, offset + 1)
            after = self.recovery.meet_prepared(wrote.stored, number, done) or done
            if wrote.error:
                again = wrote.error == "IllegalGenerationError" and pc[7] < REGISTRATIONS_MAX
                after = ("register", *pc[1:6], pc[7], frozenset()) if again else DEAD
                if pc[8] != NOTHING_LEFT:
                    # It finishes what it has left, and repeats this one.
                    after = ("own", *pc[1:4])
            note = wrote.error if pc[8] == NOTHING_LEFT else f"after e{pc[8]} {wrote.error}"
            yield f"{name} PREPARE of {offset}: {note}", wrote.stored, after

    def _refused(self, stored: Stored, pc: Pc, name: str) -> Pc:
        """Where a member goes on whose generation was refused."""
        return ("join", *pc[1:3])

    def _request(self, stored: Stored, name: str, generation: int, offset: int) -> GroupOffsets:
        group = self.world.group(stored, GROUP)
        member_id = name
        if REGISTERS_UNDER_ANY in self.broken and group is not None:
            generation, member_id = group.generation, ""
        return GroupOffsets(
            group_id=GROUP,
            generation=generation,
            start={},
            end={INPUT: {self.partition: offset + 1}},
            member_id=member_id,
        )

    def _init(self, stored: Stored, number: int) -> Wrote:  # type: ignore[override]
        name = self.members[number]
        return self.world.transition(
            stored,
            number,
            ("init", name),
            lambda row: prepare_init(
                row,
                transactional_id=self.world.ids[number],
                new_producer_id=10 + number,
                owner=Owner(run_id=name),
                timeout_ms=1,
                now_ms=0,
            ),
        )

    def _member_holder(self, number: int, producer_id: int, epoch: int) -> Holder:
        return Holder(
            transactional_id=self.world.ids[number],
            producer_id=producer_id,
            producer_epoch=epoch,
            run_id=self.members[number],
        )

    def _end(self, stored: Stored, number: int, pc: Pc) -> Wrote:
        _, generation, _, offset, producer_id, epoch, ticket, _, left = pc
        name = self.members[number]
        carried = GroupTicket(
            group_id=GROUP,
            producer_id=producer_id,
            ticket=ticket,
            generation=generation,
            offsets={INPUT: {self.partition: offset + 1}},
        )
        files = (staged("x", offset, f"{name}{generation}"),)
        asked: Hashable = ("end", name, epoch, ticket, offset, generation, left)
        has_left = left != NOTHING_LEFT
        return self.world.transition(
            stored,
            number,
            asked,
            lambda row: prepare_end(
                row,
                holder=self._member_holder(number, producer_id, epoch),
                result=TransactionResult.COMMIT,
                manifest=Manifest(batches=files, tickets=(carried,)),
                follows=ProducerIdAndEpoch(producer_id, left) if has_left else None,
                now_ms=0,
            ),
        )
