"""Finishing and settling what others left, as steps of any process, and a recovery run to its end.

`Recovery.steps` mirrors coordinator.finish, coordinator.fence and groups.settle, one commit (or
one read of a row) at a time, with what was read before possibly out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.rules import CLEAR_WITHOUT_FENCE, FENCE_BREAKS_PROMISE
from tests.model.values import (
    Stored,
    Wrote,
)
from tests.model.world import World
from txnlog.protocol.states import TransactionState

Pc = tuple[Any, ...]
"""Where a process stands: a name and what it remembers. ("dead",) does nothing more."""

DEAD: Pc = ("dead",)
_ROUNDS_MAX = 100


class Recovery:
    """What any process may do about a decided transaction or a pending entry of `group_id`."""

    NAMES = frozenset({"fin", "settle", "fence", "clear"})

    def __init__(self, world: World, group_id: str) -> None:
        self.world = world
        self.group_id = group_id
        self._recovered: dict[tuple[Stored, bool], Stored] = {}

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
        elif pc[0] == "settle":
            yield from self._look(stored, pc[1], pc[2])
        elif pc[0] == "fence":
            _, which, entry, back = pc
            met = self.meet_prepared(stored, which, ("settle", entry, back))
            if met is not None:
                yield "meets PREPARE when fencing", stored, met
                return
            wrote = self._fence(stored, which, entry)
            met = self.meet_prepared(wrote.stored, which, ("settle", entry, back))
            yield "fences the holder", wrote.stored, met or ("settle", entry, back)
        elif pc[0] == "clear":
            wrote = self.world.clear(stored, self.group_id, pc[1])
            yield f"clears the entry {self.describe(pc[1])}", wrote.stored, pc[2]

    def _fence(self, stored: Stored, which: int, entry: int) -> Wrote:
        held = self.world.entries[entry]
        spare = FENCE_BREAKS_PROMISE not in self.world.broken
        return self.world.fence(stored, which, held.txn_epoch, spare_two_phase=spare)

    def _look(self, stored: Stored, entry: int, back: Pc) -> Iterator[tuple[str, Stored, Pc]]:
        """groups.settle: read the holder's row, and choose the one thing that is allowed."""
        held = self.world.entries[entry]
        which = self.world.ids.index(held.transactional_id)
        row = self.world.row(stored, which)
        if CLEAR_WITHOUT_FENCE in self.world.broken and not (row and row.state.is_prepared):
            yield "reads the holder", stored, ("clear", entry, back)
            return
        if row is not None and row.producer_id == held.producer_id:
            if row.state.is_prepared and row.txn_epoch >= held.txn_epoch:
                number = stored.rows[which]
                yield "finds the holder decided", stored, ("fin", which, number, 0, back)
                return
            waiting = row.state is TransactionState.ONGOING and row.pending.prepared_by_client
            if waiting:
                return
            if row.producer_epoch <= held.txn_epoch:
                yield "finds the holder able to decide", stored, ("fence", which, entry, back)
                return
        yield "finds the holder past the entry", stored, ("clear", entry, back)

    def describe(self, entry: int) -> str:
        held = self.world.entries[entry]
        return f"{held.transactional_id} e{held.txn_epoch}"

    # -- everything stops, and the sweeper runs alone ----------------------------------------------

    def recovered(self, stored: Stored, *, entries: bool = True) -> Stored:
        """The store after housekeeping has done all there is to do, and no other process anything.

        `entries=False`: it reads the shards only, not at entries that hang in group rows.
        """
        key = (stored, entries)
        known = self._recovered.get(key)
        if known is None:
            known = stored
            for _ in range(_ROUNDS_MAX):
                after = self._sweep_once(known, entries)
                if after is None:
                    break
                known = after
            else:
                raise AssertionError("the sweeper never comes to an end")
            self._recovered[key] = known
        return known

    def _sweep_once(self, stored: Stored, entries: bool) -> Stored | None:
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
        group = self.world.group(stored, self.group_id)
        for held in group.pending if entries and group is not None else ():
            after = self._run(stored, ("settle", self.world.entries.put(held), DEAD))
            if after != stored:
                return after
        return None

    def _run(self, stored: Stored, pc: Pc) -> Stored:
        while pc != DEAD:
            step = next(iter(self.steps(stored, pc)), None)
            if step is None:
                return stored
            _, stored, pc = step
        return stored
