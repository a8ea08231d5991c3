"""Commits in two rounds: offsets ride in PREPARE_COMMIT, and tickets refuse who no longer reads.

One group, topics a and b, inputs 0 to `inputs`. Every step is one access to one log, decided when
it lands by the project's own functions; a process may be slow between steps, die, have a PREPARE
land after its death, or lose a reply. Processes are one program with different flows:

    old      registers, then a transaction for each input, chained or completed in between
    new      a newcomer: takes its id, begins a generation and registers, fences, reads, processes
    replace  the same as a static member that takes another's seat under its generation
    resume   a new run of the old id, with the generation and position of its checkpoint
    copy     another id that goes on under the same generation (a copied checkpoint)
    reset    an operator: begins a generation, fences, then writes offset 0
    plain    commits an offset without a transaction, once no other holder can decide
    reader   asks for the stable offset, without a generation
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tests.model.search import Pool
from tests.model.tickets_place import (
    MEMBER,
    MustFence,
    Place,
    Registered,
    Stored,
    Txn,
    run_of,
)
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch
from txnlog.protocol.tickets import TicketHolder

REGISTERS_LATE = "a run registers after its first PREPARE"
CHAINS_EARLY = "a run chains before its markers have landed"
OFFSETS_FIRST = "the offsets marker comes before the topics' markers"
FENCE_WITHOUT_FINISH = "a newcomer does not finish what it fences"
FINISHES_FIRST = "a newcomer finishes what it reads decided, then raises the floor"
READ_UNCHECKED = "reading the offsets checks neither generation nor seat"
LOOKS_ONCE = "who registers looks at other holders once"
LETS_GO_ACKED = "a holder lets go once its decision is acknowledged"
LETS_GO_FLYING = "a holder lets go while its PREPARE is under way"
REGISTERS_BEFORE_INIT = "a run uses the ticket of the run before it"
READS_GROUP_ONCE = "a reader does not read the group's row again"

FLOWS = {
    "old": ("reg",),
    "new": ("init", "start", "fence", "read"),
    "replace": ("init", "seat", "fence", "reg", "read"),
    "resume": ("init", "reg"),
    "copy": ("init", "reg"),
    "reset": ("bump", "fence", "set"),
    "plain": ("plain",),
    "reader": ("peek",),
}
UNDER_OLD = ("old", "copy", "resume", "plain")
"""They begin with the generation that the checkpoint names, or that they joined long ago."""
FINISHING = ("a", "b", "offsets", "complete")


class Client(NamedTuple):
    """`letter` in traces; `id` its transactional.id; `part`: the only partition a member reads;
    `size`: inputs of one transaction."""

    letter: str
    mode: str
    id: int
    flow: tuple[str, ...] = ()
    dies: bool = False
    size: int = 9
    part: int = -1
    holds: bool = False
    eager: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        return self.flow or FLOWS[self.mode]


OLD = Client("O", "old", 0, dies=True, size=1)


class P(NamedTuple):
    """Where a process is. `todo`: holders to fence; `fenced`: tickets it has fenced and finished;
    `left`: it has seen all of its last transaction land, and left COMPLETE."""

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


Step = tuple[str, State]


class Tickets:
    """The model; `seats`: registering and reading check the static member's seat."""

    def __init__(
        self,
        *clients: Client,
        inputs: int = 2,
        helpers: int = 1,
        expiries: int = 0,
        lost: bool = True,
        seats: bool = False,
        lets_go: bool = False,
        split: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.clients = clients
        self.inputs = inputs
        self.lost = lost
        self.seats = seats
        self.lets_go = lets_go
        self.split = split
        self.broken = broken
        self.shape = helpers, expiries
        names = 1 + max(client.id for client in clients)
        self.place = Place(names, (lambda k: (k, 1)) if split else (lambda k: (0, k + 1)), broken)
        self.holders: Pool[TicketHolder] = Pool(lambda one: msgspec.json.encode(one))
        self.moves_offsets = any(c.mode in ("reset", "plain") for c in clients)

    # -- the search ------------------------------------------------------------------------------

    def initial(self) -> State:
        helpers, expiries = self.shape
        places = []
        for client in self.clients:
            flow = client.steps
            is_old = client.mode == "old"
            places.append(
                P(
                    flow[0] if flow else "prep",
                    flow[1:],
                    generation=1 if client.mode in UNDER_OLD else 0,
                    producer_id=0,
                    epoch=1 if is_old else 0,
                )
            )
        members = {"m0": MEMBER} if self.seats else {}
        stored = self.place.empty(0, members)
        none: frozenset[Txn] = frozenset()
        return State(stored, 0, tuple(places), (None,) * helpers, none, none, expiries)

    def steps(self, state: State) -> Iterator[Step]:
        for number, client in enumerate(self.clients):
            at = state.places[number]
            if at.pc not in ("end", "dead"):
                for label, after in self._client(state, number, client, at):
                    if after != state:
                        yield f"{client.letter} {label}", after
        for number, has in enumerate(state.helpers):
            yield from self._helper(state, number, has)
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
        if (
            any(at.out == "done" for at in state.places)
            and not self.moves_offsets
            and not self.split
        ):
            if shown != self.inputs:
                return f"{shown} of {self.inputs} inputs are processed, and nobody is left"
        return None

    # -- what must hold --------------------------------------------------------------------------

    def _judge(self, state: State) -> str | None:
        shown = state.stored.shown
        for name, topic in zip("ab", shown, strict=True):
            if (what := self._order(name, topic)) is not None:
                return what
            if not self.moves_offsets and OFFSETS_FIRST not in self.broken:
                ahead = self._ahead(state.stored, topic)
                if ahead is not None:
                    return ahead
        decided = {*shown[0], *shown[1]}
        for number in range(self.place.names):
            row = self.place.row(state.stored, number)
            if row is not None and row.state.name.endswith("COMMIT") and row.pending.batches:
                decided.add(self.place.decided(row))  # type: ignore[arg-type]
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

    def _judge_settled(self, state: State) -> str | None:
        stored = state.stored
        for _ in range(9):
            left = [n for n in range(self.place.names) if self.place.prepared(stored, n)]
            if not left:
                break
            for number in left:
                txn = self.place.prepared(stored, number)
                assert txn is not None
                for what in FINISHING:
                    stored = self._finish(stored, what, txn)
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

    def _finish(self, stored: Stored, what: str, txn: Txn) -> Stored:
        if what == "complete":
            return self.place.complete(stored, txn)
        if what == "offsets":
            return self.place.move_offsets(stored, txn) if txn.ticket else stored
        return self.place.mark(stored, "ab".index(what), txn)

    # -- sweepers --------------------------------------------------------------------------------

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
        stored = self._finish(state.stored, FINISHING[at], txn)
        yield f"H {FINISHING[at]} {txn}", put((at + 1, txn) if at < 3 else None, stored)

    # -- clients ---------------------------------------------------------------------------------

    def _client(self, state: State, number: int, client: Client, at: P) -> Iterator[Step]:
        def go(label: str, stored: Stored | None = None, /, **changes: Any) -> Step:
            place = at._replace(**changes)
            places = (*state.places[:number], place, *state.places[number + 1 :])
            more = {} if stored is None else {"stored": stored}
            return label, state._replace(places=places, **more)

        if client.dies and at.alive:
            if at.pc == "prep":
                yield go("dies, its PREPARE in flight", alive=False)
            places = (*state.places[:number], DEAD, *state.places[number + 1 :])
            yield "dies", state._replace(places=places)
        step = getattr(self, f"_{at.pc}")
        yield from step(state, number, client, at, go)

    def _next(self, at: P, pos: int | None = None) -> dict[str, Any]:
        """The next step of the flow; after its end, transactions while there is input."""
        if at.flow:
            return {"pc": at.flow[0], "flow": at.flow[1:]}
        is_left = (at.pos if pos is None else pos) < self.inputs
        return {"pc": "prep"} if is_left else {"pc": "end", "out": "done"}

    def _holder(self, number: int, client: Client, at: P) -> Holder:
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

    def _is_stale(self, state: State, number: int, client: Client, at: P) -> bool:
        moved = self.place.group(state.stored).group.generation != at.generation
        has_lost_seat = self.seats and state.seat != number
        return (moved or has_lost_seat) and READ_UNCHECKED not in self.broken

    def _init(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        txn = self.place.prepared(state.stored, client.id)
        if txn is not None:
            yield go(f"init meets {txn}", txn=txn, pc="a", flow=("init", *at.flow))
            return
        found = self.place.init(state.stored, client.id, number)
        if found is None:
            return
        stored, row = found
        if row.state.is_prepared:
            # It has aborted the former owner's transaction, and finishes it.
            yield go(
                "init aborts", stored, txn=self.place.decided(row), pc="a", flow=("init", *at.flow)
            )
            return
        last = row.owner.batches.get("q")
        pos = last.batch_id if client.mode == "resume" and last is not None else at.pos
        changes: dict[str, Any] = {"producer_id": row.producer_id, "epoch": row.producer_epoch}
        if REGISTERS_BEFORE_INIT in self.broken and client.mode == "resume":
            mine = [
                one.ticket
                for one in self.place.group(state.stored).tickets.holders
                if one.transactional_id == f"id{client.id}"
            ]
            if mine and at.flow[:1] == ("reg",):
                changes |= {"ticket": max(mine), "flow": at.flow[1:]}
        after = at._replace(**{k: v for k, v in changes.items() if k == "flow"})
        yield go(
            f"inits id{client.id}", stored, **{**changes, "pos": pos, **self._next(after, pos)}
        )

    def _start(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        holder = self._holder(number, client, at)
        stored, found = self.place.start(state.stored, holder, self._partitions(client))
        met = self._met(found.to_fence)
        after = go(
            f"begins generation {found.group.generation}, meets {len(met)}",
            stored,
            generation=found.group.generation,
            ticket=found.ticket,
            todo=met,
            **self._next(at),
        )
        yield after[0], after[1]._replace(seat=number)

    def _bump(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        stored = self.place.bump(state.stored)
        row = self.place.group(stored)
        met = self._met(self.place.group(state.stored).tickets.holders)
        generation = row.group.generation
        yield go(
            f"bumps to {generation}", stored, generation=generation, todo=met, **self._next(at)
        )

    def _look(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """Broken: the holders of a read before the write."""
        met = self._met(self.place.group(state.stored).tickets.holders)
        yield go("reads the holders", todo=met, **self._next(at))

    def _late(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """Broken: begins the generation, and fences who was registered before it looked."""
        stored, found = self.place.start(
            state.stored, self._holder(number, client, at), self._partitions(client)
        )
        generation = found.group.generation
        yield go(
            "begins a generation", stored,
            generation=generation, ticket=found.ticket, **self._next(at),
        )  # fmt: skip

    def _seat(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """A static member takes its seat: no new generation; the former one must be fenced."""
        row = self.place.group(state.stored)
        met = self._met(row.tickets.holders)
        after = go("takes the seat", generation=row.group.generation, todo=met, **self._next(at))
        yield after[0], after[1]._replace(seat=number)

    def _join(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """A member of the generation that another has begun."""
        row = self.place.group(state.stored)
        if row.group.generation != 2:
            return
        met = self._met(tuple(one for one in row.tickets.holders if one.generation < 2))
        yield go("is a member of 2", generation=2, todo=met, **self._next(at))

    def _fence(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        if not at.todo:
            stored = self.place.remove(state.stored, at.fenced)
            yield go("has fenced all", stored, **self._next(at))
            return
        holder = self.holders[at.todo[0]]
        name = int(holder.transactional_id[2:])
        if FINISHES_FIRST in self.broken and not at.left:
            txn = self.place.prepared(state.stored, name)
            if txn is not None:
                yield go(f"reads {txn}", txn=txn, pc="a", flow=("fence", *at.flow), left=True)
                return
        stored, is_fenced = self.place.raise_floor(state.stored, holder)
        if not is_fenced:
            return
        done = {"todo": at.todo[1:], "fenced": at.fenced | {holder.ticket}, "left": False}
        txn = self.place.prepared(stored, name)
        row = self.place.row(stored, name)
        is_its = row is not None and row.producer_id == holder.producer_id
        finishes = txn is not None and is_its
        if finishes and not self.broken & {FENCE_WITHOUT_FINISH, FINISHES_FIRST}:
            label = f"fences id{name} below {holder.ticket + 1}, meets {txn}"
            yield go(label, stored, txn=txn, pc="a", flow=("fence", *at.flow), **done)
        else:
            yield go(f"fences id{name} below {holder.ticket + 1}", stored, **done)

    def _finishing(self, what: str, then: str, state: State, at: P, go: Any) -> Iterator[Step]:
        assert at.txn is not None
        stored = self._finish(state.stored, what, at.txn)
        if then:
            yield go(f"finishes {at.txn}: {what}", stored, pc=then)
        else:
            after = {"pc": at.flow[0], "flow": at.flow[1:]}
            yield go(f"finishes {at.txn}: {what}", stored, txn=None, **after)

    def _a(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._finishing("a", "b", state, at, go)

    def _b(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._finishing("b", "offsets", state, at, go)

    def _offsets(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._finishing("offsets", "complete", state, at, go)

    def _complete(
        self, state: State, number: int, client: Client, at: P, go: Any
    ) -> Iterator[Step]:
        yield from self._finishing("complete", "", state, at, go)

    def _reg(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        if self.seats and state.seat != number and READ_UNCHECKED not in self.broken:
            if REGISTERS_LATE not in self.broken:
                yield go("register refused: its seat is taken", pc="end", out="stale")
                return
        fenced = at.fenced
        if LOOKS_ONCE in self.broken and fenced:
            fenced = fenced | {one.ticket for one in self.place.group(state.stored).tickets.holders}
        start = dict.fromkeys(self._partitions(client), 0 if self.split else at.pos)
        stored, found = self.place.register(
            state.stored,
            self._holder(number, client, at),
            generation=at.generation,
            member_id="",
            partitions=self._partitions(client),
            start=start if client.mode in UNDER_OLD else {},
            fenced=fenced,
        )
        if isinstance(found, str):
            yield go(f"register: {found}", pc="end", out="stale")
        elif isinstance(found, MustFence):
            met = self._met(found.holders)
            yield go(
                f"meets {len(met)} on its partitions", todo=met, pc="fence", flow=("reg", *at.flow)
            )
        else:
            yield go("registers", stored, ticket=found.ticket, **self._next(at))

    def _read(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        if self._is_stale(state, number, client, at):
            yield go("reads: stale", pc="end", out="stale")
            return
        if client.part >= 0:
            there = self.place.offset(state.stored, client.part)
            after = {"pc": "end", "out": "done"} if there else self._next(at, client.part)
            yield go(f"reads partition {client.part}: {there}", pos=client.part, **after)
            return
        offset = self.place.offset(state.stored, 0)
        yield go(f"reads offset {offset}", pos=offset, **self._next(at, offset))

    def _set(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        if self._is_stale(state, number, client, at):
            yield go("set refused", pc="end", out="stale")
        else:
            stored = self.place.set_offset(state.stored, 0)
            after = {"pc": at.flow[0], "flow": at.flow[1:]} if at.flow else {"pc": "end"}
            yield go("sets offset 0", stored, **after, out="done")

    def _plain(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """An offset beside holders: fence them, and write while no other has come."""
        row = self.place.group(state.stored)
        others = tuple(one for one in row.tickets.holders if one.ticket not in at.fenced)
        if row.group.generation != at.generation:
            yield go("commit refused", pc="end", out="stale")
        elif others and NO_OVERLAP not in self.broken:
            yield go("meets holders", todo=self._met(others), pc="fence", flow=("plain",))
        else:
            stored = self.place.set_offset(state.stored, self.inputs)
            yield go("commits the end", stored, pc="end", out="done")

    def _peek(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """Group, rows of its holders, group again: stable if nothing was decided or changed."""
        row = self.place.group(state.stored)
        offset = self.place.offset(state.stored, 0)
        newest = max((txn.end for txn in state.acked), default=0)
        met = self._met(row.tickets.holders)
        yield go(
            f"sees {offset}", pc="ask", todo=met, pos=offset,
            ticket=state.stored.group, epoch=newest,
        )  # fmt: skip

    def _ask(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        if at.todo:
            name = int(self.holders[at.todo[0]].transactional_id[2:])
            if self.place.prepared(state.stored, name) is not None:
                yield go("meets a decided one", pc="end", out="unstable")
            else:
                yield go(f"id{name} is at rest", todo=at.todo[1:])
        elif state.stored.group != at.ticket and READS_GROUP_ONCE not in self.broken:
            yield go("the group has moved", pc="end", out="unstable")
        else:
            yield go(f"says {at.pos} is stable", pc="end", out="stable")

    # -- transactions ----------------------------------------------------------------------------

    def _txn(self, number: int, client: Client, at: P) -> Txn:
        end = min(self.inputs, at.pos + (1 if client.part >= 0 else client.size))
        return Txn(at.producer_id, at.epoch, client.id, at.pos, end, number, at.ticket)

    def _remembers(self, client: Client) -> bool:
        """Whether it is a run of the streaming query; a row that remembers one never expires."""
        return client.mode in ("old", "resume") and not self.shape[1] and not self.split

    def _prep(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        txn = self._txn(number, client, at)
        if client.eager and at.out != "open":
            stored, error = self.place.open(state.stored, txn, at.generation)
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
            stored, error = self.place.hold(state.stored, txn, at.generation)
            if not at.alive:
                yield go(f"late prepare: {error}", stored, **DEAD._asdict())
            elif error:
                yield go(f"prepares {txn}: {error}", pc="end", out=error)
            else:
                yield go(f"prepares {txn}", stored, out="held")
            return
        follows = ProducerIdAndEpoch(at.producer_id, at.epoch - 1) if at.left else None
        stored, error = self.place.prepare(
            state.stored, txn, at.generation, follows, remembers=self._remembers(client)
        )
        if not at.alive:
            yield go(f"late PREPARE {txn}: {error}", stored, **DEAD._asdict())
            return
        if error:
            is_sure = error == "IllegalGenerationError" or not at.lost
            after = go(f"PREPARE {txn}: {error}", pc="end", out=error)[1]
            refused = after.refused | {txn} if is_sure else after.refused
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

    def _late_reg(
        self, state: State, number: int, client: Client, at: P, go: Any
    ) -> Iterator[Step]:
        stored, found = self.place.register(
            state.stored, self._holder(number, client, at), generation=at.generation,
            member_id="", partitions=self._partitions(client), start={}, fenced=frozenset(),
        )  # fmt: skip
        yield go("registers late", stored if isinstance(found, Registered) else None, pc="pub")

    def _pub(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._mark(state, client, at, go, "a", "pub_b")
        yield from self._mark(state, client, at, go, "b", "pub_a")
        if LETS_GO_ACKED in self.broken and client.mode == "old":
            yield go("lets go", self.place.remove(state.stored, frozenset({at.ticket})))

    def _pub_a(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._mark(state, client, at, go, "a", "move")

    def _pub_b(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        yield from self._mark(state, client, at, go, "b", "move")

    def _mark(
        self, state: State, client: Client, at: P, go: Any, topic: str, then: str
    ) -> Iterator[Step]:
        assert at.txn is not None
        yield go(f"marks {topic} {at.txn}", self._finish(state.stored, topic, at.txn), pc=then)

    def _move(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        assert at.txn is not None
        yield go(
            f"moves offsets {at.txn}", self._finish(state.stored, "offsets", at.txn), pc="rest"
        )

    def _rest(self, state: State, number: int, client: Client, at: P, go: Any) -> Iterator[Step]:
        """All has landed: COMPLETE now, or in one write with the next decision; or it lets go."""
        assert at.txn is not None
        if self.lets_go and client.mode == "old":
            stored = self.place.remove(state.stored, frozenset({at.ticket}))
            yield go("lets go", stored, pc="end", out="let go", txn=None)
        pos = at.txn.end
        is_over = pos >= self.inputs or client.part >= 0
        after = {"pc": "end", "out": "done"} if is_over else {"pc": "prep"}
        on = {"txn": None, "pos": pos, "epoch": at.epoch + 1, **after}
        done = self.place.complete(state.stored, at.txn)
        yield go(f"COMPLETE {at.txn}", done, **on)
        yield go("leaves COMPLETE", **on, left=True)


NO_OVERLAP = "registering under a generation does not look at other holders"
