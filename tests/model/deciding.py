"""A change of a table F that depends on what was read, in a transaction with a topic.

F's own log decides, on the decisions of the project for the row: O asks for the end (the row is
Ongoing, with its manifest), and whoever meets that row does the same. It reads F; puts the change
at the next version if nothing since the version that was read conflicts, else a fence; looks
whether the version before is there; writes PREPARE_* as F says; publishes; completes. N takes the
id over. H is a sweeper, or raises a floor; by its rules more is a conflict, as by those of another
version of txnlog. A process that takes no more steps has crashed. F's log:

    W  a foreign change of what was read    A  one of something else    C  the change    X  a fence
    D  a later transaction of the id, which appends to F    R  F is replaced, in its own log
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tests.model.search import Pool
from txnlog.errors import ConcurrentTransactionsError, TxnLogError
from txnlog.protocol.group_metadata import TicketHolder
from txnlog.protocol.metadata import (
    GroupTicket,
    LastBatch,
    Manifest,
    Owner,
    StagedTable,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import prepare_floor
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_abort_ongoing,
    prepare_complete,
    prepare_decided,
    prepare_end,
    prepare_init,
)

IN_ROW = "the row decides, and the table follows"
TIMED_OUT = "a sweeper aborts in the row, and does not ask the table"
UNFENCED = "who finds a conflict aborts in the row, and puts no fence"
NO_LOOK = "who puts the change does not look for a fence"
UNCHECKED = "who puts the change does not look for conflicts"
NO_TXN = "the change carries no txn"
EARLY = "the topic is published before the table has decided"
UNPROVED = "nobody looks whether the version before the change is there"
OLD_ROW = "a row that was read before F forgot a fence is still trusted"
TWO = "two tables decide"
REPLACED = "a table that was replaced has decided nothing"

S = TransactionState
_TABLE = StagedTable(
    name="f", url="f", table_id="f", part="p", size_bytes=1, digest="", mode="merge", num_files=1,
    num_records=1, staged_ms=0,
)  # fmt: skip
_TICKET = GroupTicket(group_id="g", producer_id=1, ticket=5, generation=1, offsets={"t": {0: 1}})
_MANIFEST = Manifest(tables=(_TABLE,), tickets=(_TICKET,))
_BATCH = LastBatch(batch_id=7)
_FIRST = TransactionMetadata(
    transactional_id="t", producer_id=1, producer_epoch=0, timeout_ms=1, owner=Owner(run_id="first")
)
_COMMITTED = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)
_ABORTED = (S.PREPARE_ABORT, S.COMPLETE_ABORT)


class Process(NamedTuple):
    """What it does next; the version at which it puts, and in which F; what it found F to say."""

    does: str = "off"
    at: int = 0
    made: int = 0
    puts: str = ""
    found: str = ""


class State(NamedTuple):
    """`row`: its number. `made`: how often F was made again; `cleaned`: versions that are gone.

    `forgot`: F has no fences of what is before. `was_in`: the change was in F. `told`: what O was
    told at last. `second`: the log of the other table that decides, of TWO.
    """

    row: int = 0
    log: str = ""
    made: int = 0
    cleaned: int = 0
    forgot: int = 0
    was_in: bool = False
    stray: bool = False
    topic: bool = False
    told: str = ""
    second: str = ""
    processes: tuple[Process, ...] = (Process("ask"), Process(), Process())


class Deciding:
    """The model; `foreign`: what others do to F, each once: W, A, R, M (made again), K (clean-up),
    F (fences are forgotten).
    """

    def __init__(self, broken: frozenset[str] = frozenset(), *, foreign: str) -> None:
        self.broken = broken
        self.foreign = foreign
        self.rows: Pool[TransactionMetadata] = Pool(lambda row: tuple(row.to_values().items()))
        self.rows.put(_FIRST)

    def initial(self) -> State:
        return State()

    def _row(self, state: State) -> TransactionMetadata:
        return self.rows[state.row]

    def _wrote(self, state: State, made: Transition | Done) -> State:
        if isinstance(made, Done):
            return state
        return state._replace(row=self.rows.put(made.next))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._asks(state)
        yield from self._meet(state)
        for number, process in enumerate(state.processes):
            if process.does not in ("ask", "off", "end"):
                yield from self._carries_out(state, number, process)
        yield from self._foreign(state)

    def _to(self, state: State, number: int, **changes: object) -> State:
        processes = list(state.processes)
        processes[number] = processes[number]._replace(**changes)  # type: ignore[arg-type]
        return state._replace(processes=tuple(processes))

    def _asks(self, state: State) -> Iterator[tuple[str, State]]:
        """O writes the row with its manifest; a lost reply is a repeated call."""
        if state.processes[0].does != "ask":
            return
        row = self._row(state)
        try:
            made = prepare_end(
                row, holder=_FIRST.holder, result=TransactionResult.COMMIT, manifest=_MANIFEST,
                last_batch=_BATCH, now_ms=0,
            )  # fmt: skip
        except TxnLogError:
            yield "O is refused", self._to(state, 0, does="end")
            return
        if IN_ROW in self.broken and isinstance(made, Transition):
            made = replace(made, next=replace(made.next, state=S.PREPARE_COMMIT))
        after = self._wrote(state, made)
        yield "O asks for the end", self._to(after, 0, does="look")
        if after != state:
            yield "O asks for the end, and its reply is lost", after

    def _meet(self, state: State) -> Iterator[tuple[str, State]]:
        """N and H find a row that is to be ended, or end it as they may."""
        row = self._row(state)
        new, helper = (process.does == "off" for process in state.processes[1:])
        if new and row.owner.run_id != "next":
            after = self._wrote(state, _taken_over(row))
            to = "look" if self._row(after).is_ending else "end"
            yield "N takes over", self._to(after, 1, does=to)
        holder = TicketHolder(
            member_id="", transactional_id="t", producer_id=1, run_id="first", ticket=5,
            generation=1, partitions={"t": (0,)},
        )  # fmt: skip
        if helper and "g" not in row.owner.floors:
            made = prepare_floor(row, group_id="g", holder=holder, by="H", now_ms=0)
            after = self._wrote(state, made)
            to = "look" if self._row(after).is_ending else "end"
            yield "H raises the floor", self._to(after, 2, does=to)
        if helper and row.is_ending:
            if TIMED_OUT in self.broken and row.decider is not None:
                made = prepare_abort_ongoing(row, by="H", reason="", now_ms=0)
                yield "H aborts", self._to(self._wrote(state, made), 2, does="complete")
            yield "H reads the row", self._to(state, 2, does="look")

    def _carries_out(
        self, state: State, number: int, process: Process
    ) -> Iterator[tuple[str, State]]:
        who = "ONH"[number]
        if process.does == "look":
            if EARLY in self.broken and not state.topic:
                yield f"{who} publishes early", state._replace(topic=True)
            if self._row(state).decider is None and IN_ROW not in self.broken:
                # Read again after F: another process was faster.
                yield f"{who} finds the row ended", self._ended(state, number)
            else:
                yield from self._looks(state, number, who)
        elif process.does == "put":
            yield from self._puts(state, number, process, who)
        elif process.does == "prove":
            is_there = process.made == state.made or UNPROVED in self.broken
            to = "row" if is_there else "look"
            after = state if is_there else state._replace(stray=False)
            yield f"{who} looks at the version before", self._to(after, number, does=to)
        elif process.does == "row":
            yield from self._decides(state, number, process, who)
        elif process.does == "topic":
            after = state._replace(topic=True)
            yield f"{who} publishes", self._to(after, number, does="complete")
        elif process.does == "complete":
            row = self._row(state)
            made = prepare_complete(row, transaction=(1, 0), now_ms=0)  # type: ignore[arg-type]
            after = self._wrote(state, made)
            yield f"{who} completes", self._to(after, number, does="end")

    def _looks(self, state: State, number: int, who: str) -> Iterator[tuple[str, State]]:
        """F as it is, and the row after it."""

        def goes(label: str, **changes: object) -> tuple[str, State]:
            return f"{who} {label}", self._to(state, number, **changes)

        log, broken = state.log, self.broken
        if state.made or ("R" in log and ("C" not in log or REPLACED in broken)):
            yield goes("finds another table", does="row", found="replaced")
        elif ("C" in log and NO_TXN not in broken) or "D" in log:
            yield goes("finds the change", does="row", found="C")
        elif "X" in log[state.forgot :] and NO_LOOK not in broken:
            yield goes("finds a fence", does="row", found="X")
        else:
            is_refused = "W" in log or state.cleaned > 0 or (who == "H" and "A" in log)
            if UNCHECKED in broken:
                is_refused = False
            if is_refused and UNFENCED in broken:
                yield goes("finds a conflict", does="row", found="X")
            else:
                puts = "X" if is_refused else "C"
                yield goes(f"is to put {puts}", does="put", at=len(log), made=0, puts=puts)

    def _puts(
        self, state: State, number: int, process: Process, who: str
    ) -> Iterator[tuple[str, State]]:
        to, puts = self._to(state, number, does="prove", found=process.puts), process.puts
        if state.made != process.made:
            # A log that was made again may have that version free, too.
            yield f"{who} puts {puts} where another table is", to._replace(stray=True)
        elif len(state.log) != process.at:
            yield f"{who} meets a conflict", self._to(state, number, does="look")
        else:
            log = state.log + puts
            was_in = state.was_in or puts == "C"
            yield f"{who} puts {puts}", to._replace(log=log, was_in=was_in)
            lost = self._to(state, number, does="look")._replace(log=log, was_in=was_in)
            yield f"{who} puts {puts}, and its reply is lost", lost

    def _decides(
        self, state: State, number: int, process: Process, who: str
    ) -> Iterator[tuple[str, State]]:
        row = self._row(state)
        if TWO in self.broken and process.found == "C" and "C" not in state.second:
            if "W" not in state.second:
                yield f"{who} changes the second table", state._replace(second=state.second + "C")
            return
        is_commit = process.found == "C"
        result = TransactionResult.COMMIT if is_commit else TransactionResult.ABORT
        if IN_ROW in self.broken:
            to = "topic" if is_commit else "end"
            yield f"{who} goes on", self._to(state, number, does=to)
            return
        made = prepare_decided(row, transaction=(1, 0), result=result, now_ms=0)  # type: ignore[arg-type]
        after = self._wrote(state, made)
        if number == 0:
            now = self._row(after)
            if now.transaction == (1, 0) and now.state in (*_COMMITTED, *_ABORTED):
                is_commit = now.state in _COMMITTED
            after = after._replace(told="committed" if is_commit else "conflict")
        yield f"{who} writes {result.prepared.name}", self._ended(after, number)
        if after.row != state.row:
            lost = self._to(after._replace(told=state.told), number, does="look")
            yield f"{who} writes {result.prepared.name}, and its reply is lost", lost

    def _ended(self, state: State, number: int) -> State:
        row = self._row(state)
        if row.transaction != (1, 0) or not row.state.is_prepared:
            return self._to(state, number, does="end")
        does = "topic" if row.state is S.PREPARE_COMMIT else "complete"
        return self._to(state, number, does=does)

    def _foreign(self, state: State) -> Iterator[tuple[str, State]]:
        log = state.log
        for entry in "WAR":
            if entry in self.foreign and entry not in log:
                yield f"foreign {entry}", state._replace(log=log + entry)
        if TWO in self.broken and not state.second:
            yield "foreign W in the second table", state._replace(second="W")
        if "M" in self.foreign and not state.made:
            yield "F is made again", state._replace(log="", made=1, cleaned=0, forgot=0)
        if "K" in self.foreign and log and not state.cleaned and "D" not in log:
            yield "foreign clean-up of the log", state._replace(cleaned=len(log))
        # A row is read again after half an hour, F keeps its txns for 7 days.
        are_young = all(one.does in ("ask", "off", "end") for one in state.processes)
        is_trusted = are_young or OLD_ROW in self.broken
        if "F" in self.foreign and state.forgot < len(log) and is_trusted:
            yield "F forgets fences", state._replace(forgot=len(log))
        row = self._row(state)
        if row.state.is_idle and row.txn_epoch == 0 and not state.made and "D" not in log:
            later = replace(row, txn_epoch=row.producer_epoch, pending=Manifest())
            yield "the id goes on", state._replace(log=log + "D", row=self.rows.put(later))

    def unsafe(self, before: State, after: State) -> str | None:
        row = self._row(after)
        if after.log.count("C") > 1:
            return "changed twice"
        if "C" in after.log and after.log != before.log and after.log[-1] == "C":
            if "W" in before.log:
                return "a foreign change was overwritten"
            if row.txn_epoch < 0:
                return "changed, and nobody has asked"
        is_ours = row.txn_epoch == 0
        if is_ours and row.state in _ABORTED and "C" in after.log:
            return "aborted, and in the table"
        if ((is_ours and row.state in _COMMITTED) or after.topic) and not after.was_in:
            return "committed, and not in the table"
        if is_ours and row.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
            is_commit = row.state is S.COMPLETE_COMMIT
            if is_commit != (row.owner.last_batch == _BATCH):
                return "the batch is not what the row says"
            if is_commit and not after.topic:
                return "in the table, not in the topic"
        is_told = before.told != after.told and row.state in (*_COMMITTED, *_ABORTED)
        if is_told and is_ours and (after.told == "committed") != (row.state in _COMMITTED):
            return "O was told the opposite"
        return None

    def stuck(self, state: State) -> str | None:
        if self._row(state).is_ending:
            return "can never be finished"
        if TWO in self.broken and ("C" in state.log) != ("C" in state.second):
            return "half"
        return None


def _taken_over(row: TransactionMetadata) -> Transition | Done:
    try:
        return prepare_init(
            row, transactional_id="t", new_producer_id=2, owner=Owner(run_id="next"), timeout_ms=1,
            now_ms=0,
        )  # fmt: skip
    except ConcurrentTransactionsError:
        return Done(row)
