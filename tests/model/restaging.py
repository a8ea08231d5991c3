"""A part that its table F does not take is staged again, on `prepare_restage` of the project.

R restages: it reads F, stages N, and replaces the old files O in the row. Helpers have read the
row, now or before. Others undo their change of F, once, and change it back; F may forget
`txn`s; V deletes what no row names. O fits F as it was, N as it is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.protocol.metadata import Manifest, StagedTable, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Done, Transition, prepare_complete, prepare_restage

BLIND = "the row is written without a look at the one that is there"
OWN_APP = "what is staged again has an appId of its own"
ONLY_NEW = "an old decision is looked for by its newest files only"
VACUUMED = "vacuum deletes the former files as soon as the row names others"
OLD_ROW = "a row that was read before the table forgot the txn is still trusted"

_OLD = StagedTable(
    name="f", url="f", table_id="f", part="O", size_bytes=1, digest="", num_files=1, num_records=1,
    staged_ms=0,
)  # fmt: skip
_NEW = replace(_OLD, part="N")
_ROW = TransactionMetadata(
    transactional_id="t",
    producer_id=1,
    producer_epoch=0,
    txn_epoch=0,
    state=TransactionState.PREPARE_COMMIT,
    timeout_ms=1,
    pending=Manifest(tables=(_OLD,)),
)


class Helper(NamedTuple):
    """What it does next, the files that it would publish, the version after which it puts."""

    does: str = "row"
    has: str = ""
    at: int = 0


class State(NamedTuple):
    """`row`: the files that the row names, "" once it is completed. `log`: O and N published, I an
    incompatible change, U its undo. `r`: what R does next; `forgot`: F has no `txn`s of what is
    before.
    """

    row: str = "O"
    log: str = "I"
    r: str = "read"
    helpers: tuple[Helper, ...] = (Helper(), Helper())
    forgot: int = 0
    deleted: bool = False
    ended: bool = False


class Restaging:
    """The model; others change F `changes` times."""

    def __init__(self, broken: frozenset[str] = frozenset(), *, changes: int = 3) -> None:
        self.broken = broken
        self.changes = changes

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._restager(state)
        yield from self._helper(state, 0)
        yield from self._helper(state, 1)
        is_changed = _is_changed(state.log)
        if sum(entry in "IU" for entry in state.log) <= self.changes:
            entry = "U" if is_changed else "I"
            yield f"foreign {entry}", state._replace(log=state.log + entry)
        # A row is read again after half an hour, F keeps `txn`s for 7 days.
        are_young = all(helper.does == "row" for helper in state.helpers)
        if state.forgot < len(state.log) and (are_young or OLD_ROW in self.broken):
            yield "F forgets txns", state._replace(forgot=len(state.log))
        is_former = state.row == "N" and "O" not in state.log
        if is_former and VACUUMED in self.broken and not state.deleted:
            yield "V deletes O", state._replace(deleted=True)

    def _restager(self, state: State) -> Iterator[tuple[str, State]]:
        if state.r == "read" and _is_changed(state.log) and state.row:
            if not self._is_there(state, "O"):
                yield "R stages N", state._replace(r="row")
        elif state.r == "row":
            row = _row("O" if BLIND in self.broken else state.row)
            made = prepare_restage(row, transaction=_ROW.transaction, old=_OLD, new=_NEW)
            yield "R writes the row", state._replace(r="end", row=_named(made, row))

    def _helper(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        who = f"H{number}"
        helper = state.helpers[number]

        def goes(label: str, to: Helper, **changes: object) -> tuple[str, State]:
            helpers = (*state.helpers[:number], to, *state.helpers[number + 1 :])
            return f"{who} {label}", state._replace(helpers=helpers, **changes)  # type: ignore[arg-type]

        if helper.does == "row":
            if state.row:
                yield goes("reads the row", Helper("tail", state.row))
            return
        yield goes("dies, or gives up", Helper())
        if helper.does == "tail":
            if self._is_there(state, helper.has):
                yield goes("finds it published", helper._replace(does="complete"))
            elif _is_changed(state.log) == (helper.has == "N") and not state.deleted:
                at = len(state.log)
                yield goes("looks at F and the files", helper._replace(does="put", at=at))
        elif helper.does == "put":
            if helper.at == len(state.log):
                log = state.log + helper.has
                yield goes("publishes", helper._replace(does="complete"), log=log)
            else:
                yield goes("meets a conflict", helper._replace(does="tail"))
        elif helper.does == "complete":
            row = _row(state.row)
            made = prepare_complete(row, transaction=_ROW.transaction, now_ms=0)
            yield goes("completes", Helper(), row=_named(made, row), ended=True)

    def _is_there(self, state: State, part: str) -> bool:
        """Whether F shows the part, by its txn, or its files where it forgets those."""
        known = state.log[state.forgot :]
        if OWN_APP in self.broken:
            return part in state.log
        if "O" in known or "N" in known:
            return True
        former = part == "N" and ONLY_NEW not in self.broken
        return part in state.log or (former and "O" in state.log)

    def unsafe(self, before: State, after: State) -> str | None:
        if sum(entry in "ON" for entry in after.log) > 1:
            return "published twice"
        if after.log != before.log and after.log[-1] in "ON":
            if after.deleted and after.log[-1] == "O":
                return "F names a deleted file"
            if _is_changed(before.log) != (after.log[-1] == "N"):
                return "files of another schema are in F"
        if not after.row and not {"O", "N"} & set(after.log):
            return "decided, completed and lost"
        if after.ended and after.row:
            return "decided again"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _row(named: str) -> TransactionMetadata:
    if not named:
        return replace(_ROW, state=TransactionState.COMPLETE_COMMIT, pending=Manifest())
    return replace(_ROW, pending=Manifest(tables=(_OLD if named == "O" else _NEW,)))


def _named(made: Transition | Done, row: TransactionMetadata) -> str:
    """The files that a row names after a decision."""
    after = row if isinstance(made, Done) else made.next
    return after.tables[0].part if after.tables else ""


def _is_changed(log: str) -> bool:
    changes = [entry for entry in log if entry in "IU"]
    return changes[-1] == "I"
