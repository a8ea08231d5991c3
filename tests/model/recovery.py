"""Finishing and fencing what others left, as steps of any process, and a recovery run to its end.

`Recovery.steps` mirrors finishing.finish, coordinator.fence_holders and the look of groups.fetch,
one commit (or one read of a row) at a time, with what was read before possibly out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.model.rules import FETCH_FENCES_NOBODY, FETCHES_ONCE, FORGETS_BY_OLD_ROW
from tests.model.values import Stored
from tests.model.world import World
from txnlog.errors import TxnLogError
from txnlog.protocol.groups import prepare_fetch
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import held_by_others, holders_met, is_over

Pc = tuple[Any, ...]
"""Where a process stands: a name and what it remembers. ("dead",) does nothing more."""

DEAD: Pc = ("dead",)
_ROUNDS_MAX = 100


def fencing(holders: Sequence[int], back: Pc) -> Pc:
    """The way through fencing these holders, one after the other."""
    return ("fence", tuple(holders), back) if holders else back


def settling(holders: Sequence[int], back: Pc) -> Pc:
    """The way through finishing what these holders have decided, without fencing them."""
    return ("settle", tuple(holders), back) if holders else back


class Recovery:
    """What any process may do about a decided transaction, or a holder of `group_id`."""

    NAMES = frozenset({"fin", "fence", "settle", "old row", "holder", "forget"})

    def __init__(self, world: World, group_id: str) -> None:
        self.world = world
        self.group_id = group_id
        self._recovered: dict[Stored, Stored] = {}

    def meet_prepared(self, stored: Stored, which: int, back: Pc) -> Pc | None:
        """The way through finishing the row's decided transaction, None if there is none."""
        row = self.world.row(stored, which)
        if row is None or not row.state.is_prepared:
            return None
        return ("fin", which, stored.rows[which], 0, back)

    def steps(self, stored: Stored, pc: Pc) -> Iterator[tuple[str, Stored, Pc]]:
        """(label, store, place after it) for a process at one of NAMES."""
        if pc[0] == "fin":
            _, which, number, at, back = pc
            what, wrote, last = self.world.finish(stored, which, number, at)
            row = self.world.rows[number]
            assert row is not None
            after = back if last else ("fin", which, number, at + 1, back)
            assert not wrote.error, wrote.error
            yield f"{what} of {row.transactional_id} e{row.txn_epoch}", wrote.stored, after
        elif pc[0] == "fence":
            yield from self._fence(stored, pc[1], pc[2])
        elif pc[0] == "settle":
            yield from self._settle(stored, pc[1], pc[2])
        else:
            yield from self._forget(stored, pc)

    def _fence(
        self, stored: Stored, holders: Sequence[int], back: Pc
    ) -> Iterator[tuple[str, Stored, Pc]]:
        wrote = self.world.raise_floor(stored, self.group_id, holders[0])
        if wrote.error:
            # Its client has prepared: it must end that one first.
            return
        after = fencing(holders[1:], back)
        met = self.meet_prepared(wrote.stored, self._which(holders[0]), after)
        yield f"fences {self.describe(holders[0])}", wrote.stored, met or after

    def _settle(
        self, stored: Stored, holders: Sequence[int], back: Pc
    ) -> Iterator[tuple[str, Stored, Pc]]:
        held = self.world.holders[holders[0]]
        which = self._which(holders[0])
        row = self.world.row(stored, which)
        after = settling(holders[1:], back)
        if row is not None and row.producer_id == held.producer_id and row.pending.tickets:
            if row.state.is_prepared:
                yield (
                    "finds the holder decided",
                    stored,
                    ("fin", which, stored.rows[which], 0, after),
                )
                return
            if row.state is TransactionState.ONGOING:
                return
        yield f"finds {self.describe(holders[0])} at rest", stored, after

    def _which(self, number: int) -> int:
        return self.world.ids.index(self.world.holders[number].transactional_id)

    def describe(self, number: int) -> str:
        held = self.world.holders[number]
        return f"{held.transactional_id} ticket {held.ticket}"

    # -- a reader --------------------------------------------------------------------------------

    def fetch(
        self, stored: Stored, pc: Pc, generation: int | None, member_id: str = ""
    ) -> tuple[str, Pc] | int:
        """groups.fetch: an error or a longer way (label, place), or the committed position.

        `pc` is ("fetch", *rest, tickets), to which it comes again after the holders were fenced or
        finished: `tickets` are those it knows then, None at first.
        """
        group = self.world.group(stored, self.group_id)
        try:
            positions = prepare_fetch(
                group, group_id=self.group_id, generation=generation, member_id=member_id
            )
        except TxnLogError as error:
            return type(error).__name__, DEAD
        met = holders_met(group, None)
        if FETCHES_ONCE in self.world.broken and met and pc[-1] is None:
            return self._meet(stored, pc, met, generation, member_id, self.position(stored))
        if isinstance(pc[-1], int):
            return pc[-1]
        known = pc[-1] or ()
        if not all(one.ticket in known for one in met):
            tickets = tuple(one.ticket for one in met)
            return self._meet(stored, pc, met, generation, member_id, tickets)
        return next(iter(next(iter(positions.values()), {}).values()), 0)

    def _meet(
        self,
        stored: Stored,
        pc: Pc,
        met: Any,
        generation: int | None,
        member_id: str,
        memory: Any,
    ) -> tuple[str, Pc]:
        group = self.world.group(stored, self.group_id)
        others = held_by_others(group, met, generation=generation, member_id=member_id)
        own = [one for one in met if one not in others]
        if FETCH_FENCES_NOBODY in self.world.broken:
            others = []
        put = self.world.put_holders
        back = settling(put(own), fencing(put(others), (*pc[:-1], memory)))
        return f"meets {len(met)} holders", back

    def position(self, stored: Stored) -> int:
        group = self.world.group(stored, self.group_id)
        found = {} if group is None else group.positions()
        return next(iter(next(iter(found.values()), {}).values()), 0)

    # -- a sweeper that forgets ------------------------------------------------------------------

    def look_at_holders(self, stored: Stored) -> Iterator[tuple[str, Stored, Pc]]:
        """The first step of letting the group forget a holder."""
        if FORGETS_BY_OLD_ROW in self.world.broken:
            for which in range(len(self.world.ids)):
                yield f"reads row {which}", stored, ("old row", which, stored.rows[which])
            return
        for number in self._holders(stored):
            yield f"sees {self.describe(number)}", stored, ("holder", number)

    def _holders(self, stored: Stored) -> tuple[int, ...]:
        group = self.world.group(stored, self.group_id)
        return () if group is None else self.world.put_holders(group.tickets.holders)

    def _forget(self, stored: Stored, pc: Pc) -> Iterator[tuple[str, Stored, Pc]]:
        if pc[0] == "old row":
            for number in self._holders(stored):
                over = is_over(self.world.rows[pc[2]], self.group_id, self.world.holders[number])
                if self._which(number) == pc[1] and over:
                    yield f"takes {self.describe(number)} for over", stored, ("forget", number)
        elif pc[0] == "holder":
            row = self.world.row(stored, self._which(pc[1]))
            over = is_over(row, self.group_id, self.world.holders[pc[1]])
            label = f"finds {self.describe(pc[1])} {'over' if over else 'alive'}"
            yield label, stored, ("forget", pc[1]) if over else DEAD
        else:
            wrote = self.world.forget(stored, self.group_id, pc[1])
            yield f"forgets {self.describe(pc[1])}", wrote.stored, DEAD

    # -- everything stops, and the sweeper runs alone ----------------------------------------------

    def recovered(self, stored: Stored) -> Stored:
        """The store after housekeeping has done all there is to do, and no other process anything.

        It forgets no holder: that changes nothing for readers.
        """
        known = self._recovered.get(stored)
        if known is None:
            known = stored
            for _ in range(_ROUNDS_MAX):
                after = self._sweep_once(known)
                if after is None:
                    break
                known = after
            else:
                raise AssertionError("the sweeper never comes to an end")
            self._recovered[stored] = known
        return known

    def _sweep_once(self, stored: Stored) -> Stored | None:
        for which in range(len(self.world.ids)):
            row = self.world.row(stored, which)
            if row is None:
                continue
            met = self.meet_prepared(stored, which, DEAD)
            if met is not None:
                return self._run(stored, met)
            if row.state is TransactionState.ONGOING:
                after = self.world.time_out(stored, which, row.producer_id, row.txn_epoch).stored
                if after != stored:
                    return after
        return None

    def _run(self, stored: Stored, pc: Pc) -> Stored:
        while pc != DEAD:
            _, stored, pc = next(iter(self.steps(stored, pc)))
        return stored
