"""Transactions with offsets of two groups, and who takes over one of them.

O copies input `unit` of group g to topic x and of group h to topic y, in one transaction, and
chains: its COMPLETE may ride on the next PREPARE, once its offsets have moved in both groups.
G takes over group g, H takes over group h, under an id of its own or under O's; both copy what is
left of their group. L finishes what it saw once.
The groups are in two shards of the consumer offsets, so each gets a marker of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tests.model.recovery import DEAD, Pc, Recovery, fencing
from tests.model.values import (
    OffsetsTable,
    Row,
    Stored,
    Wrote,
    above_newest,
    staged,
    visible_units,
)
from tests.model.world import World
from txnlog.protocol.groups import GroupOffsets, OffsetsCommit
from txnlog.protocol.metadata import GroupTicket, Holder, Manifest, Owner, ProducerIdAndEpoch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.tickets import prepare_carried_offsets
from txnlog.protocol.transitions import Done, Transition, prepare_end, prepare_init

GROUPS, TOPICS = "gh", "xy"
FLOOR_OF_ONE = "PREPARE asks for the floor of the first group only"
ONE_GROUP_MOVES = "who finishes moves the offsets of one group only"
CHAINS_BEFORE_LAST = "a PREPARE follows before the offsets of the last group have moved"
COMPLETES_ONE = "COMPLETE comes before the offsets of the last group"

Step = tuple[str, Stored, Pc]


class State(NamedTuple):
    """Everything there is."""

    stored: Stored
    places: tuple[Pc, ...]


class TwoShards(World):
    """The World, where a decided transaction moves the offsets of each group in a write of its own.

    The marker of shard k has the producer's id plus 100 * k.
    """

    def plan(self, number: int) -> tuple[tuple[str, str, str], ...]:
        writes: list[tuple[str, str, str]] = []
        row = self.rows[number]
        assert row is not None
        for write in super().plan(number):
            if write[0] != "offsets":
                writes.append(write)
                continue
            carried = [("offsets", one.group_id, "") for one in row.moves]
            writes += carried[:1] if ONE_GROUP_MOVES in self.broken else carried
        if COMPLETES_ONE in self.broken and len(writes) > 2:
            writes[-2:] = [writes[-1], writes[-2]]
        return tuple(writes)

    def finish(self, stored: Stored, which: int, number: int, at: int) -> tuple[str, Wrote, bool]:
        writes = self.plan(number)
        what, group_id, _ = writes[at]
        if what != "offsets":
            return super().finish(stored, which, number, at)
        wrote = self._move(stored, number, group_id)
        return f"offsets of {group_id}", wrote, at + 1 == len(writes)

    def _move(self, stored: Stored, number: int, group_id: str) -> Wrote:
        row = self.rows[number]
        assert row is not None
        shard = 100 * GROUPS.index(group_id)

        def decide(table: OffsetsTable, version: int) -> OffsetsCommit | None:
            assert row is not None
            moved = prepare_carried_offsets(
                table.groups,
                {key - shard: epoch for key, epoch in table.markers.items()},
                [one for one in row.moves if one.group_id == group_id],
                transaction=row.transaction,
                version=version,
                now_ms=0,
            )
            if moved is None:
                return None
            txns = {key + shard: epoch for key, epoch in moved.txns.items()}
            return replace(moved, txns=txns)

        return self.change_offsets(stored, ("move", number, group_id), decide)


class SeveralGroups:
    """The model; `actors` is a string of the letters O, G, H, L.

    `same_id`: H takes O's id. `sparse`: only O's first transaction has offsets of h.
    """

    def __init__(
        self,
        actors: str = "OGH",
        *,
        units: int = 2,
        same_id: bool = False,
        sparse: bool = False,
        lost_replies: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.actors = actors
        self.units = units
        self.lost_replies = lost_replies
        self.broken = broken
        self.which = {"O": 0, "G": 1, "H": 0 if same_id else 2}
        self.same_id = same_id
        self.sparse = sparse
        self.world = TwoShards(("id0", "id1", "id2"), TOPICS, broken)
        self.recoveries = {group_id: Recovery(self.world, group_id) for group_id in GROUPS}
        self._judged: dict[Stored, str | None] = {}

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        """O has read for both groups, and has its tickets; the others have their ids."""
        stored = self.world.empty()
        for actor in "OGH":
            if actor != "H" or not self.same_id:
                stored = self._init(stored, actor).stored
        for group_id in GROUPS:
            stored = self.world.begin(stored, group_id).stored
            request = self._request(group_id, 1, 0)
            stored = self.world.register(stored, self._holder("O", 0), request).stored
        first = {"O": ("prepare", 0, 0, False), "L": ("look",), "G": ("begin", 0)}
        first["H"] = ("init",) if self.same_id else ("begin", 0)
        return State(stored, tuple(first[actor] for actor in self.actors))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            pc = state.places[number]
            for label, stored, after in self._step(state.stored, actor, pc):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield f"{actor} {label}", State(stored, places)
                if self.lost_replies and stored != state.stored and pc[0] == "prepare":
                    yield f"{actor} {label} (reply lost)", State(stored, state.places)

    def _step(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        recovery = self.recoveries[self._group(actor)]
        if pc[0] in Recovery.NAMES:
            yield from recovery.steps(stored, pc)
            if pc[0] == "fin" and pc[-1][:1] == ("next",):
                yield from self._leave(stored, pc)
        elif pc[0] == "look":
            for which in range(len(self.world.ids)):
                met = recovery.meet_prepared(stored, which, DEAD)
                if met is not None:
                    yield f"reads id{which} decided", stored, met
        elif pc[0] == "init":
            wrote = self._init(stored, actor)
            row = self.world.row(wrote.stored, self.which[actor])
            assert row is not None
            met = recovery.meet_prepared(wrote.stored, self.which[actor], pc)
            yield f"inits {wrote.error}", wrote.stored, met or ("begin", row.producer_epoch)
        elif pc[0] == "next":
            _, unit, epoch = pc
            left = unit + 1 < self.units
            yield "goes on", stored, ("prepare", unit + 1, epoch + 1, False) if left else DEAD
        elif pc[0] == "prepare":
            yield from self._prepare(stored, actor, pc)
        elif pc[0] != "dead":
            yield from self._take_over(stored, actor, pc)

    def _leave(self, stored: Stored, pc: Pc) -> Iterator[Step]:
        """All has landed: COMPLETE may ride on the next decision."""
        _, _, number, at, (_, unit, epoch) = pc
        left = len(self.world.plan(number)) - at
        if unit + 1 >= self.units:
            return
        if left == 1 or (left == 2 and CHAINS_BEFORE_LAST in self.broken):
            yield "leaves COMPLETE", stored, ("prepare", unit + 1, epoch + 1, "all has landed")

    def _prepare(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        """O: both topics and groups; the others: their own, under the ticket that they have."""
        _, unit, epoch, rest = pc
        groups = GROUPS if actor == "O" and not (self.sparse and unit) else self._group(actor)
        producer_id = self._producer_id(actor)
        generation, ticket = (1, 1) if actor == "O" else rest
        carried = tuple(
            GroupTicket(
                group_id=group_id,
                producer_id=producer_id,
                ticket=ticket,
                generation=generation,
                offsets={f"in-{group_id}": {0: unit + 1}},
            )
            for group_id in groups
        )
        files = tuple(staged(self._topic(g), unit, f"{actor}{epoch}") for g in groups)
        is_chained = actor == "O" and rest
        follows = ProducerIdAndEpoch(producer_id, epoch - 1) if is_chained else None

        def decide(now: Row) -> Transition | Done:
            if now is not None and FLOOR_OF_ONE in self.broken:
                floors = {name: floor for name, floor in now.owner.floors.items() if name == "g"}
                now = replace(now, owner=replace(now.owner, floors=floors))
            return prepare_end(
                now,
                holder=self._holder(actor, epoch),
                result=TransactionResult.COMMIT,
                manifest=Manifest(batches=files, tickets=carried),
                follows=follows,
                now_ms=0,
            )

        which = self.which[actor]
        wrote = self.world.transition(stored, which, ("end", actor, unit, epoch, rest), decide)
        then: Pc = ("next", unit, epoch)
        if actor != "O":
            then = ("register", epoch + 1, generation, unit + 1, frozenset())
        recovery = self.recoveries[self._group(actor)]
        met = recovery.meet_prepared(wrote.stored, which, then)
        after = DEAD if wrote.error else met or then
        yield f"PREPARE unit {unit} e{epoch} {wrote.error}", wrote.stored, after

    def _take_over(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        """G and H: begin a generation, fence, read, register."""
        group_id, epoch = self._group(actor), pc[1]
        if pc[0] == "begin":
            wrote = self.world.begin(stored, group_id)
            group = self.world.group(wrote.stored, group_id)
            assert group is not None
            then: Pc = ("fetch", epoch, group.generation, None)
            yield f"begins in {group_id}", wrote.stored, fencing(wrote.holders, then)
        elif pc[0] == "fetch":
            found = self.recoveries[group_id].fetch(stored, pc, pc[2])
            if not isinstance(found, int):
                yield f"fetches {group_id}: {found[0]}", stored, found[1]
                return
            yield f"reads {found}", stored, ("register", epoch, pc[2], found, frozenset())
        else:
            yield from self._register(stored, actor, pc)

    def _register(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        _, epoch, generation, unit, fenced = pc
        if unit >= self.units:
            yield "has read all", stored, DEAD
            return
        request = self._request(self._group(actor), generation, unit)
        wrote = self.world.register(stored, self._holder(actor, epoch), request, fenced=fenced)
        after: Pc = ("prepare", unit, epoch, (generation, wrote.ticket))
        if wrote.error:
            after = DEAD
        elif not wrote.ticket:
            met = frozenset(self.world.holders[number].ticket for number in wrote.holders)
            after = fencing(wrote.holders, (*pc[:4], fenced | met))
        yield f"registers {wrote.error}", wrote.stored, after

    def _group(self, actor: str) -> str:
        return "h" if actor == "H" else "g"

    def _topic(self, group_id: str) -> str:
        return TOPICS[GROUPS.index(group_id)]

    def _producer_id(self, actor: str) -> int:
        return 10 + self.which[actor]

    def _holder(self, actor: str, epoch: int) -> Holder:
        return Holder(
            transactional_id=self.world.ids[self.which[actor]],
            producer_id=self._producer_id(actor),
            producer_epoch=epoch,
            run_id=actor,
        )

    def _request(self, group_id: str, generation: int, unit: int) -> GroupOffsets:
        end = {f"in-{group_id}": {0: unit + 1}}
        return GroupOffsets(group_id=group_id, generation=generation, start={}, end=end)

    def _init(self, stored: Stored, actor: str) -> Wrote:
        which = self.which[actor]
        return self.world.transition(
            stored,
            which,
            ("init", actor),
            lambda row: prepare_init(
                row,
                transactional_id=self.world.ids[which],
                new_producer_id=10 + which,
                owner=Owner(run_id=actor),
                timeout_ms=1,
                now_ms=0,
            ),
        )

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if (what := self.world.broken_history(before.stored, after.stored)) is not None:
            return what
        for group_id, recovery in self.recoveries.items():
            if recovery.position(after.stored) < recovery.position(before.stored):
                return f"the position of {group_id} goes back"
        if after.stored not in self._judged:
            self._judged[after.stored] = self._judge(after.stored)
        return self._judged[after.stored]

    def _judge(self, stored: Stored) -> str | None:
        rows = [self.world.rows[number] for number in stored.rows]
        if (what := above_newest(rows, self.world.offsets[stored.offsets])) is not None:
            return what
        clean = self.recoveries["g"].recovered(stored)
        for group_id, topic, number in zip(GROUPS, TOPICS, clean.topics, strict=True):
            units = visible_units(self.world.topics[number])
            if list(units) != list(range(len(units))):
                return f"topic {topic} holds {units}, twice or not in order"
            if (at := self.recoveries[group_id].position(clean)) != len(units):
                return f"position {at} of {group_id}, topic {topic} holds {units}"
        marks = [self._of_owner(clean.topics, which) for which in range(len(TOPICS))]
        return None if marks[0] == marks[1] else f"torn: {marks}"

    def _of_owner(self, topics: Sequence[int], which: int) -> set[str]:
        """The transactions of O with both groups that a topic shows."""
        paths = self.world.topics[topics[which]].by_path
        mine = {path.split("-", 1)[1] for path in paths if "-O" in path}
        return {name for name in mine if name.startswith("0-")} if self.sparse else mine

    def stuck(self, state: State) -> str | None:
        waits = any(pc != DEAD and pc[0] != "look" for pc in state.places)
        return "somebody waits for ever" if waits else None
