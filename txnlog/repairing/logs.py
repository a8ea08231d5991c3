"""Reads a log past its damage, into the state in memory that clients use.

It begins with the newest checkpoint that is whole. A commit behind a missing or damaged one is kept
if it follows its predecessor, where that is there, and if it fits; from the first that does not,
the log is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txnlog.errors import CorruptLogError, ObjectNotFoundError, TxnLogError
from txnlog.protocol.repair.facts import LEAP
from txnlog.storage.delta.actions import Commit, Metadata, Protocol, decode_commit
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.delta_log import View
from txnlog.storage.delta.log_files import LogFiles, commit_path, sort_files
from txnlog.storage.delta.table_protocol import check_protocol
from txnlog.storage.store.objects import ObjectStore

COMMITS_AT_ONCE = 256

_UNPARSABLE = (CorruptLogError, ValueError, KeyError, TypeError, IndexError, OverflowError)


@dataclass(slots=True)
class FoundLog:
    """What is whole of a log: the checkpoint `base` (-1: none) and the commits `kept` after it.

    `top` is the highest version that a name shows (-1: none), `digest` that of the newest commit
    kept. `lost` commits after `base` cannot be read, or do not fit. `is_damaged`: the log must be
    written anew.
    """

    table: str
    base: int = -1
    kept: list[int] = field(default_factory=list)
    top: int = -1
    digest: str = ""
    metadata: Metadata | None = None
    lost: int = 0
    is_damaged: bool = False

    @property
    def version(self) -> int:
        """The newest version that counts; -1 if none does."""
        return self.kept[-1] if self.kept else self.base

    @property
    def new_version(self) -> int:
        """That of the repair's commit. Above all that readers may have seen, if any is lost."""
        if self.lost or self.version < 0:
            return self.top + LEAP
        return self.top + 1


class Notes:
    """What a reading notes about commits, by kind of table."""

    needs_first = False
    """Whether nothing can be made of a log without its first commit, or a checkpoint."""

    def begin_damage(self) -> None:
        """All commits that follow are behind damage."""

    def fits(self, commit: Commit) -> bool:
        """Whether a commit behind damage can be applied to the state that is there."""
        return True

    def note(self, commit: Commit, *, is_behind: bool) -> None:
        """A commit that is applied next."""


def read_log(store: ObjectStore, table: str, view: View, notes: Notes) -> FoundLog:
    """Read what is whole into `view`. Raises StorageError, UnsupportedProtocolError."""
    files = sort_files(table, store.list(f"{table}/_delta_log"))
    found = FoundLog(table, top=max([*files.commits, *files.checkpoints], default=-1))
    reading = _Reading(store, view, notes, found)
    reading.begin(files)
    for version, commit in _commits(store, files, found.base):
        reading.take(version, commit)
    reading.miss(found.top)
    return found


class _Reading:
    def __init__(self, store: ObjectStore, view: View, notes: Notes, found: FoundLog) -> None:
        self._store = store
        self._view = view
        self._notes = notes
        self._found = found
        self._is_behind = self._is_cut = False
        self.seen = -1
        """The newest version looked at."""

    def begin(self, files: LogFiles) -> None:
        """Load the newest checkpoint that is whole."""
        for version in reversed(files.checkpoints):
            try:
                commit = read_checkpoint(self._store, files.table, version)
                parsed = self._view.parse(commit)
            except (ObjectNotFoundError, *_UNPARSABLE):
                continue
            self._check_protocol(commit)
            self._apply(commit, parsed)
            self._found.base = self.seen = version
            return

    def take(self, version: int, commit: Commit | None) -> None:
        """Apply a commit if it belongs to what was read before; None: it cannot be read."""
        self.miss(version - 1)
        self.seen = version
        parsed = None if commit is None or self._is_cut else self._parsed(commit)
        if commit is not None and parsed is not None and self._fits(commit):
            self._notes.note(commit, is_behind=self._is_behind)
            self._apply(commit, parsed)
            self._found.kept.append(version)
        else:
            self._lose()

    def _parsed(self, commit: Commit) -> Any:
        """None if the state cannot take it."""
        if self._notes.needs_first and self._found.metadata is None:
            kinds = {type(action) for action in commit.actions}
            if not {Metadata, Protocol} <= kinds:
                return None
        self._check_protocol(commit)
        try:
            return self._view.parse(commit)
        except _UNPARSABLE:
            return None

    def _fits(self, commit: Commit) -> bool:
        """Cuts the log if a commit follows another one than is there, or does not fit behind
        damage.
        """
        previous, digest = commit.info.previous, self._found.digest
        is_next = commit.version == self._found.version + 1
        if is_next and previous and digest and previous != digest:
            self._is_cut = True
        elif self._is_behind:
            self._is_cut = not self._notes.fits(commit)
        return not self._is_cut

    def miss(self, version: int) -> None:
        """Versions up to this one that are not there."""
        if version > self.seen:
            self._lose(version - self.seen)
            self.seen = version

    def _lose(self, count: int = 1) -> None:
        if not self._is_behind:
            self._is_behind = True
            self._notes.begin_damage()
        self._found.lost += count

    def _apply(self, commit: Commit, parsed: object) -> None:
        self._view.apply(parsed)
        self._found.digest = commit.digest
        for action in commit.actions:
            if isinstance(action, Metadata):
                self._found.metadata = action

    def _check_protocol(self, commit: Commit) -> None:
        table = self._found.table
        for action in commit.actions:
            if isinstance(action, Protocol):
                check_protocol(action, table, table=table)


def _commits(store: ObjectStore, files: LogFiles, base: int) -> Iterator[tuple[int, Commit | None]]:
    """The listed commits after `base`, in order; None: one that cannot be read."""
    wanted = [version for version in files.commits if version > base]
    for at in range(0, len(wanted), COMMITS_AT_ONCE):
        some = wanted[at : at + COMMITS_AT_ONCE]
        calls = [partial(_read, store, files.table, version) for version in some]
        yield from zip(some, store.together(calls), strict=True)


def _read(store: ObjectStore, table: str, version: int) -> Commit | None:
    path = commit_path(table, version)
    try:
        return decode_commit(store.get(path), version=version, source=path)
    except (CorruptLogError, ObjectNotFoundError):
        return None


def read_commit(store: ObjectStore, table: str, version: int) -> Commit:
    """A commit that was kept. Raises TxnLogError if it has changed since."""
    found = _read(store, table, version)
    if found is None:
        raise TxnLogError(f"{commit_path(table, version)} has changed while it was read.")
    return found
