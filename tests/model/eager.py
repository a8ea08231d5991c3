"""Eager and two-phase transactions with group offsets, as a producer client drives them.

P is a producer; Q its successor under the same transactional.id, or another producer of the same
group; S a sweeper that times P's or Q's transaction out and reads the decided rows once, which
may be out of date when it acts; L another process that finishes what it saw once; G a sweeper that
lets the group forget a holder; E expires an idle row. A producer reads input offset u of its group,
writes it to every topic, and commits both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.recovery import DEAD, Pc, Recovery, fencing
from tests.model.rules import START_FENCES_NOBODY
from tests.model.values import (
    Stored,
    Wrote,
    above_newest,
    staged,
    undecided,
    visible_units,
)
from tests.model.world import World
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import GroupTicket, Holder, Manifest, Owner, TopicPartitions
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import prepare_add_partitions, prepare_end, prepare_init

GROUP = "g"
INPUT = "in"
APPEND_BEFORE_ADD = "data is written before the row names its partitions"

Step = tuple[str, Stored, Pc]


class State(NamedTuple):
    """Everything there is."""

    stored: Stored
    places: tuple[Pc, ...]


class Eager:
    """The model; `actors` is a string of the letters P, Q, S, L, G, E.

    `two_phase`: P stages, prepares its transaction (KIP-939) and then commits; it is never killed
    by its own choice, so once prepared no process may abort it. `units`: inputs there are.
    `sends`: the offsets are sent before the end, which the row then names.
    """

    def __init__(
        self,
        actors: str = "PQS",
        *,
        units: int = 1,
        same_id: bool = False,
        two_phase: bool = False,
        lost_replies: bool = False,
        sends: bool = True,
        topics: tuple[str, ...] = ("x", "y"),
        broken: frozenset[str] = frozenset(),
    ) -> None:
        ids = ("id0",) if same_id else ("id0", "id1")
        self.actors = actors
        self.units = units
        self.which = {"P": 0, "Q": len(ids) - 1}
        self.two_phase = two_phase
        self.lost_replies = lost_replies
        self.sends = sends
        self.broken = broken
        self.world = World(ids, topics, broken)
        self.recovery = Recovery(self.world, GROUP)
        self._judged: dict[Stored, str | None] = {}

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        first = {"P": ("init",), "Q": ("init",), "E": ("expire",)}
        places = tuple(first.get(name, ("look",)) for name in self.actors)
        return State(self.world.empty(), places)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            pc = state.places[number]
            for label, stored, after in self._step(state.stored, actor, pc):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield f"{actor} {label}", State(stored, places)
                # A generation that is bumped again and again makes the space infinite.
                if self.lost_replies and stored != state.stored and pc[0] != "bump":
                    yield f"{actor} {label} (reply lost)", State(stored, state.places)

    def _step(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        if pc[0] in Recovery.NAMES:
            yield from self.recovery.steps(stored, pc)
        elif pc[0] == "look":
            yield from self._sweep(stored, actor)
        elif pc[0] == "expire":
            for which in range(len(self.world.ids)):
                wrote = self.world.expire(stored, which)
                if wrote.stored != stored:
                    yield f"expires id{which}", wrote.stored, DEAD
        elif pc[0] == "time out":
            wrote = self.world.time_out(stored, pc[1], pc[3], pc[2])
            met = self.recovery.meet_prepared(wrote.stored, pc[1], DEAD)
            yield f"times out e{pc[2]}", wrote.stored, met or DEAD
        elif pc[0] in ("init", "bump", "fetch"):
            yield from self._start(stored, actor, pc)
        elif pc[0] != "dead":
            yield from self._transact(stored, actor, pc)

    def _sweep(self, stored: Stored, actor: str) -> Iterator[Step]:
        for which in range(len(self.world.ids)):
            met = self.recovery.meet_prepared(stored, which, DEAD)
            if met is not None:
                yield "reads a decided row", stored, met
            row = self.world.row(stored, which)
            if actor == "S" and row is not None and row.state is TransactionState.ONGOING:
                yield (
                    "reads an Ongoing row",
                    stored,
                    ("time out", which, row.txn_epoch, row.producer_id),
                )
        if actor == "G":
            yield from self.recovery.look_at_holders(stored)

    def _start(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        which = self.which[actor]
        if pc[0] == "init":
            row = self.world.row(stored, which)
            kept = row is not None and row.pending.prepared_by_client
            if kept and self.two_phase and row is not None and row.owner.run_id != actor:
                return
            wrote = self._init(stored, actor)
            row = self.world.row(wrote.stored, which)
            # What was decided, or is aborted by this, is finished; then it asks again.
            met = self.recovery.meet_prepared(wrote.stored, which, pc)
            after: Pc = met or pc
            if wrote.error and met is None:
                after = DEAD
            elif row is not None and row.state.is_idle:
                after = ("bump", row.producer_id, row.producer_epoch)
            yield f"inits: {wrote.error or after[0]}", wrote.stored, after
        elif pc[0] == "bump":
            wrote = self.world.begin(stored, GROUP)
            group = self.world.group(wrote.stored, GROUP)
            assert group is not None
            then = ("fetch", *pc[1:], group.generation, None)
            if START_FENCES_NOBODY not in self.world.broken:
                then = fencing(wrote.holders, then)
            yield f"bumps the generation to {group.generation}", wrote.stored, then
        else:
            found: tuple[str, Pc] | int = self._position(stored)
            if START_FENCES_NOBODY not in self.world.broken:
                found = self.recovery.fetch(stored, pc, pc[3])
            if not isinstance(found, int):
                yield f"fetches: {found[0]}", stored, found[1]
                return
            begins = (self._order(actor)[0], *pc[1:4], found, 0, frozenset())
            yield f"fetches: {found}", stored, begins if found < self.units else DEAD

    def _transact(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        name, producer_id, epoch, _, unit, _, _ = pc
        rest = pc[1:]
        order = self._order(actor)
        following = order[order.index(name) + 1] if name != order[-1] else ""
        if name == "begin":
            wrote = self._add(stored, actor, pc)
        elif name == "register":
            wrote = self._register(stored, actor, pc)
            if not wrote.error and not wrote.ticket:
                met = {self.world.holders[number].ticket for number in wrote.holders}
                after = fencing(wrote.holders, (*pc[:6], pc[6] | met))
                yield f"meets {len(met)} holders", stored, after
                return
            rest = (*pc[1:5], wrote.ticket, frozenset())
        elif name == "send offsets":
            wrote = self._add(stored, actor, pc, tickets=True)
        elif name == "prepare transaction":
            wrote = self._add(stored, actor, pc, manifest=self._manifest(actor, pc))
        elif name == "end":
            yield from self._end(stored, actor, pc)
            return
        else:
            topic = name.removeprefix("append ")
            wrote = self.world.append(
                stored,
                self.world.topic_names.index(topic),
                producer_id,
                epoch,
                staged(topic, unit, f"{actor}{epoch}"),
            )
        after = (following, *rest)
        if wrote.error:
            # A fenced or failed client stops, or aborts what it can.
            after = ("end", *rest) if name.startswith("append") else DEAD
        yield f"{name} e{epoch}{': ' * bool(wrote.error)}{wrote.error}", wrote.stored, after

    def _order(self, actor: str) -> list[str]:
        if self.two_phase and actor == "P":
            return ["register", "prepare transaction", "end"]
        appends = [f"append {topic}" for topic in self.world.topic_names]
        offsets = ["register", "send offsets"] if self.sends else ["register"]
        if APPEND_BEFORE_ADD in self.broken:
            return [appends[0], "begin", *appends[1:], *offsets, "end"]
        return ["begin", *appends, *offsets, "end"]

    def _register(self, stored: Stored, actor: str, pc: Pc) -> Wrote:
        which = self.which[actor]
        _, producer_id, epoch, generation, unit, _, fenced = pc
        row = self.world.row(stored, which)
        request = GroupOffsets(
            group_id=GROUP,
            generation=generation,
            start={INPUT: {0: unit}},
            end={INPUT: {0: unit + 1}},
        )
        return self.world.register(
            stored,
            self._holder(actor, producer_id, epoch),
            request,
            floor=0 if row is None else row.owner.floors.get(GROUP, 0),
            fenced=fenced,
        )

    def _holder(self, actor: str, producer_id: int, epoch: int) -> Holder:
        return Holder(
            transactional_id=self.world.ids[self.which[actor]],
            producer_id=producer_id,
            producer_epoch=epoch,
            run_id=actor,
        )

    def _tickets(self, pc: Pc) -> tuple[GroupTicket, ...]:
        _, producer_id, _, generation, unit, ticket, _ = pc
        carried = GroupTicket(
            group_id=GROUP,
            producer_id=producer_id,
            ticket=ticket,
            generation=generation,
            offsets={INPUT: {0: unit + 1}},
        )
        return (carried,)

    def _init(self, stored: Stored, actor: str) -> Wrote:
        which = self.which[actor]
        return self.world.transition(
            stored,
            which,
            ("init", actor),
            lambda row: prepare_init(
                row,
                transactional_id=self.world.ids[which],
                # An id that expired gets another one.
                new_producer_id=10 * (1 + "PQ".index(actor)) + which,
                owner=Owner(run_id=actor),
                timeout_ms=1,
                now_ms=0,
            ),
        )

    def _manifest(self, actor: str, pc: Pc) -> Manifest:
        files = tuple(staged(topic, pc[4], actor) for topic in self.world.topic_names)
        return Manifest(batches=files, tickets=self._tickets(pc))

    def _add(
        self,
        stored: Stored,
        actor: str,
        pc: Pc,
        *,
        manifest: Manifest | None = None,
        tickets: bool = False,
    ) -> Wrote:
        _, producer_id, epoch = pc[:3]
        which = self.which[actor]
        named = () if manifest is not None else self.world.topic_names
        touched = tuple(
            TopicPartitions(topic=topic, topic_id=f"{topic}-id", partitions=(0,)) for topic in named
        )
        carried = self._tickets(pc) if tickets else ()
        return self.world.transition(
            stored,
            which,
            ("add", actor, epoch, repr(manifest), repr(carried)),
            lambda row: prepare_add_partitions(
                row,
                holder=self._holder(actor, producer_id, epoch),
                partitions=touched,
                manifest=manifest,
                tickets=carried,
                now_ms=0,
            ),
        )

    def _end(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        """Commit, or abort by choice; the next unit follows under the epoch that comes back."""
        which = self.which[actor]
        _, producer_id, epoch, generation, unit, _, _ = pc
        promised = self.two_phase and actor == "P"
        for result in (TransactionResult.COMMIT, TransactionResult.ABORT):
            if promised and result is TransactionResult.ABORT:
                continue
            if result is TransactionResult.COMMIT and not self._complete(stored, actor, epoch):
                continue
            wrote = self._prepare(stored, actor, pc, result)
            following: Pc = ("fetch", producer_id, epoch + 1, generation, None)
            if unit + 1 >= self.units:
                following = DEAD
            met = self.recovery.meet_prepared(wrote.stored, which, following)
            if promised and wrote.error:
                met = ("promise broken",)
            after = DEAD if wrote.error and not promised else met or following
            label = f"PREPARE {result.name} e{epoch}{': ' * bool(wrote.error)}{wrote.error}"
            yield label, wrote.stored, after

    def _complete(self, stored: Stored, actor: str, epoch: int) -> bool:
        """A client commits only when all of its sends were acknowledged (R40)."""
        if self.two_phase and actor == "P":
            return True
        mark = f"-{actor}{epoch}"
        states = [self.world.topics[number] for number in stored.topics]
        return all(any(path.endswith(mark) for path in state.by_path) for state in states)

    def _prepare(self, stored: Stored, actor: str, pc: Pc, result: TransactionResult) -> Wrote:
        which = self.which[actor]
        _, producer_id, epoch = pc[:3]
        manifest = None
        if result is TransactionResult.COMMIT:
            held = self.two_phase and actor == "P"
            manifest = Manifest(tickets=() if held else self._tickets(pc))
        return self.world.transition(
            stored,
            which,
            ("end", actor, epoch, result, repr(manifest)),
            lambda row: prepare_end(
                row,
                holder=self._holder(actor, producer_id, epoch),
                result=result,
                manifest=manifest,
                now_ms=0,
            ),
        )

    def _position(self, stored: Stored) -> int:
        group = self.world.group(stored, GROUP)
        return 0 if group is None else group.positions().get(INPUT, {}).get(0, 0)

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if any(pc[0] == "promise broken" for pc in after.places):
            return "a prepared two-phase transaction was ended by another process"
        if (what := self.world.broken_history(before.stored, after.stored)) is not None:
            return what
        if self._position(after.stored) < self._position(before.stored):
            return "the group's position goes back"
        if after.stored not in self._judged:
            self._judged[after.stored] = self._judge(after.stored)
        return self._judged[after.stored]

    def _judge(self, stored: Stored) -> str | None:
        rows = [self.world.rows[number] for number in stored.rows]
        what = above_newest(rows, self.world.offsets[stored.offsets])
        if what is not None:
            return what
        clean = self.recovery.recovered(stored)
        states = [self.world.topics[number] for number in clean.topics]
        held = [sorted(visible_units(state)) for state in states]
        if any(len(set(units)) < len(units) for units in held):
            return f"after recovery: output is there twice: {held}"
        if any(units != held[0] for units in held):
            return f"after recovery: torn, the topics hold {held}"
        if self._position(clean) != len(held[0]):
            return f"after recovery: position {self._position(clean)}, the topics hold {held[0]}"
        for state in states:
            if undecided(state):
                return f"after recovery: {undecided(state)} are undecided for ever"
        return None

    def stuck(self, state: State) -> str | None:
        return None
