"""Vacuum and forgotten markers among transactions that are decided, finished, repeated or dead.

One batch write (producer id 1) stages file F for the topics A and B, decides and is finished; one
eager transaction (producer id 2) is timed out, and its row expires, while its owner sleeps. A is
looked at closely: every commit to it is a decision on some version, and a put that lands only if
that is still the newest. What is decided there is decided by the real prepare_expiry, find_old
and find_deletable.

    O  decides the batch write, and may lose the reply      H, h  two processes that finish it
    Z  owner of the eager transaction, wakes up late        T     times it out, lets it expire
    E  forgets producers in A                               V     one run of vacuum on A
    X  compaction removes F from A

Each may pause at any point, for any time. What a row said holds for one tick. Without
O the batch write is decided when everything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from txnlog.protocol.producer_expiry import ExpiryLimits, prepare_expiry
from txnlog.protocol.txn_memory import TxnMemory, producer_key
from txnlog.protocol.vacuum import BATCH_FILE, StoredFile, find_deletable, find_old

TRUST = 1
SETTLE = 2
VACUUM_AGE = 4
MARKER_AGE = 3

NO_BARRIER = "vacuum writes no barrier commits"
TABLE_FIRST = "vacuum reads the table before the manifests"
FORGET_REMOVED = "vacuum ignores tombstones"
NO_AGE_CHECK = "a commit does not check the age of the files it makes live"
FORGET_LIVING = "markers expire by their age alone"
NO_SETTLING = "markers expire as soon as that is announced"
TIME_LAST = "the time is read after the rows"
SHORT_MARKERS = "markers expire before half of the vacuum age is over"
NO_ROW_AGAIN = "a helper does not read the row again"
NO_OWNER_AGAIN = "an owner does not read its row again"

F = "part-0-f.parquet"
NONE, ONGOING, PREPARED = 0, 1, 2


class Topic(NamedTuple):
    """Topic A: `txns` are (app id, version, time), sorted."""

    version: int = 0
    live: bool = False
    removed_at: int = -1
    published: int = 0
    undecided: bool = False
    txns: tuple[tuple[str, int, int], ...] = ()


class Actor(NamedTuple):
    """How far one is, when it read the row, which version of the log it decided on, and what."""

    step: int = 0
    read_at: int = 0
    seen: int = -1
    what: tuple[Any, ...] = ()


class State(NamedTuple):
    """Rows 1 and 2, the topics, the time, and the actors."""

    now: int = 0
    row: int = NONE
    shard: int = 0
    eager_row: int = ONGOING
    a: Topic = Topic()
    b: bool = False
    deleted: bool = False
    actors: tuple[Actor, ...] = ()


class Housekeeping:
    """The model; `actors` is a string of the letters above, `ticks` how long the clock runs."""

    def __init__(
        self, actors: str, *, ticks: int = 8, broken: frozenset[str] = frozenset()
    ) -> None:
        self.actors = actors
        self._ticks = ticks
        self._broken = broken
        marker_age = 0 if SHORT_MARKERS in broken else MARKER_AGE
        self._limits = ExpiryLimits(
            marker_age_ms=marker_age,
            settle_ms=0 if broken & {NO_SETTLING, SHORT_MARKERS} else SETTLE,
            producer_id_expiration_ms=100,
        )
        reads = ["manifests", "table"]
        if TABLE_FIRST in broken:
            reads.reverse()
        barriers = [] if NO_BARRIER in broken else ["barrier A", "barrier shard"]
        self._vacuum_plan = ["list", *barriers, *reads, "delete"]
        self._run = {
            "O": self._decide, "H": self._finish, "Z": self._append, "T": self._time_out,
            "E": self._expire, "V": self._vacuum, "X": self._compact,
        }  # fmt: skip

    def initial(self) -> State:
        row = NONE if "O" in self.actors else PREPARED
        return State(row=row, actors=(Actor(),) * len(self.actors))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < self._ticks:
            yield "a tick passes", state._replace(now=state.now + 1)
        for number, name in enumerate(self.actors):
            for label, after, actor in self._run[name.upper()](state, state.actors[number]):
                actors = (*state.actors[:number], actor, *state.actors[number + 1 :])
                yield f"{name} {label}", after._replace(actors=actors)

    # -- those who write -------------------------------------------------------------------------

    def _decide(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        """The row of a batch write; `what` is not empty once a reply was lost."""
        too_old = state.now > VACUUM_AGE // 2 and NO_AGE_CHECK not in self._broken
        if me.step == 0 and state.row == NONE and not _marker(state.a, 1) and not too_old:
            yield "decides", state, me._replace(step=1, seen=state.shard)
        if me.step != 1:
            return
        if me.seen != state.shard:
            yield "meets a conflict", state, me._replace(step=0, seen=-1)
            return
        after = state._replace(row=PREPARED, shard=state.shard + 1)
        yield "puts PREPARE_COMMIT", after, Actor(step=2)
        if not me.what:
            yield "puts PREPARE_COMMIT, reply lost", after, Actor(what=("doubt",))

    def _finish(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == 0:
            if state.row == PREPARED:
                yield "reads the row", state, Actor(1, state.now)
        elif me.step == 1:
            yield self._look_at_topic(state, me)
        elif me.step == 2:
            if me.seen != state.a.version:
                yield "meets a conflict", state, me._replace(step=1, seen=-1)
                return
            topic = _put_txns(state.a, {"txnlog/1": 0}, me.what[0])
            topic = topic._replace(live=True, published=topic.published + 1)
            yield "publishes F in A", state._replace(a=topic), me._replace(step=3, seen=-1)
        elif me.step == 3:
            yield "publishes F in B", state._replace(b=True), me._replace(step=4)
        elif me.step == 4:
            after = state
            if state.row == PREPARED:
                after = state._replace(row=NONE, shard=state.shard + 1)
            yield "completes", after, Actor()

    def _look_at_topic(self, state: State, me: Actor) -> tuple[str, State, Actor]:
        if state.now - me.read_at > TRUST and NO_ROW_AGAIN not in self._broken:
            if state.row != PREPARED:
                return "finds the row gone", state, Actor()
            return "reads the row again", state, me._replace(read_at=state.now)
        if _marker(state.a, 1):
            return "finds the marker", state, me._replace(step=3)
        seen = me._replace(step=2, seen=state.a.version, what=(state.now,))
        return "finds no marker", state, seen

    def _append(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == 0:
            if state.now - me.read_at > TRUST and NO_OWNER_AGAIN not in self._broken:
                if state.eager_row != ONGOING:
                    yield "finds itself fenced", state, Actor(2)
                else:
                    yield "reads its row again", state, me._replace(read_at=state.now)
            elif _marker(state.a, 2):
                yield "finds the marker", state, Actor(2)
            else:
                yield "finds no marker", state, me._replace(step=1, seen=state.a.version)
        elif me.step == 1:
            if me.seen != state.a.version:
                yield "meets a conflict", state, me._replace(step=0, seen=-1)
                return
            topic = state.a._replace(undecided=True, version=state.a.version + 1)
            yield "appends", state._replace(a=topic), Actor(2)

    def _time_out(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == 0:
            yield "times out", state._replace(eager_row=PREPARED), Actor(1)
        elif me.step == 1:
            topic = _put_txns(state.a, {"txnlog/2": 0}, state.now)._replace(undecided=False)
            yield "settles A", state._replace(a=topic), Actor(2)
        elif me.step == 2:
            yield "expires the row", state._replace(eager_row=NONE), Actor(3)

    def _compact(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == 0 and state.a.live:
            version = state.a.version + 1
            topic = state.a._replace(live=False, removed_at=state.now, version=version)
            yield "removes F", state._replace(a=topic), Actor(1)

    # -- those who clean -------------------------------------------------------------------------

    def _expire(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == 0:
            living = set()
            if FORGET_LIVING not in self._broken:
                living = {1} if state.row != NONE else set()
                living |= {2} if state.eager_row != NONE else set()
            # Earlier only where a row comes later: too much would be left to see.
            if state.a.txns or "O" in self.actors:
                yield "reads the rows", state, Actor(1, state.now, what=tuple(sorted(living)))
        elif me.step == 1:
            memory = TxnMemory()
            for app_id, version, at in sorted(state.a.txns, key=lambda txn: -len(txn[0])):
                memory.set_txn(app_id, version, at)
            living = set(me.what) | ({2} if state.a.undecided else set())
            now = state.now if TIME_LAST in self._broken else me.read_at
            txns = prepare_expiry(memory, living=living, now_ms=now, limits=self._limits)
            if txns is None:
                yield "finds nothing to forget", state, Actor()
            else:
                decided = Actor(2, state.now, state.a.version, tuple(txns.items()))
                yield "decides what to forget", state, decided
        elif me.step == 2:
            if me.seen != state.a.version:
                yield "meets a conflict", state, Actor()
                return
            topic = _put_txns(state.a, dict(me.what), me.read_at)
            yield "forgets", state._replace(a=topic), Actor()

    def _vacuum(self, state: State, me: Actor) -> Iterator[tuple[str, State, Actor]]:
        if me.step == len(self._vacuum_plan):
            return
        what = self._vacuum_plan[me.step]
        named = me.what
        after = state
        if what == "list":
            if not _old(state.now):
                return
            me = me._replace(read_at=state.now)
        elif what == "barrier A":
            after = state._replace(a=state.a._replace(version=state.a.version + 1))
        elif what == "barrier shard":
            after = state._replace(shard=state.shard + 1)
        elif what == "manifests":
            named = (*named, "named") if state.row == PREPARED else named
        elif what == "table":
            named = (*named, "live") if state.a.live else named
            if state.a.removed_at >= 0 and FORGET_REMOVED not in self._broken:
                named = (*named, state.a.removed_at)
        else:
            times = [at for at in named if isinstance(at, int)]
            doomed = find_deletable(
                _old(me.read_at),
                table="a",
                live={F} if "live" in named else set(),
                named={F} if "named" in named else set(),
                removed_ms=dict.fromkeys((F,), *times) if times else {},
                now_ms=me.read_at,
                age_ms=VACUUM_AGE,
            )
            after = state._replace(deleted=bool(doomed))
        yield what, after, me._replace(step=me.step + 1, what=named)

    # -- what must hold --------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        topic = after.a
        if topic.published > 1:
            return "F is published twice"
        if topic.undecided and after.eager_row == NONE:
            return "an undecided batch that no process will settle"
        if not after.deleted:
            return None
        if topic.live or (after.row == PREPARED and not topic.published):
            return "vacuum took F, which a log or a manifest names"
        is_young = topic.removed_at >= 0 and after.now - topic.removed_at < VACUUM_AGE
        if not before.deleted and is_young:
            return "vacuum took F, which a reader of an older version may still open"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _old(now: int) -> list[StoredFile]:
    return find_old([StoredFile(F, 1, 0)], BATCH_FILE, now_ms=now, age_ms=VACUUM_AGE)


def _marker(topic: Topic, producer_id: int) -> bool:
    return any(app_id == f"txnlog/{producer_id}" for app_id, _, _ in topic.txns)


def _put_txns(topic: Topic, txns: dict[str, int], at: int) -> Topic:
    """A commit with these actions, taken in as the log's memory does."""
    memory = TxnMemory()
    known = {app_id: (version, time) for app_id, version, time in topic.txns}
    horizons = {app_id: value for app_id, value in known.items() if producer_key(app_id) is None}
    for app_id, (version, time) in [*horizons.items(), *known.items()]:
        memory.set_txn(app_id, version, time)
    for app_id, version in txns.items():
        memory.set_txn(app_id, version, at)
        if producer_key(app_id) is None:
            horizons[app_id] = (version, at)
    times = memory.markers.updated_ms
    markers = [(f"txnlog/{key}", version, times[key]) for key, version in memory.markers.items()]
    rest = [(app_id, *value) for app_id, value in horizons.items()]
    return topic._replace(version=topic.version + 1, txns=tuple(sorted([*markers, *rest])))
