"""`txnlog upgrade` beside clients of both versions (R45, R47, R62), on the real decisions.

A is a process of format 2 that has the root open: it commits offsets, adds an entry of its
transaction, prepares or decides that and finishes it, and creates another table P of offsets. Two
upgrades, U and V: each reads the root, asks `next_step`, and may then be paused, or die, before it
writes. N is a process of the new version: it opens the root when its format allows it, completes
what A has prepared, finishes what is decided, and commits offsets.

One group with one partition. What readers see, once what is decided is finished, must be the newest
of all acknowledged writes: an entry is one if its transaction is decided.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tests.model.search import Pool
from txnlog.protocol.group_metadata import CommittedOffset, Group
from txnlog.protocol.metadata import Manifest, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import prepare_carried_offsets
from txnlog.protocol.upgrade import (
    NEW_FORMAT,
    Carry,
    Close,
    Convert,
    Lock,
    OldGroup,
    PendingOffsets,
    RootState,
    Switch,
    converted,
    groups_named,
    next_step,
    prepare_carry,
)

NOT_LOCKED = "__cluster is not closed"
OFFSETS_OPEN = "the offsets are not closed"
STATES_OPEN = "the transaction log is not closed"
CARRIED_FIRST = "offsets are carried before the tables are closed"
CONVERTED_FIRST = "shards are converted before offsets are carried"
SWITCHED_FIRST = "the format is set first"
VERSIONS_IGNORED = "an entry overwrites what was committed after it"
PREPARED_DROPPED = "entries of a prepared transaction are dropped"
NOT_COMPARED = "a row is written whatever was written since it was read"

PRODUCER, EPOCH, ENTRY = 7, 3, 50
OFFSETS, STATES, OTHER = "O", "S", "P"


class Offsets(NamedTuple):
    """The table of the group: its row's number in the pool, the marker."""

    group: int
    marker: int = -1
    version: int = 4
    closed: bool = False


class States(NamedTuple):
    """The table of the transaction: its row's number in the pool."""

    row: int
    version: int = 2
    closed: bool = False


class Plan(NamedTuple):
    """What an upgrade has decided, and what it has read."""

    step: str
    offsets: Offsets
    states: States


class State(NamedTuple):
    """`other`: table P, "": none; `acks`: offsets in the order of their acknowledged writes."""

    offsets: Offsets
    states: States
    other: str = ""
    format: str = "2"
    locked: bool = False
    opened: bool = False
    plans: tuple[Plan | None, Plan | None] = (None, None)
    acks: tuple[int, ...] = ()
    decided: bool = False


class Upgrading:
    """The model; `broken` names what is done wrong."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self._broken = broken
        self._groups: Pool[Group] = Pool(lambda group: (type(group).__name__, repr(group)))
        self._rows: Pool[TransactionMetadata] = Pool(repr)

    def initial(self) -> State:
        row = TransactionMetadata(
            transactional_id="tx", producer_id=PRODUCER, producer_epoch=EPOCH, timeout_ms=1
        )
        group = OldGroup(group_id="g", generation=1)
        return State(Offsets(self._groups.put(group)), States(self._rows.put(row)))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._old_client(state)
        for number in (0, 1):
            yield from self._upgrade(state, number)
        yield from self._new_client(state)

    # -- the old version ---------------------------------------------------------------------------

    def _old_client(self, state: State) -> Iterator[tuple[str, State]]:
        """Its put meets the protocol of a closed table in its slot, or its next read does."""
        if not state.other and not state.locked:
            yield "A creates P", state._replace(other="open")
        offsets, states = state.offsets, state.states
        group, row = self._groups[offsets.group], self._rows[states.row]
        if not offsets.closed and isinstance(group, OldGroup):
            plain = 10 + len([offset for offset in state.acks if offset < ENTRY])
            if plain < 12:
                yield f"A commits {plain}", self._old_commit(state, group, plain)
            if ENTRY not in state.acks:
                yield "A adds an entry", self._old_entry(state, group)
            if row.state is TransactionState.PREPARE_COMMIT and offsets.marker < EPOCH:
                yield "A moves the offsets", self._old_marker(state, group)
        if states.closed or ENTRY not in state.acks:
            return
        manifest = Manifest(unknown='{"groups":["g"]}')
        if row.state is TransactionState.EMPTY and row.txn_epoch < EPOCH:
            prepared = replace(manifest, prepared_by_client=True)
            ongoing = TransactionState.ONGOING
            yield "A prepares", self._with_row(state, row, ongoing, prepared)
        if row.state in (TransactionState.EMPTY, TransactionState.ONGOING) and not state.decided:
            after = self._with_row(state, row, TransactionState.PREPARE_COMMIT, manifest)
            yield "A decides", after._replace(decided=True)
        if row.state is TransactionState.PREPARE_COMMIT and offsets.marker >= EPOCH:
            done = TransactionState.COMPLETE_COMMIT
            if not offsets.closed:
                yield "A completes", self._with_row(state, row, done, Manifest())

    def _old_commit(self, state: State, group: OldGroup, offset: int) -> State:
        known = CommittedOffset(offset, 1, state.offsets.version + 1)
        put = replace(group, offsets={"t": {0: known}})
        return self._with_group(state, put)._replace(acks=(*state.acks, offset))

    def _old_entry(self, state: State, group: OldGroup) -> State:
        entry = PendingOffsets(
            transactional_id="tx",
            producer_id=PRODUCER,
            txn_epoch=EPOCH,
            version=state.offsets.version + 1,
            generation=1,
            offsets={"t": {0: ENTRY}},
        )
        after = self._with_group(state, replace(group, pending=(entry,)))
        return after._replace(acks=(*state.acks, ENTRY))

    def _old_marker(self, state: State, group: OldGroup) -> State:
        """An offset written at a higher version than the entry stays."""
        offsets = {topic: dict(known) for topic, known in group.offsets.items()}
        for entry in group.pending:
            known = offsets.get("t", {}).get(0)
            if known is None or known.version < entry.version:
                offsets["t"] = {0: CommittedOffset(ENTRY, 1, state.offsets.version + 1)}
        after = self._with_group(state, replace(group, pending=(), offsets=offsets))
        return after._replace(offsets=after.offsets._replace(marker=EPOCH))

    def _with_group(self, state: State, group: Group) -> State:
        there = state.offsets
        put = there._replace(group=self._groups.put(group), version=there.version + 1)
        return state._replace(offsets=put)

    def _with_row(
        self,
        state: State,
        row: TransactionMetadata,
        now: TransactionState,
        manifest: Manifest,
    ) -> State:
        put = replace(row, state=now, txn_epoch=EPOCH, pending=manifest)
        version = state.states.version + 1
        there = state.states._replace(row=self._rows.put(put), version=version)
        return state._replace(states=there)

    # -- the upgrade -------------------------------------------------------------------------------

    def _upgrade(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        name, plan = "UV"[number], state.plans[number]
        if plan is None:
            step = self._next(state)
            if step is not None:
                read = Plan(step, state.offsets, state.states)
                yield f"{name} decides to {step}", _planned(state, number, read)
            return
        idle = _planned(state, number, None)
        yield f"{name} dies", idle
        yield f"{name} does {plan.step}", self._done(idle, plan)

    def _next(self, state: State) -> str | None:
        broken, offsets, states = self._broken, state.offsets, state.states
        is_open = {OFFSETS: not offsets.closed, STATES: not states.closed}
        is_open[OTHER] = state.other == "open"
        is_open[OFFSETS] &= OFFSETS_OPEN not in broken
        is_open[STATES] &= STATES_OPEN not in broken
        group, row = self._groups[offsets.group], self._rows[states.row]
        is_old = isinstance(group, OldGroup)
        root = RootState(
            format=state.format,
            is_locked=state.locked or NOT_LOCKED in broken,
            to_close=tuple(table for table, found in is_open.items() if found),
            shards=2,
            to_carry=() if groups_named(row) is None else (STATES,),
            to_convert=(*((0,) if is_old else ()), *((1,) if state.other in _OLD else ())),
        )
        if state.format == NEW_FORMAT and SWITCHED_FIRST not in broken:
            return None
        if SWITCHED_FIRST in broken and root.is_locked:
            if state.format != NEW_FORMAT:
                return "switch"
            root = root_of(root, format="2")
        if CARRIED_FIRST in broken and root.to_carry:
            return "carry"
        if CONVERTED_FIRST in broken and not root.to_close and root.to_convert:
            return f"convert {root.to_convert[0]}"
        match next_step(root, shards=2):
            case Lock():
                return "lock"
            case Close(tables):
                return f"close {tables[0]}"
            case Carry():
                return "carry"
            case Convert(numbers):
                return f"convert {numbers[0]}"
            case Switch() if state.format != NEW_FORMAT:
                return "switch"
        return None

    def _done(self, state: State, plan: Plan) -> State:
        offsets, states = state.offsets, state.states
        any_version = NOT_COMPARED in self._broken
        match plan.step:
            case "lock":
                return state._replace(locked=True)
            case "switch":
                return state._replace(format=NEW_FORMAT)
            case "close O" if not offsets.closed:
                closed = offsets._replace(closed=True, version=offsets.version + 1)
                return state._replace(offsets=closed)
            case "close S" if not states.closed:
                closed_s = states._replace(closed=True, version=states.version + 1)
                return state._replace(states=closed_s)
            case "close P" if state.other == "open":
                return state._replace(other="closed")
            case "convert 1" if state.other in _OLD:
                return state._replace(other="converted")
            case "carry" if states.version == plan.states.version or any_version:
                row = self._carried(plan)
                if row is not None:
                    put = states._replace(row=self._rows.put(row), version=states.version + 1)
                    return state._replace(states=put)
            case "convert 0" if offsets.version == plan.offsets.version or any_version:
                group = self._groups[plan.offsets.group]
                if isinstance(group, OldGroup):
                    return self._with_group(state, converted(group, [self._rows[plan.states.row]]))
        return state

    def _carried(self, plan: Plan) -> TransactionMetadata | None:
        row, group = self._rows[plan.states.row], self._groups[plan.offsets.group]
        if VERSIONS_IGNORED in self._broken:
            group = replace(group, offsets={})
        asked = row
        if PREPARED_DROPPED in self._broken and row.state is TransactionState.ONGOING:
            asked = replace(row, state=TransactionState.EMPTY)
        carried = prepare_carry(asked, lambda group_id: group)
        return None if carried is None else replace(carried, state=row.state)

    # -- the new version ---------------------------------------------------------------------------

    def _new_client(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.opened:
            if state.format == NEW_FORMAT:
                yield "N opens the root", state._replace(opened=True)
            return
        group, row = self._groups[state.offsets.group], self._rows[state.states.row]
        if isinstance(group, OldGroup):
            return
        if row.state is TransactionState.ONGOING and not state.decided:
            decided = TransactionState.PREPARE_COMMIT
            after = self._with_row(state, row, decided, row.pending)
            yield "N completes what A prepared", after._replace(decided=True)
        finished = self._finished(state)
        if finished is not None:
            yield "N finishes", finished
        elif row.state is not TransactionState.ONGOING and max(state.acks, default=0) < 60:
            # A commit finishes the holders' decided transactions first.
            known = {"t": {0: CommittedOffset(60, 1, state.offsets.version + 1)}}
            after = self._with_group(state, replace(group, offsets=known))
            yield "N commits 60", after._replace(acks=(*state.acks, 60))

    def _finished(self, state: State) -> State | None:
        """After the marker of what is decided; None if there is none to write."""
        row, group = self._rows[state.states.row], self._groups[state.offsets.group]
        if not row.moves:
            return None
        commit = prepare_carried_offsets(
            {"g": group},
            {PRODUCER: state.offsets.marker},
            row.moves,
            transaction=ProducerIdAndEpoch(PRODUCER, EPOCH),
            version=state.offsets.version + 1,
            now_ms=0,
        )
        if commit is None:
            return None
        after = self._with_group(state, commit.groups[0])
        return after._replace(offsets=after.offsets._replace(marker=EPOCH))

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if after.format != NEW_FORMAT:
            return None
        if after.other in _OLD or isinstance(self._groups[after.offsets.group], OldGroup):
            return "a table of the old form is left"
        shown = self._shown(after)
        counted = [offset for offset in after.acks if offset != ENTRY or after.decided]
        truth = counted[-1] if counted else None
        return None if shown == truth else f"readers see {shown}, not {truth}"

    def _shown(self, state: State) -> Hashable:
        finished = self._finished(state) or state
        return self._groups[finished.offsets.group].positions().get("t", {}).get(0)

    def stuck(self, state: State) -> str | None:
        return None if state.format == NEW_FORMAT else "the upgrade does not end"


_OLD = ("open", "closed")


def root_of(root: RootState, **fields: str) -> RootState:
    values = {name: getattr(root, name) for name in RootState.__dataclass_fields__}
    return RootState(**{**values, **fields})


def _planned(state: State, number: int, plan: Plan | None) -> State:
    plans = (plan, state.plans[1]) if number == 0 else (state.plans[0], plan)
    return state._replace(plans=plans)
