"""Version slots, clean-up and checkpoints (R62, R63, R70), on the real log and checkpoint code.

W writes one commit once, whatever happens, and says when it knows that it landed, or did not; V is
a second writer like it. R tails the log and returns what it has read. O is all other processes: it
commits at the true head. C checkpoints and K cleans up, both with the code of storage.delta, K
deleting file by file. Each may be paused for any time at any point. What was read is trusted for
one tick; clean-up keeps log files for two.

A machine that was suspended may show that by its wall clock only: `still`. A guest that its
hypervisor paused shows it by no clock: `guests`. It is paused between two rounds, which begin with
a look at the log that it read long ago, as nothing else shows it; paused in the midst of a round,
or just after a look (`recent`), it may take a freed slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

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
from txnlog.storage.delta.delta_log import Committed, Conflict, DeltaLog, LogSettings, _Time
from txnlog.storage.delta.log_cleanup import clean_up

TICK_MS = 1_000
RETENTION_TICKS = 2
NEVER_DISTRUST = "what is found at a slot is trusted however late"
BY_BOOT_CLOCK = "only the boot clock says how late it is"
BLIND = "no look shows whether the log still has its newest versions"
BLIND_RETRY = "after a lost reply the commit is made again without a check"
READ_AT_START = (0, 0, (0, 0), (), 0)
"""What a process remembers that has read the first version."""

File = tuple[str, int, "Content | int", int]
"""(kind, version, what, tick of its writing)."""


class Place(NamedTuple):
    """Where one process stands: memory, replies of this round, and one that is not taken yet.

    `start` is when the round began, None while its first request is not sent.
    """

    memory: Hashable = ()
    start: Reply | None = None
    replies: tuple[Reply, ...] = ()
    waiting: tuple[Hashable, ...] = ()


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
    """The model; `actors` is a string of the letters W, V, R, C, K.

    C and K in lower case act in one instant. `commits`: how many O makes; `ticks`: how long the
    clock runs; `rounds`: how often W tries and R looks. To all but C and K: `still`: the boot clock
    stands still; `local`: the store is a disk.
    """

    def __init__(
        self,
        actors: str = "Wck",
        *,
        commits: int = 2,
        ticks: int = 3,
        rounds: int = 3,
        lost_replies: bool = False,
        still: bool = False,
        guests: str = "",
        recent: bool = False,
        local: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        trust_ms = TICK_MS * (100 if NEVER_DISTRUST in broken else 1)
        self._settings = LogSettings(
            checkpoint_mode="off",
            trust_ms=trust_ms,
            log_retention_ms=2 * trust_ms,
            commit_timeout_ms=100 * TICK_MS,
        )
        self._broken = broken
        self._rounds = rounds
        one_round: dict[str, Round] = {
            "W": lambda store, memory: self._write("W", store, memory),
            "V": lambda store, memory: self._write("V", store, memory),
            "R": lambda store, memory: self._read("R", store, memory),
            "C": lambda store, _: _checkpoint(store, trust_ms),
            "K": lambda store, _: _clean(store),
        }
        self._parquet: dict[Content, bytes] = {}
        self.actors = actors
        disks = set(actors) - set("CKck") if local else set()
        self.processes = [
            Process(a, one_round[a.upper()], self._parquet, is_local=a in disks) for a in actors
        ]
        self._instants: dict[Hashable, tuple[tuple[str, int, Content | int], ...]] = {}
        self._commits, self._ticks, self._lost = commits, ticks, lost_replies
        self._still, self._guests, self._recent = still, guests, recent

    # -- one round of each -------------------------------------------------------------------------

    def _write(self, name: str, store: ReplayStore, memory: Hashable) -> Hashable:
        log, view = self._opened(name, store, memory)
        log.refresh()
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

    def _read(self, name: str, store: ReplayStore, memory: Hashable) -> Hashable:
        log, view = self._opened(name, store, memory)
        log.refresh()
        store.show(("read", log.version, tuple(view.ids)))
        return self._kept(log, view, memory)

    def _opened(self, name: str, store: ReplayStore, memory: Any) -> tuple[DeltaLog, Tailed]:
        """The handle as the last round left it; a look is due in a guest only."""
        view = Tailed()
        log = DeltaLog(store, TABLE, view, settings=self._settings)
        is_guest = name in self._guests
        memory = memory or (READ_AT_START if is_guest else ())
        if memory and memory[1] is not None:
            _, log.version, confirmed, ids, log._looked_at = memory
            log._confirmed, view.ids = _Time(*confirmed), list(ids)
            log._looked_ms = None if is_guest and not self._recent else store.clock.boot_ms()
        if BLIND in self._broken:
            log._look = lambda: True  # type: ignore[method-assign]
        if BY_BOOT_CLOCK in self._broken:
            log._now = lambda: _Time(store.clock.boot_ms(), 0)  # type: ignore[method-assign]
        return log, view

    def _kept(self, log: DeltaLog, view: Tailed, memory: Any) -> Hashable:
        rounds = (memory[0] if memory else 0) + 1
        if rounds >= self._rounds:
            return None
        if log._confirmed is None or not log._is_trusted():
            # Whatever it remembers, it will open the log again.
            return (rounds, None)
        return (rounds, log.version, tuple(log._confirmed), tuple(view.ids), log._looked_at)

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        first: File = ("commit", 0, CREATED, 0)
        return State((first,), (CREATED,), 0, (Place(),) * len(self.actors))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.now < self._ticks and self._are_guests_idle(state):
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
        start = place.start or self._clocks(state, number)
        request = self._pause(number, place._replace(start=start)).request
        assert request is not None
        if request.verb in ("put", "delete") and place != state.places[number]:
            # Between its sending and its effect a write may take any time. A read that takes long
            # is trusted the less, so that its sending may wait for its effect.
            yield f"{actor} sends {request.verb}", self._placed(state, number, place)
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
                    return Place(wrong)
            request = pause.request
            if request is None:
                place = Place(pause.memory)
            elif request.verb == "get" and slot(request.path)[0] == "hint":
                reply = clocks._replace(value=self._serve(state, request)[1])
                place = begun._replace(replies=(*begun.replies, reply))
            else:
                break
        return place

    def _clocks(self, state: State, number: int) -> Reply:
        """What the process's clocks say."""
        actor, now_ms = self.actors[number].upper(), state.now * TICK_MS
        if actor in self._guests:
            return Reply(None, 0, 0)
        is_still = self._still and actor not in "CK"
        return Reply(None, 0 if is_still else now_ms, now_ms)

    def _are_guests_idle(self, state: State) -> bool:
        return all(
            place.start is None and not place.waiting
            for actor, place in zip(self.actors, state.places, strict=True)
            if actor in self._guests
        )

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
        for name in "WV":
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


def _clean(store: ReplayStore) -> None:
    clean_up(store, TABLE, retention_ms=RETENTION_TICKS * TICK_MS)


def _file_order(file: File) -> tuple[str, int]:
    return file[0], file[1]


def _short(value: object) -> str:
    if isinstance(value, Content):
        return "/".join(value.ids) or "created"
    if isinstance(value, tuple):
        return f"{len(value)} files"
    return "absent" if value is None else str(value)
