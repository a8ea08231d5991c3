"""One table of others (F) in a decided transaction: its publication, beside foreign writers of F.

O owns the transaction: it checks F, decides (PREPARE in the row), publishes by a put at the next
version if that is absent, looks whether the version before is there, and completes. H is a helper
that may be late: it needs no second reading of the row, as the age of the decision is judged after
the head of F was read, at whose next version it puts. A process that takes no more steps has
crashed. F's log is a tuple of entries, and the state of F is their replay:

    W, A  appends      I  incompatible change     U  undo of I       R  replaced: another table id
    Z  RESTORE         E  a checkpoint that drops expired `txn`s      X  our publication
    F  as E, and the tombstones, too             2  a later publication of another producer
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NO_TXN = "a publication carries no txn"
CHECK_ONCE = "F is checked before the decision only"
ID_UNCHECKED = "the table id is not compared at publication"
IN_FOLDER = "staged files lie where foreign VACUUM deletes"
AGE_OF_BEFORE = "a helper judges the age of a decision before it reads the head of F"
NO_PATHS = "of an old decision only the txn is looked for, not the paths"
NO_AGE = "an old decision is published though F forgets paths, too"
OVERWRITES = "a foreign writer does not put if absent"
UNPROVED = "COMPLETE does not look at F again"
NO_LOOK = "nobody looks whether the version before a publication is there"
EARLY = "published before the decision"
NO_WAY_OUT = "nobody makes F compatible again, or gives the part up"
SETTLE_CHANGED = "an incompatible F counts as published"
SHARED_APP = "all producers have one appId, with versions in the order of decision"
UNKNOWN_TABLES = "a process that does not know tables may complete"

Log = tuple[str, ...]


class State(NamedTuple):
    """`freed`: clean-up has deleted the versions below; `stray`: ours was put into a freed slot.

    `o`, `h`: what each does next; `o_at`, `h_at`: the version at which it puts. `over`: the version
    that a foreign writer has seen empty. `old`: the decision is older than F keeps `txn`s.
    """

    row: str = "idle"
    log: Log = ("W",)
    o: str = "check"
    o_at: int = -1
    h: str = "off"
    h_at: int = -1
    h_finds_young: bool = False
    used: frozenset[str] = frozenset()
    over: int = -1
    freed: int = 0
    stray: bool = False
    vacuumed: bool = False
    old: bool = False
    settled: bool = False


class Table(NamedTuple):
    """F as its log says."""

    replaced: bool = False
    changed: bool = False
    has_txn: bool = False
    has_paths: bool = False


def replay(log: Log) -> Table:
    table = Table()
    for entry in log:
        if entry == "X":
            table = table._replace(has_txn=True, has_paths=True)
        elif entry == "I":
            table = table._replace(changed=True)
        elif entry == "U":
            table = table._replace(changed=False)
        elif entry == "R":
            table = Table(replaced=True)
        elif entry == "E":
            table = table._replace(has_txn=False)
        elif entry == "F":
            table = table._replace(has_txn=False, has_paths=False)
        elif entry == "2":
            table = table._replace(has_txn=True)
    return table


class Publication:
    """The model; `foreign`: the letters of what others do to F, each once at most.

    `cleans`: they also clean up F's log while a process is paused.
    """

    def __init__(
        self,
        broken: frozenset[str] = frozenset(),
        *,
        foreign: str = "WIURZE",
        cleans: bool = False,
    ) -> None:
        self.broken = broken
        self.foreign = foreign
        self.cleans = cleans

    def initial(self) -> State:
        return State()

    def _is_done(self, log: Log) -> bool:
        table = replay(log)
        if NO_TXN in self.broken:
            return False
        return table.has_txn or (table.has_paths and NO_PATHS not in self.broken)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._owner(state)
        yield from self._helper(state)
        yield from self._foreign(state)
        yield from self._others(state)

    def _owner(self, state: State) -> Iterator[tuple[str, State]]:
        if state.o == "check":
            if replay(state.log).changed:
                yield "O refuses: F has changed", state._replace(o="end")
            elif EARLY in self.broken:
                yield "O publishes", state._replace(o="prepare", log=(*state.log, "X"))
            else:
                yield "O checks F", state._replace(o="prepare")
        elif state.o == "prepare":
            if not state.vacuumed or IN_FOLDER in self.broken:
                yield "O decides", state._replace(o="tail", row="prepared")
            yield "O fails before the decision", state._replace(o="end")
        else:
            yield from self._publish(state, "O", state.o, state.o_at)

    def _helper(self, state: State) -> Iterator[tuple[str, State]]:
        if state.row == "prepared" and state.h == "off":
            yield "H reads the row", state._replace(h="tail", h_finds_young=not state.old)
            if UNKNOWN_TABLES in self.broken:
                yield "an older process completes", state._replace(row="complete")
        else:
            yield from self._publish(state, "H", state.h, state.h_at)

    def _publish(self, state: State, who: str, does: str, at: int) -> Iterator[tuple[str, State]]:
        """Tail F, put, look, complete: the same steps for both."""

        def goes(label: str, to: str, version: int | None = None) -> tuple[str, State]:
            changes: dict[str, object] = {who.lower(): to}
            if version is not None:
                changes[f"{who.lower()}_at"] = version
            return f"{who} {label}", state._replace(**changes)  # type: ignore[arg-type]

        if does == "tail":
            yield from self._tail(state, who, goes)
        elif does == "put":
            # A slot that was freed is empty, too.
            if at < state.freed:
                label, after = goes("puts X into a freed slot", "look")
                yield label, after._replace(stray=True)
            elif len(state.log) == at:
                label, after = goes(f"puts X at {at}", "look")
                yield label, after._replace(log=(*state.log, "X"))
            else:
                yield goes("meets a conflict", "tail")
        elif does == "look":
            if at - 1 < state.freed and NO_LOOK not in self.broken:
                # Opened again, F has the commit; or not, and then it is deleted.
                label, after = goes("finds no version before, and opens F again", "tail")
                yield label, after._replace(stray=False)
            else:
                yield goes("looks", "complete")
        elif does == "complete":
            if state.row != "prepared":
                yield goes("finds the row ended", "end")
            elif self._is_lost(state):
                yield goes("does not find it any more", "tail")
            else:
                label, after = goes("completes", "end")
                yield label, after._replace(row="complete")

    def _is_lost(self, state: State) -> bool:
        """Whether COMPLETE, which reads back, does not find the publication."""
        looks = OVERWRITES in self.broken and UNPROVED not in self.broken
        return looks and not state.settled and not self._is_done(state.log)

    def _tail(self, state: State, who: str, goes: object) -> Iterator[tuple[str, State]]:
        assert callable(goes)
        broken, table, at = self.broken, replay(state.log), len(state.log)
        if self._is_done(state.log):
            yield goes("finds it published", "complete")
        elif table.replaced and ID_UNCHECKED not in broken:
            label, after = goes("finds another table: settled", "complete")
            yield label, after._replace(settled=True)
        elif table.changed and CHECK_ONCE not in broken:
            # Blocked: it waits, and takes no step.
            if SETTLE_CHANGED in broken:
                yield goes("settles it", "complete")
        elif self._may_put(state, who):
            yield goes(f"tails F at {at}", "put", at)

    def _may_put(self, state: State, who: str) -> bool:
        """Whether F, as it was read, shows that this was not published before."""
        is_old = state.old
        if who == "H" and AGE_OF_BEFORE in self.broken:
            is_old = not state.h_finds_young
        # Where F forgets paths as early as txns, nothing shows it: an operator decides.
        return not is_old or "F" not in self.foreign or NO_AGE in self.broken

    def _foreign(self, state: State) -> Iterator[tuple[str, State]]:
        table = replay(state.log)
        may = {
            "U": table.changed,
            "Z": "X" in state.log,
            "E": table.has_txn,
            "F": table.has_txn or table.has_paths,
        }
        for entry in self.foreign:
            if entry in state.used or len(state.log) > 6 or not may.get(entry, True):
                continue
            after = state._replace(log=(*state.log, entry), used=state.used | {entry})
            # What expires was there for longer than the decision of a process that knows its age.
            yield f"foreign {entry}", after._replace(old=state.old or entry in "EF")
        if SHARED_APP in self.broken and state.row != "idle" and "2" not in state.used:
            after = state._replace(log=(*state.log, "2"), used=state.used | {"2"})
            yield "a later transaction of another producer appears", after

    def _others(self, state: State) -> Iterator[tuple[str, State]]:
        """What needs no place in F's log: VACUUM, clean-up, a put that overwrites, an operator."""
        broken = self.broken
        if IN_FOLDER in broken and not state.vacuumed and "X" not in state.log:
            yield "foreign VACUUM", state._replace(vacuumed=True)
        if self.cleans and state.freed < len(state.log) - 1:
            # All but the newest version, which a checkpoint replaces.
            freed = len(state.log) - 1
            yield "foreign clean-up of the log", state._replace(freed=freed)
        if OVERWRITES in broken and "o" not in state.used:
            yield self._overwrite(state)
        is_blocked = replay(state.log).changed or (state.old and not self._is_done(state.log))
        if state.row == "prepared" and is_blocked and NO_WAY_OUT not in broken:
            yield "an operator gives it up", state._replace(row="given up")

    def _overwrite(self, state: State) -> tuple[str, State]:
        if state.over < 0:
            return "W finds the slot empty", state._replace(over=len(state.log))
        log = (*state.log[: state.over], "W", *state.log[state.over + 1 :])
        used = state.used | {"o"}
        return "W renames over the slot", state._replace(log=log, used=used)

    def unsafe(self, before: State, after: State) -> str | None:
        if after.log.count("X") > 1:
            return "published twice"
        if after.log != before.log and after.log[-1] == "X":
            table = replay(before.log)
            if table.changed:
                return "a file of another schema is in F"
            if table.replaced:
                return "published in another table"
            if after.vacuumed:
                return "F names a deleted file"
        if "X" in after.log and after.row == "idle":
            return "visible without a decision"
        if after.row == "complete" and "X" not in after.log and not after.settled:
            return "decided, completed and lost"
        if after.row == "prepared" and after.vacuumed:
            return "a decided file was deleted"
        return None

    def stuck(self, state: State) -> str | None:
        if state.row == "prepared":
            return "decided, and can never be finished"
        return None
