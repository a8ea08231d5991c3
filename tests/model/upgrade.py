"""`txnlog upgrade` beside clients of both versions (R45, R47, R62), on the real decisions.

A is a process of the old version that has the old root open: it commits offsets, and a transaction
with offsets, which any process may finish once it is decided. U is the upgrade, as often as it
likes: each time it reads the root, asks `next_step`, and may then be paused, or die, before it
writes. N is a process of the new version: it opens the root when its format allows it.

One group. `truth` is what a single log would hold that had got all acknowledged writes in order:
what readers see must always equal it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from tests.model.search import Pool
from txnlog.protocol.groups import (
    Group,
    GroupOffsets,
    OffsetsCommit,
    prepare_offset_commit,
    prepare_offsets_marker,
    prepare_pending,
)
from txnlog.protocol.metadata import Holder, ProducerIdAndEpoch
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.upgrade import Copy, RootState, SealLog, Switch, next_step, rows_of_shard

NOT_SEALED = "the old log is not sealed"
SEALED_LATE = "the old log is sealed after it was copied"
SWITCHED_FIRST = "the format is set before the copy"
VERSIONS_KEPT = "rows keep the versions of the old log"
FORMAT_UNCHECKED = "the new version opens a root of any format"
ENTRIES_LEFT = "pending entries are not copied"

PRODUCER, EPOCH = 7, 3
_HOLDER = Holder(transactional_id="tx", producer_id=PRODUCER, producer_epoch=EPOCH, run_id="r")


class Log(NamedTuple):
    """A log of offsets: its group's number in the pool, the marker, its version (-1: no log)."""

    group: int = 0
    marker: int = -1
    version: int = -1


class State(NamedTuple):
    """`seen`: the version of the old log that A has read. `plan`: what U has decided and read."""

    old: Log
    new: Log = Log()
    truth: Log = Log()
    sealed: bool = False
    format: str = "1"
    seen: int = -1
    refused: bool = False
    opened: bool = False
    plan: tuple[str, Log] | None = None
    decided: bool = False
    pending: bool = False
    old_commits: int = 0
    new_commits: int = 0


class Upgrading:
    """The model; `broken` names what is done wrong."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self._broken = broken
        self._groups: Pool[Group] = Pool(_key)
        first = Group(group_id="g", generation=1)
        self._start = Log(self._groups.put(first), -1, 4)

    def initial(self) -> State:
        return State(old=self._start, truth=self._start)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._old_client(state)
        yield from self._upgrade(state)
        yield from self._new_client(state)

    # -- the old version ---------------------------------------------------------------------------

    def _old_client(self, state: State) -> Iterator[tuple[str, State]]:
        if state.refused:
            return
        if state.seen != state.old.version:
            # Its put meets another commit in the slot, and it reads that.
            refused = state.sealed
            yield "A reads the old log", state._replace(seen=state.old.version, refused=refused)
            return
        if state.sealed:
            return
        if state.old_commits < 2:
            offset = 10 + state.old_commits
            after = self._both(state, "old", self._plain(offset))
            if after is not None:
                moved = after._replace(old_commits=state.old_commits + 1)
                yield f"A commits {offset}", moved._replace(seen=moved.old.version)
        if not state.pending:
            after = self._both(state, "old", self._entry)
            if after is not None:
                yield "A adds an entry", after._replace(pending=True, seen=after.old.version)
        if state.pending and not state.decided:
            # PREPARE is in another log, which no upgrade closes.
            yield "A decides", state._replace(decided=True)
        if state.decided:
            after = self._both(state, "old", self._marker)
            if after is not None:
                yield "A finishes", after._replace(seen=after.old.version)

    # -- the upgrade -------------------------------------------------------------------------------

    def _upgrade(self, state: State) -> Iterator[tuple[str, State]]:
        if state.plan is None:
            step = self._next(state)
            if step is not None:
                yield f"U decides to {step}", state._replace(plan=(step, state.old))
            return
        yield "U dies", state._replace(plan=None)
        step, read = state.plan
        done = state._replace(plan=None)
        if step == "seal" and state.old.version == read.version:
            if NOT_SEALED not in self._broken:
                old = read._replace(version=read.version + 1)
                yield "U seals", done._replace(old=old, sealed=True)
        elif step == "copy" and state.new.version < 0:
            yield "U copies", done._replace(new=self._copied(read))
        elif step == "switch":
            yield "U switches", done._replace(format="2")

    def _next(self, state: State) -> str | None:
        copied = (0,) if state.new.version >= 0 else ()
        sealed_for = 1 if state.sealed or NOT_SEALED in self._broken else 0
        if SWITCHED_FIRST in self._broken and state.sealed and state.format == "1":
            return "switch"
        if SEALED_LATE in self._broken and state.format == "1":
            return "copy" if not copied else "seal" if not state.sealed else "switch"
        if SWITCHED_FIRST in self._broken and state.format == "2":
            return None if copied else "copy"
        match next_step(RootState(state.format, sealed_for, copied), shards=1):
            case SealLog():
                return "seal"
            case Copy():
                return "copy"
            case Switch():
                return "switch"
        return None

    def _copied(self, read: Log) -> Log:
        sealed_at = -1 if VERSIONS_KEPT in self._broken else read.version
        [group] = rows_of_shard([self._groups[read.group]], 0, shards=1, sealed_at=sealed_at)
        if ENTRIES_LEFT in self._broken:
            group = _with(group, pending=())
        return Log(self._groups.put(group), read.marker, 0)

    # -- the new version ---------------------------------------------------------------------------

    def _new_client(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.opened:
            if state.format == "2" or FORMAT_UNCHECKED in self._broken:
                yield "N opens the root", state._replace(opened=True)
            return
        if state.new.version < 0:
            # It creates the shard at its first write.
            empty = Log(self._groups.put(Group(group_id="g", generation=1)), -1, 0)
            yield "N creates the shard", state._replace(new=empty)
            return
        if state.new_commits < 2:
            offset = 20 + state.new_commits
            after = self._both(state, "new", self._plain(offset))
            if after is not None:
                yield f"N commits {offset}", after._replace(new_commits=state.new_commits + 1)
        if state.decided:
            after = self._both(state, "new", self._marker)
            if after is not None:
                yield "N finishes", after

    # -- writes, on the real decisions -------------------------------------------------------------

    def _both(
        self, state: State, where: str, decide: Callable[[Log], OffsetsCommit | Any]
    ) -> State | None:
        """The write in one log, and in `truth`; None if it changes nothing there."""
        log = self._written(getattr(state, where), decide)
        if log is None:
            return None
        truth = self._written(state.truth, decide) or state.truth
        return state._replace(truth=truth, **{where: log})

    def _written(self, log: Log, decide: Callable[[Log], OffsetsCommit | Any]) -> Log | None:
        decision = decide(log)
        if not isinstance(decision, OffsetsCommit):
            return None
        group = decision.groups[0] if decision.groups else self._groups[log.group]
        marker = decision.txns.get(PRODUCER, log.marker)
        return Log(self._groups.put(group), marker, log.version + 1)

    def _plain(self, offset: int) -> Callable[[Log], Any]:
        return lambda log: prepare_offset_commit(
            self._groups[log.group],
            group_id="g",
            generation=1,
            member_id="",
            offsets={"t": {0: offset}},
            metadata={},
            version=log.version + 1,
            now_ms=0,
        )

    def _entry(self, log: Log) -> Any:
        request = GroupOffsets(group_id="g", generation=1, start={}, end={"t": {0: 50}})
        return prepare_pending(
            {"g": self._groups[log.group]},
            {PRODUCER: log.marker},
            [request],
            holder=_HOLDER,
            version=log.version + 1,
            now_ms=0,
        )

    def _marker(self, log: Log) -> Any:
        return prepare_offsets_marker(
            {"g": self._groups[log.group]},
            {PRODUCER: log.marker},
            group_ids=("g",),
            transaction=ProducerIdAndEpoch(PRODUCER, EPOCH),
            result=TransactionResult.COMMIT,
            version=log.version + 1,
            now_ms=0,
        )

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if after.opened and after.new.version < 0 and after.format == "2":
            return "a new process finds no groups"
        if after.format == "1" and not after.opened:
            return None
        if after.format == "2" and self._shown(after.new) != self._shown(after.truth):
            return f"readers see {self._shown(after.new)}, not {self._shown(after.truth)}"
        return None

    def _shown(self, log: Log) -> Hashable:
        if log.version < 0:
            return None
        group = self._groups[log.group]
        pending = [(e.producer_id, e.txn_epoch, repr(e.offsets)) for e in group.pending]
        return repr(group.positions()), tuple(pending), log.marker

    def stuck(self, state: State) -> str | None:
        return None if state.format == "2" else "the upgrade does not end"


def _key(group: Group) -> Hashable:
    return tuple(sorted(group.to_values().items()))


def _with(group: Group, **fields: Any) -> Group:
    values = {name: getattr(group, name) for name in group.__struct_fields__}
    return Group(**{**values, **fields})
