"""A producer and its successor under one transactional.id that expires in between.

A and B are instances of one application: each owns the id, begins by reading how many units are
published, and publishes the next one. Both may stand still anywhere, and repeat a commit whose end
they did not see. E forgets the idle id. H finishes what is decided, from a row that may be long
out of date. A unit that is published twice is what all of this is there to prevent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.recovery import DEAD, Pc, Recovery
from tests.model.rules import REVIVES_DECIDED, REVIVES_OPEN
from tests.model.values import Stored, Wrote, staged, visible_units
from tests.model.world import World
from txnlog.protocol.metadata import Holder, Manifest, Owner
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicState
from txnlog.protocol.transitions import prepare_end, prepare_expire, prepare_init

TOPIC = "x"
UNITS = 2
EXPIRIES = 2
NO_ROW = "InvalidProducerIdMappingError"

Step = tuple[str, Stored, Pc]


class State(NamedTuple):
    """Everything there is; `ids` is the next producer id, `expiries` how many are left."""

    stored: Stored
    places: tuple[Pc, ...]
    ids: int
    expiries: int


class Revival:
    """The model; `actors` is a string of the letters A, B, E, H.

    Places of A and B: ("start",), ("ready", producer id, epoch), ("begin", ...): the row is looked
    at, ("open", ..., unit), ("decided", ..., unit): PREPARE has landed, the rest was not seen.
    """

    def __init__(self, actors: str, *, broken: frozenset[str] = frozenset()) -> None:
        self.actors = actors
        self.world = World(("id0",), (TOPIC,), broken)
        self.recovery = Recovery(self.world, "")

    def initial(self) -> State:
        first = {"A": ("start",), "B": ("start",)}
        places = tuple(first.get(actor, ("look",)) for actor in self.actors)
        return State(self.world.empty(), places, 1, EXPIRIES)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            for label, after, place in self._step(state, actor, state.places[number]):
                places = (*state.places[:number], place, *state.places[number + 1 :])
                yield f"{actor} {label}", after._replace(places=places)

    def _step(self, state: State, actor: str, pc: Pc) -> Iterator[tuple[str, State, Pc]]:
        stored = state.stored
        row = self.world.row(stored, 0)
        if pc[0] in Recovery.NAMES:
            for label, after, place in self.recovery.steps(stored, pc):
                yield label, state._replace(stored=after), place
            if actor in "AB":
                yield "loses the store", state, pc[4]
        elif actor == "E" and row is not None and row.state.is_idle and state.expiries:
            wrote = self.world.transition(
                stored, 0, "expire", lambda now: prepare_expire(now, now_ms=0)
            )
            left = state._replace(stored=wrote.stored, expiries=state.expiries - 1)
            yield "forgets the id", left, pc
        elif actor == "H":
            met = self.recovery.meet_prepared(stored, 0, DEAD)
            if met is not None and pc != DEAD:
                yield "reads a decided row", state, met
        elif actor in "AB" and pc != DEAD:
            yield from self._run(state, actor, pc)

    def _run(self, state: State, actor: str, pc: Pc) -> Iterator[tuple[str, State, Pc]]:
        stored = state.stored
        if pc[0] in ("start", "begin"):
            met = self.recovery.meet_prepared(stored, 0, pc)
            if met is not None:
                yield "meets a decided row", state, met
                return
            yield self._init(state, actor, pc)
        elif pc[0] == "ready":
            # The row is looked at when it was not for long, which is any time for a model.
            yield "reads its row", state, ("begin", *pc[1:])
            yield self._begin(state, pc[1:])
        elif pc[0] in ("open", "decided"):
            yield self._commit(state, actor, pc)

    def _init(self, state: State, actor: str, pc: Pc) -> tuple[str, State, Pc]:
        """init_transactions, or the read before a begin, which takes the id from no other owner."""
        takes_over = pc[0] == "start"
        error, after, owned = self._own(state, actor, takes_over)
        if error:
            return f"is refused: {error}", after, DEAD
        if takes_over:
            return "owns the id", after, ("ready", *owned)
        return self._begin(after, owned)

    def _begin(self, state: State, owned: Pc) -> tuple[str, State, Pc]:
        unit = len(visible_units(self._topic(state)))
        if unit >= UNITS:
            return "has nothing left to do", state, DEAD
        return f"begins unit {unit}", state, ("open", *owned, unit)

    def _own(self, state: State, actor: str, takes_over: bool) -> tuple[str, State, Pc]:
        wrote = self.world.transition(
            state.stored,
            0,
            ("init", actor, takes_over, state.ids),
            lambda row: prepare_init(
                row,
                transactional_id="id0",
                new_producer_id=state.ids,
                owner=Owner(run_id=actor),
                timeout_ms=1,
                now_ms=0,
                take_over=takes_over,
            ),
        )
        if wrote.error:
            return wrote.error, state, ()
        row = self.world.row(wrote.stored, 0)
        assert row is not None
        used = row.producer_id == state.ids
        after = state._replace(stored=wrote.stored, ids=state.ids + used)
        return "", after, (row.producer_id, row.producer_epoch)

    def _commit(self, state: State, actor: str, pc: Pc) -> tuple[str, State, Pc]:
        """The first try, or one more after PREPARE has landed."""
        name, producer_id, epoch, unit = pc
        wrote = self._prepare(state.stored, actor, producer_id, epoch, unit)
        broken = REVIVES_OPEN if name == "open" else REVIVES_DECIDED
        if wrote.error == NO_ROW and broken in self.world.broken:
            error, state, owned = self._own(state, actor, False)
            if error:
                return f"is refused: {error}", state, DEAD
            producer_id, epoch = owned
            wrote = self._prepare(state.stored, actor, producer_id, epoch, unit)
        after = state._replace(stored=wrote.stored)
        if wrote.error == NO_ROW:
            # It must abort, or has committed: both continue with the next begin.
            return f"finds no row, {name}", after, ("ready", producer_id, epoch)
        if wrote.error and name == "open":
            return f"is refused: {wrote.error}", after, DEAD
        back = ("decided", producer_id, epoch, unit)
        met = self.recovery.meet_prepared(after.stored, 0, back)
        if met is None:
            row = self.world.row(after.stored, 0)
            mine = row is not None and (row.producer_id, row.owner.run_id) == (producer_id, actor)
            epoch = row.producer_epoch if row is not None and mine else epoch
            return f"has committed unit {unit}", after, ("ready", producer_id, epoch)
        return f"decides unit {unit}", after, met

    def _prepare(
        self, stored: Stored, actor: str, producer_id: int, epoch: int, unit: int
    ) -> Wrote:
        file = staged(TOPIC, unit, f"{actor}{epoch}")
        return self.world.transition(
            stored,
            0,
            ("commit", actor, producer_id, epoch, unit),
            lambda row: prepare_end(
                row,
                holder=Holder(
                    transactional_id="id0",
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    run_id=actor,
                ),
                result=TransactionResult.COMMIT,
                manifest=Manifest(batches=(file,)),
                now_ms=0,
            ),
        )

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        units = visible_units(self._topic(after))
        if len(set(units)) < len(units):
            return f"a unit is published twice: {units}"
        return self.world.broken_history(before.stored, after.stored)

    def _topic(self, state: State) -> TopicState:
        return self.world.topics[state.stored.topics[0]]

    def stuck(self, state: State) -> str | None:
        return None
