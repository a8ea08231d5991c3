"""What each process of the model of tickets does to read for the group: see tests.model.tickets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.tickets_rules import (
    FENCE_WITHOUT_FINISH,
    FENCES_BY_OLD_READ,
    FINISHES_FIRST,
    LOOKS_ONCE,
    NO_OVERLAP_CHECK,
    OWN_UNFENCED,
    READ_UNCHECKED,
    READS_GROUP_ONCE,
    REGISTERS_BEFORE_INIT,
)
from tests.model.tickets_transactions import NAMES_START, Step, Transactions, Turn
from txnlog.protocol.tickets import MustFence


class Clients(Transactions):
    """How a process gets its id and its ticket, fences others, and learns where to read."""

    def _init(self, t: Turn) -> Iterator[Step]:
        state, number, client, at, go = t.state, t.number, t.client, t.at, t.go
        found = self.place.init(state.stored, client.id, number)
        txn = self.place.prepared(state.stored, client.id)
        if found is None and txn is not None:
            # Decided by this run, or by a former owner that it has followed.
            yield go(f"init meets {txn}", txn=txn, pc="a", flow=("init", *at.flow))
            return
        if found is None:
            # Another one has taken the id since this one owned it beside a decision.
            yield go("init refused", pc="end", out="fenced")
            return
        stored, row = found
        if row.state.is_prepared:
            # The former owner's is aborted, or was decided; this finishes it, and asks again.
            what = f"owns {txn}" if txn is not None else "aborts"
            flow = ("init", *at.flow)
            yield go(f"init {what}", stored, txn=self.place.decided(row), pc="a", flow=flow)
            return
        last = row.owner.last_batch
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

    def _bump(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        stored = self.place.bump(state.stored)
        row = self.place.group(stored)
        holders = self.place.group(state.stored).tickets.holders
        if OWN_UNFENCED in self.broken:
            own = f"id{t.client.id}"
            holders = tuple(one for one in holders if one.transactional_id != own)
        met = self._met(holders)
        generation = row.generation
        yield go(
            f"bumps to {generation}", stored, generation=generation, todo=met, **self._next(at)
        )

    def _look(self, t: Turn) -> Iterator[Step]:
        """Broken: the holders of a read before the write."""
        state, at, go = t.state, t.at, t.go
        met = self._met(self.place.group(state.stored).tickets.holders)
        yield go("reads the holders", todo=met, **self._next(at))

    def _rows(self, t: Turn) -> Iterator[Step]:
        """Broken: the rows of a read before the write."""
        names = range(self.place.names)
        absent = frozenset(n for n in names if self.place.row(t.state.stored, n) is None)
        yield t.go("reads the rows", absent=absent, **self._next(t.at))

    def _late(self, t: Turn) -> Iterator[Step]:
        """Broken: begins the generation, and fences who was registered before it looked."""
        stored = self.place.bump(t.state.stored)
        generation = self.place.group(stored).generation
        yield t.go("begins a generation", stored, generation=generation, **self._next(t.at))

    def _seat(self, t: Turn) -> Iterator[Step]:
        """A static member takes its seat: no new generation; the former one must be fenced."""
        state, number, at, go = t.state, t.number, t.at, t.go
        row = self.place.group(state.stored)
        met = self._met(row.tickets.holders)
        after = go("takes the seat", generation=row.generation, todo=met, **self._next(at))
        yield after[0], after[1]._replace(seat=number)

    def _join(self, t: Turn) -> Iterator[Step]:
        """A member of the generation that another has begun."""
        state, at, go = t.state, t.at, t.go
        row = self.place.group(state.stored)
        if row.generation != 2:
            return
        met = self._met(tuple(one for one in row.tickets.holders if one.generation < 2))
        yield go("is a member of 2", generation=2, todo=met, **self._next(at))

    def _fence(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        if not at.todo:
            yield go("has fenced all", **self._next(at))
            return
        holder = self.holders[at.todo[0]]
        name = int(holder.transactional_id[2:])
        if name in at.absent and FENCES_BY_OLD_READ in self.broken:
            fenced = at.fenced | {holder.ticket}
            yield go(f"id{name}: had no row", todo=at.todo[1:], fenced=fenced)
            return
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

    def _finishing(self, what: str, then: str, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        assert at.txn is not None
        stored = self.finish(state.stored, what, at.txn)
        if then:
            yield go(f"finishes {at.txn}: {what}", stored, pc=then)
        else:
            after = {"pc": at.flow[0], "flow": at.flow[1:]}
            yield go(f"finishes {at.txn}: {what}", stored, txn=None, **after)

    def _a(self, t: Turn) -> Iterator[Step]:
        yield from self._finishing("a", "b", t)

    def _b(self, t: Turn) -> Iterator[Step]:
        yield from self._finishing("b", "offsets", t)

    def _offsets(self, t: Turn) -> Iterator[Step]:
        yield from self._finishing("offsets", "complete", t)

    def _complete(self, t: Turn) -> Iterator[Step]:
        yield from self._finishing("complete", "", t)

    def _reg(self, t: Turn) -> Iterator[Step]:
        state, number, client, at, go = t.state, t.number, t.client, t.at, t.go
        if self.seats and state.seat != number and READ_UNCHECKED not in self.broken:
            yield go("register refused: its seat is taken", pc="end", out="stale")
            return
        fenced = at.fenced
        if LOOKS_ONCE in self.broken and fenced:
            fenced = fenced | {one.ticket for one in self.place.group(state.stored).tickets.holders}
        partitions = self._partitions(client)
        start = dict.fromkeys(partitions, 0 if self.split else at.pos)
        if client.grows:
            # It names what it reads next; what it has read is published, its COMPLETE may be left.
            partitions, start = tuple(range(at.pos + 1)), {at.pos: 0}
            fenced = fenced | {at.ticket}
        stored, found = self.place.register(
            state.stored,
            self._holder(t),
            generation=at.generation,
            partitions=partitions,
            start=start if client.mode in NAMES_START else {},
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

    def _read(self, t: Turn) -> Iterator[Step]:
        state, client, at, go = t.state, t.client, t.at, t.go
        if self._is_stale(t):
            yield go("reads: stale", pc="end", out="stale")
            return
        if client.part >= 0:
            there = self.place.offset(state.stored, client.part)
            after = {"pc": "end", "out": "done"} if there else self._next(at, client.part)
            yield go(f"reads partition {client.part}: {there}", pos=client.part, **after)
            return
        offset = self.place.offset(state.stored, 0)
        yield go(f"reads offset {offset}", pos=offset, **self._next(at, offset))

    def _set(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        if self._is_stale(t):
            yield go("set refused", pc="end", out="stale")
        else:
            stored = self.place.remove(self.place.set_offset(state.stored, 0), at.fenced)
            after = {"pc": at.flow[0], "flow": at.flow[1:]} if at.flow else {"pc": "end"}
            yield go("sets offset 0", stored, **after, out="done")

    def _plain(self, t: Turn) -> Iterator[Step]:
        """An offset beside holders: fence them, and write while no other has come."""
        state, at, go = t.state, t.at, t.go
        row = self.place.group(state.stored)
        others = tuple(one for one in row.tickets.holders if one.ticket not in at.fenced)
        if row.generation != at.generation:
            yield go("commit refused", pc="end", out="stale")
        elif others and NO_OVERLAP_CHECK not in self.broken:
            yield go("meets holders", todo=self._met(others), pc="fence", flow=("plain",))
        else:
            stored = self.place.set_offset(state.stored, self.inputs)
            yield go("commits the end", stored, pc="end", out="done")

    def _peek(self, t: Turn) -> Iterator[Step]:
        """Group, rows of its holders, group again: stable if nothing was decided or changed."""
        state, go = t.state, t.go
        row = self.place.group(state.stored)
        offset = self.place.offset(state.stored, 0)
        newest = max((txn.end for txn in state.acked), default=0)
        met = self._met(row.tickets.holders)
        yield go(
            f"sees {offset}", pc="ask", todo=met, pos=offset,
            ticket=state.stored.group, newest=newest,
        )  # fmt: skip

    def _ask(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
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

    def _ask_all(self, t: Turn) -> Iterator[Step]:
        """As `_peek`, but it publishes what it meets, and then says what the group has."""
        state, go = t.state, t.go
        newest = max((txn.end for txn in state.acked), default=0)
        met = self._met(self.place.group(state.stored).tickets.holders)
        yield go(f"meets {len(met)} holders", pc="ask_each", todo=met, newest=newest)

    def _ask_each(self, t: Turn) -> Iterator[Step]:
        state, at, go = t.state, t.at, t.go
        if not at.todo:
            offset = self.place.offset(state.stored, 0)
            yield go(f"says {offset} is stable", pos=offset, pc="end", out="stable")
            return
        name = int(self.holders[at.todo[0]].transactional_id[2:])
        txn = self.place.prepared(state.stored, name)
        if txn is None:
            yield go(f"id{name} is at rest", todo=at.todo[1:])
        else:
            yield go(f"meets {txn}", pc="ask_publishes", txn=txn)

    def _ask_publishes(self, t: Turn) -> Iterator[Step]:
        """By the row as it was read, or as it is now: once that is over, its offsets have moved."""
        state, at, go = t.state, t.at, t.go
        assert at.txn is not None
        stored = state.stored
        for what in ("a", "b", "offsets"):
            stored = self.finish(stored, what, at.txn)
        yield go(f"publishes {at.txn}", stored, pc="ask_each", todo=at.todo[1:], txn=None)
        if self.place.prepared(state.stored, at.txn.name) != at.txn:
            yield go(f"{at.txn} is over", pc="ask_each", todo=at.todo[1:], txn=None)
