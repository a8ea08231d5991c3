"""Version slots, clean-up and checkpoints (R62, R63, R70), on the real log and checkpoint code.

W writes one commit once, whatever happens, and says when it knows that it landed, or did not; V is
a second writer like it, S one that has read the log a moment ago, T one that did so long ago. L
makes a commit whose place it proves later, and then one as W does; M reads the log in between. R
tails the log and returns what it has read. O is all other processes: it commits at the true head. C
checkpoints and K cleans up, both with the code of storage.delta, K deleting file by file. Each may
be paused for any time at any point. What was read is trusted for one tick; clean-up keeps log files
for two.

In a dated world the store refuses requests whose date is more than `skew` ticks from its own time,
and clean-up keeps log files for two ticks and twice that. The guest's wall clock stands still, too,
until it is set: to the store's time, or `skew` ticks beside it (D129).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from tests.model.broken_logs import prove_by_a_late_look, prove_by_absence, trust_denials
from tests.model.replay import (
    CREATED,
    LOST,
    TABLE,
    Content,
    Pause,
    Process,
    ReplayStore,
    Reply,
    Request,
    Round,
    path_of,
    slot,
)
from txnlog.storage.delta.actions import Commit, Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, Conflict, DeltaLog, LogSettings
from txnlog.storage.delta.log_cleanup import clean_up

TICK_MS = 1_000
RETENTION_TICKS = 2
NEVER_DISTRUST = "what is found at a slot is trusted however late"
BLIND_PUT = "what landed at a slot is trusted without a check of the slot before"
BLIND_READ = "what was found at a slot is trusted without a check of the slot before"
BLIND_RETRY = "after a lost reply the commit is made again without a check"
NEVER_PROVED = "the place of a commit that was to be proved later is forgotten"
BLIND_DENIAL = "another's commit in the slot is trusted without a check of the slot before"
LONG_DATED = "the dates of requests are relied on for a tick too long"
UNDATED = "the store takes requests of any date"
PROVED_BY_ABSENCE = "a slot that is found empty is proof that it was never freed"
PROVED_LATE = "a slot is proved by when the one before it was seen, not by when it was empty"
READ_AT_START = (0, 0, 0, (), 0)
"""What a process remembers that has read the first version."""

File = tuple[str, int, "Content | int", int]
"""(kind, version, what, tick of its writing)."""


class Place(NamedTuple):
    """Where one process stands: memory, replies of this round, and one that is not taken yet.

    `start` is when the round began, None while its first request is not sent. In a dated world,
    `wall_ms` is what its wall clock says, and `signed_ms` the date of the write under way.
    """

    memory: Hashable = ()
    start: Reply | None = None
    replies: tuple[Reply, ...] = ()
    waiting: tuple[Hashable, ...] = ()
    wall_ms: int = 0
    signed_ms: int = 0


class State(NamedTuple):
    """Files in the store, the history as it really was, the time, and the processes."""

    files: tuple[File, ...]
    history: tuple[Content, ...]
    now: int
    places: tuple[Place, ...]


class Tailed:
    """A view that keeps the ids of the commits it was fed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.ids: list[str] = []

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, commit: Commit) -> None:
        self.ids += [a.app_id for a in commit.actions if isinstance(a, Txn)]


class VersionSlots:
    """The model; `actors` is a string of the letters W, V, S, T, L, M, R, C, K.

    C and K in lower case act in one instant. `commits`: how many O makes; `ticks`: how long the
    clock runs; `rounds`: how often W tries and R looks. To all but C and K: `frozen`: no time
    passes, as in a paused guest; `dated`: that, and the store checks dates; `local`: it is a disk.
    """

    def __init__(
        self,
        actors: str = "Wck",
        *,
        commits: int = 2,
        ticks: int = 3,
        rounds: int = 3,
        lost_replies: bool = False,
        frozen: bool = False,
        dated: bool = False,
        skew: int = 0,
        local: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        trust_ms = TICK_MS * (100 if NEVER_DISTRUST in broken else 1)
        self._settings = LogSettings(
            checkpoint_mode="off",
            trust_ms=trust_ms,
            dated_ms=TICK_MS * (2 if LONG_DATED in broken else 1),
            log_retention_ms=2 * trust_ms,
            commit_timeout_ms=100 * TICK_MS,
        )
        retention_ticks = RETENTION_TICKS + 2 * skew
        self._broken = broken
        self._rounds = rounds
        one_round: dict[str, Round] = {
            "W": lambda store, memory: self._write("W", store, memory),
            "V": lambda store, memory: self._write("V", store, memory),
            "S": lambda store, memory: self._write_warm("S", store, memory),
            "T": lambda store, memory: self._write_warm("T", store, memory),
            "L": lambda store, memory: self._write_two("L", store, memory),
            "M": lambda store, memory: self._write_two("M", store, memory),
            "R": self._read,
            "C": lambda store, _: _checkpoint(store, trust_ms),
            "K": lambda store, _: _clean(store, retention_ticks),
        }
        self._parquet: dict[Content, bytes] = {}
        self.actors = actors
        disks = set(actors) - set("CKck") if local else set()
        self.processes = [
            Process(
                a, one_round[a.upper()], self._parquet, refuses_skewed=dated, is_local=a in disks
            )
            for a in actors
        ]
        self._instants: dict[Hashable, tuple[tuple[str, int, Content | int], ...]] = {}
        self._commits, self._ticks, self._lost = commits, ticks, lost_replies
        self._frozen, self._dated = frozen or dated, dated
        self._skew_ms_max = skew * TICK_MS

    # -- one round of each -------------------------------------------------------------------------

    def _write(self, name: str, store: ReplayStore, memory: Hashable) -> Hashable:
        log, view = self._opened(store, memory)
        log.refresh()
        return self._write_one(name, store, memory, log, view)

    def _write_warm(self, name: str, store: ReplayStore, memory: Hashable) -> Hashable:
        """As W, by a log that it has open; for S nothing is due for a check when it reads on."""
        log, view = self._opened(store, memory or READ_AT_START)
        if name == "S":
            log._checked_ms = 0
        log.refresh()
        return self._write_one(name, store, memory, log, view)

    def _write_two(self, name: str, store: ReplayStore, memory: Hashable) -> Hashable:
        """What COMPLETE is, and the next commit of its shard, by a log that was read long ago."""
        log, view = self._opened(store, memory or READ_AT_START)
        if memory:
            log.refresh()
        else:
            log._checked_ms = 0
        if name.lower() not in view.ids and name not in view.ids:
            first = log.commit([Txn(name.lower(), 0)], operation="WRITE", prove_later=True)
            if NEVER_PROVED in self._broken:
                log._unproved = None
            if not isinstance(first, Committed):
                return self._kept(log, view, memory)
            if name == "M":
                log.refresh()
                store.show(("read", log.version, tuple(view.ids)))
        return self._write_one(name, store, memory, log, view)

    def _write_one(
        self, name: str, store: ReplayStore, memory: Hashable, log: DeltaLog, view: Tailed
    ) -> Hashable:
        if name in view.ids and BLIND_RETRY not in self._broken:
            store.show("landed")
            return None
        outcome = log.commit([Txn(name, 0)], operation="WRITE")
        if isinstance(outcome, Committed):
            store.show("landed")
            return None
        if isinstance(outcome, Conflict):
            store.show("denied")
        return self._kept(log, view, memory)

    def _read(self, store: ReplayStore, memory: Hashable) -> Hashable:
        log, view = self._opened(store, memory)
        log.refresh()
        store.show(("read", log.version, tuple(view.ids)))
        return self._kept(log, view, memory)

    def _opened(self, store: ReplayStore, memory: Any) -> tuple[DeltaLog, Tailed]:
        """The handle as the last round left it."""
        view = Tailed()
        log = DeltaLog(store, TABLE, view, settings=self._settings)
        if memory and memory[1] is not None:
            log.version, log._confirmed_ms = memory[1], memory[2]
            view.ids, log._proved_wall_ms = list(memory[3]), memory[4]
        if BLIND_PUT in self._broken:
            log._follows = lambda version, beside=(): True  # type: ignore[method-assign]
        if BLIND_DENIAL in self._broken:
            trust_denials(log)
        if BLIND_READ in self._broken:
            log._is_at_head = lambda base, wall_ms, *, sure: True  # type: ignore[method-assign]
        if PROVED_BY_ABSENCE in self._broken:
            prove_by_absence(log)
        if PROVED_LATE in self._broken:
            prove_by_a_late_look(log)
        return log, view

    def _kept(self, log: DeltaLog, view: Tailed, memory: Any) -> Hashable:
        rounds = (memory[0] if memory else 0) + 1
        if rounds >= self._rounds:
            return None
        if not log._trusted():
            # Whatever it remembers, it will open the log again.
            return (rounds, None)
        proved_ms = log._proved_wall_ms if self._dated else None
        return (rounds, log.version, log._confirmed_ms, tuple(view.ids), proved_ms)

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        first: File = ("commit", 0, CREATED, 0)
        return State((first,), (CREATED,), 0, (Place(),) * len(self.actors))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < self._ticks:
            yield "a tick passes", state._replace(now=state.now + 1)
        made = sum(content.author == "O" for content in state.history)
        if made < self._commits:
            name = f"o{made}"
            what = Content("O", made, (name,))
            yield f"O commits {name}", self._put_commit(state, len(state.history), what)
        for number, actor in enumerate(self.actors):
            yield from self._run(state, number, actor)

    def _run(self, state: State, number: int, actor: str) -> Iterator[tuple[str, State]]:
        if actor.islower():
            after = self._at_once(state, number)
            if after.files != state.files:
                yield f"{actor.upper()} runs at once", after
            return
        place = self._take_reply(state, number)
        if place.memory is None or isinstance(place.memory, str):
            if place != state.places[number]:
                yield f"{actor} ends", self._placed(state, number, place)
            return
        yield from self._set_clock(state, number, actor)
        start = place.start or self._clocks(state, number)
        request = self._pause(number, place._replace(start=start)).request
        assert request is not None
        if request.verb in ("put", "delete") and place != state.places[number]:
            # Between its sending and its effect a write may take any time. A read that takes long
            # is trusted the less, so that its sending may wait for its effect.
            sent = place._replace(signed_ms=place.wall_ms)
            yield f"{actor} sends {request.verb}", self._placed(state, number, sent)
            return
        dated_ms = place.signed_ms if request.verb == "put" else place.wall_ms
        if self._is_refused(state, number, dated_ms):
            if request.verb == "put":
                refused = place._replace(start=start, waiting=(LOST,))
                yield f"{actor} put is refused", self._placed(state, number, refused)
            # A read is sent until it is answered.
            return
        after, value = self._serve(state, request)
        answered = place._replace(start=start, waiting=(value,))
        what = f"{actor} {request.verb} {request.path.rsplit('/', 1)[-1].lstrip('0')}"
        yield f"{what}: {_short(value)}", self._placed(after, number, answered)
        if self._lost and request.verb == "put":
            yield (
                f"{what}, reply lost",
                self._placed(after, number, answered._replace(waiting=(LOST,))),
            )

    def _take_reply(self, state: State, number: int) -> Place:
        """The place after the reply that waits; the hint is read on the way, it is only a hint."""
        place, clocks = state.places[number], self._clocks(state, number)
        if place.waiting:
            reply = clocks._replace(value=place.waiting[0])
            place = place._replace(replies=(*place.replies, reply), waiting=())
        while place.memory is not None and not isinstance(place.memory, str):
            begun = place._replace(start=place.start or clocks)
            pause = self._pause(number, begun)
            for shown in pause.shown:
                wrong = _contradiction(self.actors[number], shown, state.history)
                if wrong is not None:
                    return Place(wrong, wall_ms=place.wall_ms)
            request = pause.request
            if request is None:
                place = Place(pause.memory, wall_ms=place.wall_ms)
            elif request.verb == "get" and slot(request.path)[0] == "hint":
                reply = clocks._replace(value=self._serve(state, request)[1])
                place = begun._replace(replies=(*begun.replies, reply))
            else:
                break
        return place

    def _clocks(self, state: State, number: int) -> Reply:
        """What the process's clocks say."""
        at_ms = 0 if self._is_guest(number) else state.now * TICK_MS
        is_set = self._dated and self._is_guest(number)
        return Reply(None, at_ms, state.places[number].wall_ms if is_set else at_ms)

    def _is_guest(self, number: int) -> bool:
        return self._frozen and self.actors[number].upper() not in "CK"

    def _set_clock(self, state: State, number: int, actor: str) -> Iterator[tuple[str, State]]:
        place = state.places[number]
        # Later it would be read, and written into a request, at the next reply only.
        is_read_next = place.waiting or place.start is None
        if not (self._dated and self._is_guest(number) and is_read_next):
            return
        for skew_ms in {-self._skew_ms_max, self._skew_ms_max}:
            wall_ms = state.now * TICK_MS + skew_ms
            if wall_ms > place.wall_ms:
                moved = place._replace(wall_ms=wall_ms)
                yield f"{actor}'s wall clock is set", self._placed(state, number, moved)

    def _is_refused(self, state: State, number: int, dated_ms: int) -> bool:
        is_checked = self._dated and UNDATED not in self._broken and self._is_guest(number)
        return is_checked and abs(state.now * TICK_MS - dated_ms) > self._skew_ms_max

    def _at_once(self, state: State, number: int) -> State:
        """A whole round in one instant; a checkpoint does not depend on anything's age."""
        ages = state.files if self.actors[number] == "k" else tuple(f[:3] for f in state.files)
        now = state.now if self.actors[number] == "k" else 0
        key = (number, ages, now)
        known = self._instants.get(key)
        if known is None:
            alone = state._replace(now=now)
            place = Place((), Reply(None, now * TICK_MS, now * TICK_MS))
            while (request := self._pause(number, place).request) is not None:
                alone, value = self._serve(alone, request)
                reply = Reply(value, now * TICK_MS, now * TICK_MS)
                place = place._replace(replies=(*place.replies, reply))
            known = self._instants[key] = tuple(file[:3] for file in alone.files)
        written = {file[:3]: file for file in state.files}
        files = tuple(written.get(file, (*file, state.now)) for file in known)
        return state._replace(files=files)

    def _pause(self, number: int, place: Place) -> Pause:
        assert place.start is not None
        return self.processes[number].pause(place.memory, place.start, place.replies)

    def _placed(self, state: State, number: int, place: Place) -> State:
        places = (*state.places[:number], place, *state.places[number + 1 :])
        return state._replace(places=places)

    def _serve(self, state: State, request: Request) -> tuple[State, Hashable]:
        """The store's side of one request."""
        if request.verb == "list":
            listed = [(path_of(kind, version), at) for kind, version, _, at in state.files]
            found = sorted((p, at * TICK_MS) for p, at in listed if p > request.path)
            return state, tuple(found)
        kind, version = slot(request.path)
        there = [file for file in state.files if file[:2] == (kind, version)]
        if request.verb == "get":
            return state, there[0][2] if there else None
        if request.verb == "head":
            return state, bool(there)
        if request.verb == "delete":
            return state._replace(files=tuple(f for f in state.files if f not in there)), True
        assert request.what is not None
        if kind != "commit":
            others = tuple(f for f in state.files if f not in there)
            put: File = (kind, version, request.what, state.now)
            return state._replace(files=tuple(sorted((*others, put), key=_file_order))), True
        if there:
            return state, False
        assert isinstance(request.what, Content)
        return self._put_commit(state, version, request.what), True

    def _put_commit(self, state: State, version: int, what: Content) -> State:
        put: File = ("commit", version, what, state.now)
        files = tuple(sorted((*state.files, put), key=_file_order))
        history = state.history
        if version == len(history):
            history = (*history, what)
        elif version > len(history):
            history = (*history, Content("hole", version, ()))
        return state._replace(files=files, history=history)

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        ids = [name for content in after.history for name in content.ids]
        for name in "WVSTLM":
            if ids.count(name) > 1:
                return f"{name} is in the log twice"
        if any(content.author == "hole" for content in after.history):
            return "a commit was written beyond the head"
        for kind, version, what, _ in after.files:
            if kind == "checkpoint" and isinstance(what, Content):
                truth = [n for content in after.history[: version + 1] for n in content.ids]
                if list(what.ids) != sorted(truth):
                    return f"checkpoint {version} holds {what.ids}, the log {truth}"
        for place in after.places:
            if isinstance(place.memory, str):
                return place.memory
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _contradiction(actor: str, shown: object, history: tuple[Content, ...]) -> str | None:
    """What a process says against what is."""
    is_there = any(actor in content.ids for content in history)
    if shown == "landed" and not is_there:
        return f"{actor} is acknowledged, and not in the log"
    if shown == "denied" and is_there:
        return f"{actor} is denied, and in the log"
    if isinstance(shown, tuple) and shown[0] == "read":
        _, version, ids = shown
        truth = [name for content in history[: version + 1] for name in content.ids]
        if sorted(ids) != sorted(truth):
            return f"{actor} hands out {ids} as version {version}, the log says {truth}"
    if isinstance(shown, tuple) and shown[0] == "error" and actor.upper() not in "CK":
        return f"{actor} fails: {shown[1]}"
    return None


def _checkpoint(store: ReplayStore, trust_ms: int) -> None:
    create_checkpoint(store, TABLE, trust_ms=trust_ms)


def _clean(store: ReplayStore, retention_ticks: int) -> None:
    clean_up(store, TABLE, retention_ms=retention_ticks * TICK_MS)


def _file_order(file: File) -> tuple[str, int]:
    return file[0], file[1]


def _short(value: object) -> str:
    if isinstance(value, Content):
        return "/".join(value.ids) or "created"
    if isinstance(value, tuple):
        return f"{len(value)} files"
    return "absent" if value is None else str(value)
