"""The transactions of a process of the model of tickets, and where a process is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tests.model.search import Pool
from tests.model.tickets_place import Place, Stored, Txn, run_of
from tests.model.tickets_rules import (
    CHAINS_EARLY,
    LETS_GO_ACKED,
    LETS_GO_FLYING,
    OFFSETS_FIRST,
    READ_UNCHECKED,
    REGISTERS_LATE,
)
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch
from txnlog.protocol.tickets import Registered

FLOWS = {
    "old": ("reg",),
    "new": ("bump", "fence", "read", "init", "reg"),
    "member": ("init", "bump", "fence", "read", "reg"),
    "replace": ("init", "seat", "fence", "read", "reg"),
    "resume": ("init", "reg"),
    "copy": ("init", "reg"),
    "reset": ("bump", "fence", "set"),
    "plain": ("plain",),
    "reader": ("peek",),
    "publisher": ("ask_all",),
}
UNDER_OLD = ("old", "copy", "resume", "plain")
"""They begin with the generation that the checkpoint names, or that they joined long ago."""
NAMES_START = (*UNDER_OLD, "new")
"""Queries: they register with the start of their batch. A producer names none."""
FINISHING = ("a", "b", "offsets", "complete")


class Client(NamedTuple):
    """`letter` in traces; `id` its transactional.id; `part`: the only partition a member reads;
    `size`: inputs of one transaction; `again`: once it has decided, it may register for the second
    partition only; `grows`: it registers for the first one, and for both before it commits the
    second."""

    letter: str
    mode: str
    id: int
    flow: tuple[str, ...] = ()
    dies: bool = False
    size: int = 9
    part: int = -1
    holds: bool = False
    eager: bool = False
    again: bool = False
    grows: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        return self.flow or FLOWS[self.mode]


OLD = Client("O", "old", 0, dies=True, size=1)


class P(NamedTuple):
    """Where a process is. `todo`: holders to fence; `fenced`: tickets it has fenced and finished;
    `left`: it has seen its last transaction land, and left COMPLETE; `newest`: the highest offset
    that was acknowledged when a reader began; `absent`: ids whose rows it found missing."""

    pc: str
    flow: tuple[str, ...] = ()
    generation: int = 0
    ticket: int = 0
    todo: tuple[int, ...] = ()
    fenced: frozenset[int] = frozenset()
    txn: Txn | None = None
    pos: int = 0
    producer_id: int = 0
    epoch: int = 0
    lost: bool = False
    alive: bool = True
    left: bool = False
    newest: int = 0
    absent: frozenset[int] = frozenset()
    out: str = ""


DEAD = P("dead")


class State(NamedTuple):
    stored: Stored
    seat: int
    places: tuple[P, ...]
    helpers: tuple[tuple[int, Txn] | None, ...]
    acked: frozenset[Txn]
    refused: frozenset[Txn]
    expiries: int
    forgets: int


Step = tuple[str, State]


class Turn(NamedTuple):
    """One process in one state."""

    state: State
    number: int
    client: Client

    @property
    def at(self) -> P:
        return self.state.places[self.number]

    def go(self, label: str, stored: Stored | None = None, /, **changes: Any) -> Step:
        """The step to a changed place, and perhaps to a changed store."""
        place = self.at._replace(**changes)
        before, after = self.state.places[: self.number], self.state.places[self.number + 1 :]
        more = {} if stored is None else {"stored": stored}
        return label, self.state._replace(places=(*before, place, *after), **more)


class Transactions:
    """What all processes do once they have a ticket.

    `seats`: registering and reading check a static member's seat; `lets_go`: the old run may end
    its registration when it is at rest; `split`: each input has a partition of its own;
    `remembers`: the query's batches are in the row, which then never expires.
    """

    def __init__(
        self,
        clients: tuple[Client, ...],
        *,
        inputs: int,
        lost: bool,
        seats: bool,
        lets_go: bool,
        split: bool,
        remembers: bool,
        broken: frozenset[str],
    ) -> None:
        self.clients = clients
        self.inputs = inputs
        self.lost = lost
        self.seats = seats
        self.lets_go = lets_go
        self.split = split
        self.remembers = remembers
        self.broken = broken
        names = 1 + max(client.id for client in clients)
        self.place = Place(names, (lambda k: (k, 1)) if split else (lambda k: (0, k + 1)), broken)
        self.holders: Pool[TicketHolder] = Pool(lambda one: msgspec.json.encode(one))

    def finish(self, stored: Stored, what: str, txn: Txn) -> Stored:
        """One step of finishing a decided transaction, whoever does it."""
        if what == "complete":
            return self.place.complete(stored, txn)
        if what == "offsets":
            return self.place.move_offsets(stored, txn)
        return self.place.mark(stored, "ab".index(what), txn)

    def moves(self, t: Turn) -> Iterator[Step]:
        """All that one process may do next."""
        at = t.at
        if t.client.dies and at.alive:
            if at.pc == "prep":
                yield t.go("dies, its PREPARE in flight", alive=False)
            yield t.go("dies", **DEAD._asdict())
        yield from getattr(self, f"_{at.pc}")(t)

    def _next(self, at: P, pos: int | None = None) -> dict[str, Any]:
        """The next step of the flow; after its end, transactions while there is input."""
        if at.flow:
            return {"pc": at.flow[0], "flow": at.flow[1:]}
        is_left = (at.pos if pos is None else pos) < self.inputs
        return {"pc": "prep"} if is_left else {"pc": "end", "out": "done"}

    def _holder(self, t: Turn) -> Holder:
        number, client, at = t.number, t.client, t.at
        return Holder(
            transactional_id=f"id{client.id}",
            producer_id=at.producer_id,
            producer_epoch=at.epoch,
            run_id=run_of(number),
        )

    def _partitions(self, client: Client) -> tuple[int, ...]:
        if not self.split:
            return (0,)
        return (client.part,) if client.part >= 0 else tuple(range(self.inputs))

    def _met(self, holders: tuple[TicketHolder, ...]) -> tuple[int, ...]:
        return tuple(self.holders.put(one) for one in holders)

    def _is_stale(self, t: Turn) -> bool:
        state, number, at = t.state, t.number, t.at
        moved = self.place.group(state.stored).generation != at.generation
        has_lost_seat = self.seats and state.seat != number
        return (moved or has_lost_seat) and READ_UNCHECKED not in self.broken

    # -- transactions ----------------------------------------------------------------------------

    def _txn(self, t: Turn) -> Txn:
        number, client, at = t.number, t.client, t.at
        end = min(self.inputs, at.pos + (1 if client.part >= 0 else client.size))
        return Txn(
            at.producer_id, at.epoch, client.id, at.pos, end, number, at.ticket, at.generation
        )

    def _prep(self, t: Turn) -> Iterator[Step]:
        state, client, at, go = t.state, t.client, t.at, t.go
        txn = self._txn(t)
        if client.eager and at.out != "open":
            stored, error = self.place.open(state.stored, txn)
            if error or not at.alive:
                yield go(
                    f"sends offsets: {error}", stored, pc="end" if at.alive else "dead", out=error
                )
            else:
                yield go("sends offsets", stored, out="open")
            return
        if LETS_GO_FLYING in self.broken and client.mode == "old" and at.ticket:
            yield go("lets go", self.place.remove(state.stored, frozenset({at.ticket})))
        if client.holds and at.out != "held":
            stored, error = self.place.hold(state.stored, txn)
            if not at.alive:
                yield go(f"late prepare: {error}", stored, **DEAD._asdict())
            elif error:
                yield go(f"prepares {txn}: {error}", pc="end", out=error)
            else:
                yield go(f"prepares {txn}", stored, out="held")
            return
        follows = ProducerIdAndEpoch(at.producer_id, at.epoch - 1) if at.left else None
        stored, error = self.place.prepare(
            state.stored,
            txn,
            follows,
            remembers=self.remembers and client.mode in ("old", "resume"),
        )
        if not at.alive:
            yield go(f"late PREPARE {txn}: {error}", stored, **DEAD._asdict())
            return
        if error:
            is_sure = error == "IllegalGenerationError" or not at.lost
            after = go(f"PREPARE {txn}: {error}", pc="end", out=error)[1]
            refused = after.refused | {txn} if is_sure else after.refused
            if at.out == "held":
                yield go(f"PREPARE {txn}: {error}", pc="end", out="refused")
                return
            yield f"PREPARE {txn}: {error}", after._replace(refused=refused)
            return
        late = REGISTERS_LATE in self.broken and client.mode == "old" and not at.ticket
        label, after = go(
            f"PREPARE {txn}", stored,
            pc="late_reg" if late else "pub", txn=txn, lost=False, left=False, out="",
        )  # fmt: skip
        yield label, after._replace(acked=after.acked | {txn})
        if CHAINS_EARLY in self.broken and client.mode == "old" and txn.end < self.inputs:
            label, after = go(
                f"PREPARE {txn}, goes on", stored, pos=txn.end, epoch=at.epoch + 1, left=True
            )
            yield label, after._replace(acked=after.acked | {txn})
        if self.lost and client.dies and not at.lost:
            yield go(f"PREPARE {txn}, reply lost", stored, lost=True)

    def _late_reg(self, t: Turn) -> Iterator[Step]:
        state, client, at, go = t.state, t.client, t.at, t.go
        stored, found = self.place.register(
            state.stored, self._holder(t), generation=at.generation,
            partitions=self._partitions(client), start={}, fenced=frozenset(),
        )  # fmt: skip
        yield go("registers late", stored if isinstance(found, Registered) else None, pc="pub")

    def _pub(self, t: Turn) -> Iterator[Step]:
        state, client, at, go = t.state, t.client, t.at, t.go
        yield from self._mark(t, "a", "pub_b")
        yield from self._mark(t, "b", "pub_a")
        if client.again:
            stored, _ = self.place.register(
                state.stored, self._holder(t), generation=at.generation,
                partitions=(1,), start={}, fenced=frozenset(),
            )  # fmt: skip
            yield go("registers again, for less", stored, **DEAD._asdict())
        if OFFSETS_FIRST in self.broken and at.txn is not None:
            yield go(f"moves offsets {at.txn}", self.finish(state.stored, "offsets", at.txn))
        if LETS_GO_ACKED in self.broken and client.mode == "old":
            yield go("lets go", self.place.remove(state.stored, frozenset({at.ticket})))

    def _pub_a(self, t: Turn) -> Iterator[Step]:
        yield from self._mark(t, "a", "move")

    def _pub_b(self, t: Turn) -> Iterator[Step]:
        yield from self._mark(t, "b", "move")

    def _mark(self, t: Turn, topic: str, then: str) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        assert at.txn is not None
        yield go(f"marks {topic} {at.txn}", self.finish(state.stored, topic, at.txn), pc=then)

    def _move(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        assert at.txn is not None
        yield go(f"moves offsets {at.txn}", self.finish(state.stored, "offsets", at.txn), pc="rest")

    def _rest(self, t: Turn) -> Iterator[Step]:
        """All has landed: COMPLETE now, or in one write with the next decision; or it lets go."""
        state, client, at, go = t.state, t.client, t.at, t.go
        assert at.txn is not None
        if self.lets_go and client.mode == "old":
            stored = self.place.remove(state.stored, frozenset({at.ticket}))
            yield go("lets go", stored, pc="end", out="let go", txn=None)
        pos = at.txn.end
        is_over = pos >= self.inputs or client.part >= 0
        after = {"pc": "end", "out": "done"} if is_over else {"pc": "prep"}
        if client.grows and not is_over:
            after = {"pc": "reg"}
        on = {"txn": None, "pos": pos, "epoch": at.epoch + 1, **after}
        done = self.place.complete(state.stored, at.txn)
        yield go(f"COMPLETE {at.txn}", done, **on)
        yield go("leaves COMPLETE", **on, left=True)
