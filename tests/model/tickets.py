"""Commits in two rounds: offsets ride in PREPARE_COMMIT, and tickets refuse who no longer reads.

One group, topics a and b, inputs 0 to `inputs`. Every step is one access to one log, decided when
it lands by the project's own functions; a process may be slow between steps, die, have a PREPARE
land after its death, or lose a reply. Processes are one program with different flows:

    old      registers, then a transaction for each input, chained or completed in between
    new      a query without its checkpoint: begins a generation, fences, reads, plans; its sink
             takes an id, and registers with the start of the batch
    member   a consumer whose producer has its id before, and registers without a start
    replace  the same as a static member that takes another's seat under its generation
    resume   a new run of the old id, with the generation and position of its checkpoint
    copy     another id that goes on under the same generation (of the same consumer)
    reset    an operator: begins a generation, fences, then writes offset 0
    plain    commits an offset without a transaction, once no other holder can decide
    reader   asks for the stable offset, without a generation
    publisher  the same, publishes what it meets, and asks again
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.tickets_clients import Clients
from tests.model.tickets_place import Stored, Txn
from tests.model.tickets_transactions import FINISHING, UNDER_OLD, Client, P, State, Step, Turn


class Tickets(Clients):
    """The model; `expiries`: how often a row may expire. The rest as in Transactions."""

    def __init__(
        self,
        *clients: Client,
        inputs: int = 2,
        helpers: int = 1,
        expiries: int = 0,
        forgets: bool = False,
        lost: bool = True,
        seats: bool = False,
        lets_go: bool = False,
        split: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(
            clients,
            inputs=inputs,
            lost=lost,
            seats=seats,
            lets_go=lets_go,
            split=split,
            remembers=not expiries and not split,
            broken=broken,
        )
        self.shape = helpers, expiries
        self.forgets = forgets
        self.moves_offsets = any(c.mode in ("reset", "plain") for c in clients)
        self._settlings: dict[Stored, Stored] = {}

    # -- the search ------------------------------------------------------------------------------

    def initial(self) -> State:
        helpers, expiries = self.shape
        places = [
            P(
                client.steps[0],
                client.steps[1:],
                generation=1 if client.mode in UNDER_OLD else 0,
                epoch=1 if client.mode == "old" else 0,
            )
            for client in self.clients
        ]
        stored = self.place.empty()
        none: frozenset[Txn] = frozenset()
        return State(stored, 0, tuple(places), (None,) * helpers, none, none, expiries, -1)

    def steps(self, state: State) -> Iterator[Step]:
        for number, client in enumerate(self.clients):
            at = state.places[number]
            if at.pc not in ("end", "dead"):
                for label, after in self.moves(Turn(state, number, client)):
                    if after != state:
                        yield f"{client.letter} {label}", after
        for number, has in enumerate(state.helpers):
            yield from self._helper(state, number, has)
        if self.forgets:
            yield from self._forgetting(state)
        if state.expiries:
            for name in range(self.place.names):
                stored = self.place.expire(state.stored, name)
                if stored != state.stored:
                    yield (
                        f"id{name} expires",
                        state._replace(stored=stored, expiries=state.expiries - 1),
                    )

    def unsafe(self, before: State, after: State) -> str | None:
        return self._judge(after)

    def stuck(self, state: State) -> str | None:
        """Nobody waits for ever, but for a client that has prepared; and a newcomer that ended has
        processed all there is."""
        waits = any(
            row is not None and row.pending.prepared_by_client and not row.state.is_prepared
            for row in (self.place.row(state.stored, n) for n in range(self.place.names))
        )
        if not waits and any(at.pc not in ("end", "dead") for at in state.places):
            return "somebody waits for ever"
        shown = sum(txn.end - txn.first for txn in state.stored.shown[0])
        is_done = any(at.out == "done" for at in state.places)
        if is_done and shown != self.inputs and not (self.moves_offsets or self.split):
            return f"{shown} of {self.inputs} inputs are processed, and nobody is left"
        return None

    # -- what must hold --------------------------------------------------------------------------

    def _judge(self, state: State) -> str | None:
        shown = state.stored.shown
        for name, topic in zip("ab", shown, strict=True):
            if (what := self._order(name, topic)) is not None:
                return what
            if not self.moves_offsets:
                ahead = self._ahead(state.stored, topic)
                if ahead is not None:
                    return ahead
        for at, client in zip(state.places, self.clients, strict=True):
            if at.out == "stable" and at.pos < at.newest:
                return f"said stable at {at.pos}, and {at.newest} was acknowledged before"
            if client.holds and at.out == "refused":
                return "what a client had prepared was refused"
        decided = {*shown[0], *shown[1]}
        for number in range(self.place.names):
            row = self.place.row(state.stored, number)
            if row is not None and row.state.name.endswith("COMMIT") and row.pending.batches:
                decided.add(self.place.decided(row))
        if wrong := state.refused & decided:
            return f"said aborted, yet decided: {min(wrong)}"
        return self._judge_settled(state)

    def _order(self, name: str, topic: tuple[Txn, ...]) -> str | None:
        units = [unit for txn in topic for unit in range(txn.first, txn.end)]
        if len(set(units)) < len(units):
            return f"{name}: inputs twice: {units}"
        if not self.split and not self.moves_offsets and units != list(range(len(units))):
            return f"{name}: inputs skipped: {units}"
        return None

    def _ahead(self, stored: Stored, topic: tuple[Txn, ...]) -> str | None:
        units = {unit for txn in topic for unit in range(txn.first, txn.end)}
        for partition in range(self.inputs if self.split else 1):
            offset = self.place.offset(stored, partition)
            needed = {partition} if self.split else set(range(offset))
            if offset and not needed <= units:
                return f"offset {offset} moved, and the output is not there"
        return None

    def _settled(self, stored: Stored) -> Stored:
        """What is stored once all that is decided is finished."""
        if stored not in self._settlings:
            self._settlings[stored] = self._settle(stored)
        return self._settlings[stored]

    def _settle(self, stored: Stored) -> Stored:
        for _ in range(9):
            left = [n for n in range(self.place.names) if self.place.prepared(stored, n)]
            if not left:
                break
            for number in left:
                txn = self.place.prepared(stored, number)
                assert txn is not None
                for what in FINISHING:
                    stored = self.finish(stored, what, txn)
        return stored

    def _judge_settled(self, state: State) -> str | None:
        stored = self._settled(state.stored)
        if set(stored.shown[0]) != set(stored.shown[1]):
            return "torn"
        if not state.acked <= set(stored.shown[0]):
            return "acknowledged, never published"
        if (what := self._order("settled", stored.shown[0])) is not None:
            return what
        units = {unit for txn in stored.shown[0] for unit in range(txn.first, txn.end)}
        if not self.moves_offsets:
            for partition in range(self.inputs if self.split else 1):
                expected = (partition in units) if self.split else len(units)
                if self.place.offset(stored, partition) != expected:
                    return f"settled at another offset than {expected}"
        for at, client in zip(state.places, self.clients, strict=True):
            wanted = {"reset": 0, "plain": self.inputs}.get(client.mode)
            if wanted is not None and at.out == "done" and self.place.offset(stored, 0) != wanted:
                return f"set to {wanted}, then moved"
        return None

    # -- sweepers --------------------------------------------------------------------------------

    def _forgetting(self, state: State) -> Iterator[Step]:
        """A sweeper reads a group, then the row of a holder of it, and lets the group forget it."""
        if state.forgets >= 0:
            holder = self.holders[state.forgets]
            stored = self.place.forget(state.stored, holder)
            yield f"H forgets ticket {holder.ticket}", state._replace(stored=stored, forgets=-1)
            return
        for holder in self.place.group(state.stored).tickets.holders:
            if self.place.is_over(state.stored, holder):
                number = self.holders.put(holder)
                yield f"H sees ticket {holder.ticket} over", state._replace(forgets=number)

    def _helper(self, state: State, number: int, has: tuple[int, Txn] | None) -> Iterator[Step]:
        def put(value: tuple[int, Txn] | None, stored: Stored) -> State:
            helpers = (*state.helpers[:number], value, *state.helpers[number + 1 :])
            return state._replace(stored=stored, helpers=helpers)

        if has is None:
            for name in range(self.place.names):
                txn = self.place.prepared(state.stored, name)
                if txn is not None:
                    yield f"H reads {txn} decided", put((0, txn), state.stored)
            return
        at, txn = has
        stored = self.finish(state.stored, FINISHING[at], txn)
        yield f"H {FINISHING[at]} {txn}", put((at + 1, txn) if at < 3 else None, stored)
