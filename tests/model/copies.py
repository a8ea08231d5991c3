"""Runs that copy snapshots of one origin to one place, a client of it, and a restore from it.

The place has a whole copy of snapshot 0, in two tables. Each run takes a newer snapshot; the second
table changes in every other one, and back in the next. A snapshot has a new data file and that of
the one before. A run may stop anywhere. A restore reads one table after the other. The decisions
about `__cluster` are the real ones; a commit lands only at the version that its writer expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.errors import ConcurrentTransactionsError, ConfigError
from txnlog.protocol.copies import Copy, begin_copy, check_same, check_whole, end_copy

OPENS_LATE = "a run reads the tables when it writes, and not before it begins"
BEGINS_BLINDLY = "a run begins whatever __cluster says since it was read"
SKIPS = "a run writes nothing to a table in which nothing changes"
ENDS_BLINDLY = "a run ends though another one has begun"
SNAPSHOT_FIRST = "a run takes its snapshot before it reads what is there"
LISTS_LATE = "a run lists the files that it may delete after it has taken its snapshot"
READS_BLINDLY = "a restore does not look whether the copy is still the same one"
CLIENT = -1
"""What a table has once a client has written."""


class Run(NamedTuple):
    """`seen`, `opened` (a version per table) and `listed` (files) are what it has read."""

    snapshot: int = 0
    seen: Copy | None = None
    opened: tuple[int, ...] = ()
    listed: frozenset[int] = frozenset()
    has_files: bool = False
    is_begun: bool = False
    has_looked: bool = False
    written: int = 0
    has_ended: bool = False
    is_over: bool = False


class Reader(NamedTuple):
    """A process that restores the copy: what it has read of `__cluster`, and of each table."""

    seen: Copy | None = None
    read: tuple[int, ...] = ()
    has_restored: bool = False
    is_over: bool = False


class State(NamedTuple):
    """`tables`: the contents of each version. `whole`: versions of the last whole copy. `files`:
    by the snapshots that had them first.
    """

    copy: Copy
    tables: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]
    runs: tuple[Run, ...]
    files: frozenset[int] = frozenset({-1, 0})
    taken: int = 0
    is_used: bool = False
    reader: Reader = Reader()


class Copies:
    """The model."""

    def __init__(
        self, broken: frozenset[str] = frozenset(), *, runs: str = "ABC", is_restored: bool = False
    ) -> None:
        self._broken = broken
        self._runs = runs
        self._reader = Reader(is_over=not is_restored)

    def initial(self) -> State:
        copy = Copy(origin="o", file="0")
        return State(copy, ((0,), (0,)), (0, 0), (Run(),) * len(self._runs), reader=self._reader)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for at, name in enumerate(self._runs):
            run = state.runs[at]
            if not run.is_over:
                for label, after, changed in self._steps_of(state, run, name):
                    runs = (*state.runs[:at], after, *state.runs[at + 1 :])
                    yield f"{name} {label}", changed._replace(runs=runs)
        if not state.copy.run and not state.is_used:
            yield "a client opens the copy", state._replace(is_used=True)
        if state.is_used and CLIENT not in state.tables[0]:
            yield "the client writes", _put(state, 0, CLIENT)
        if not state.reader.is_over:
            label, reader = self._read(state, state.reader)
            yield f"the reader {label}", state._replace(reader=reader)

    def _read(self, state: State, reader: Reader) -> tuple[str, Reader]:
        try:
            if reader.seen is None:
                check_whole(state.copy, "u")
                return "begins", reader._replace(seen=state.copy)
            if len(reader.read) < len(state.tables):
                read = (*reader.read, state.tables[len(reader.read)][-1])
                return "reads a table", reader._replace(read=read)
            if READS_BLINDLY not in self._broken:
                check_same(state.copy, expected=reader.seen, url="u")
        except ConfigError:
            return "is refused", reader._replace(is_over=True)
        return "restores", reader._replace(has_restored=True, is_over=True)

    def _steps_of(self, state: State, run: Run, name: str) -> Iterator[tuple[str, Run, State]]:
        now = tuple(len(table) - 1 for table in state.tables)
        is_first = SNAPSHOT_FIRST in self._broken
        if not run.opened and (run.snapshot or not is_first):
            is_refused = CLIENT in state.tables[0]
            read = run._replace(seen=state.copy, opened=now, is_over=is_refused)
            read = read._replace(listed=state.files)
            yield "reads what is there", read, state
        elif not run.snapshot:
            taken = state._replace(taken=state.taken + 1)
            yield "takes a snapshot", run._replace(snapshot=state.taken + 1), taken
        elif not run.has_files:
            listed = state.files if LISTS_LATE in self._broken else run.listed
            files = state.files | (files_of(run.snapshot) - listed)
            copied = run._replace(has_files=True, listed=listed)
            yield "copies files", copied, state._replace(files=files)
        elif not run.is_begun:
            expected = state.copy if BEGINS_BLINDLY in self._broken else run.seen
            try:
                begun = begin_copy(state.copy, expected=expected, run=name, url="u")
                yield "begins", run._replace(is_begun=True), state._replace(copy=begun)
            except ConcurrentTransactionsError:
                yield "gives up", run._replace(is_over=True), state
        elif not run.has_looked:
            is_moved = now != run.opened and run.seen is not None and not run.seen.run
            if not is_moved or OPENS_LATE in self._broken:
                yield "looks", run._replace(has_looked=True), state
            elif state.copy.run == name and run.seen is not None:
                undone = end_copy(state.copy, run=name, file=run.seen.file, url="u")
                yield "leaves it", run._replace(is_over=True), state._replace(copy=undone)
            else:
                yield "gives up", run._replace(is_over=True), state
        elif run.written < len(state.tables):
            yield self._write(state, run, now)
        elif not run.has_ended:
            yield self._end(state, run, name)
        else:
            left = state.files - (run.listed - files_of(run.snapshot))
            yield "deletes files", run._replace(is_over=True), state._replace(files=left)

    def _write(self, state: State, run: Run, now: tuple[int, ...]) -> tuple[str, Run, State]:
        at = run.written
        expected = now[at] if OPENS_LATE in self._broken else run.opened[at]
        after = run._replace(written=at + 1)
        content = content_of(at, run.snapshot)
        if self._is_skipped(state, run, at):
            return f"has nothing for table {at}", after, state
        if now[at] != expected:
            return f"meets another at table {at}", run._replace(is_over=True), state
        return f"writes table {at}", after, _put(state, at, content)

    def _is_skipped(self, state: State, run: Run, at: int) -> bool:
        is_same = state.tables[at][run.opened[at]] == content_of(at, run.snapshot)
        return SKIPS in self._broken and is_same

    def _end(self, state: State, run: Run, name: str) -> tuple[str, Run, State]:
        found = state.copy
        if ENDS_BLINDLY in self._broken:
            found = replace(found, run=name)
        try:
            ended = end_copy(found, run=name, file=str(run.snapshot), url="u")
        except ConcurrentTransactionsError:
            return "was taken over", run._replace(is_over=True), state
        versions = tuple(
            version if self._is_skipped(state, run, at) else version + 1
            for at, version in enumerate(run.opened)
        )
        after = run._replace(has_ended=True)
        return "ends", after, state._replace(copy=ended, whole=versions)

    def unsafe(self, before: State, after: State) -> str | None:
        wanted = [content_of(at, int(after.copy.file)) for at in range(2)]
        if [table[at] for table, at in zip(after.tables, after.whole, strict=True)] != wanted:
            return "the last whole copy is of two snapshots"
        if not files_of(int(after.copy.file)) <= after.files:
            return "a file of the last whole copy is gone"
        if int(after.copy.file) < int(before.copy.file):
            return "the copy goes back"
        heads = [table[-1] for table in after.tables]
        if not after.copy.run and CLIENT not in after.tables[0] and heads != wanted:
            return "clients open a copy of two snapshots"
        if CLIENT in after.tables[0] and heads[0] != CLIENT:
            return "what a client wrote is overwritten"
        reader = after.reader
        if reader.has_restored and reader.seen is not None and CLIENT not in reader.read:
            snapshot = int(reader.seen.file)
            if list(reader.read) != [content_of(at, snapshot) for at in range(2)]:
                return "what is restored is of two snapshots"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def content_of(table: int, snapshot: int) -> int:
    """What a table has in a snapshot."""
    return snapshot if table == 0 else snapshot % 2


def files_of(snapshot: int) -> frozenset[int]:
    """The data files of a snapshot."""
    return frozenset({snapshot - 1, snapshot})


def _put(state: State, at: int, content: int) -> State:
    tables = list(state.tables)
    tables[at] = (*tables[at], content)
    return state._replace(tables=tuple(tables))
