"""The Delta committer and tailing reader of one table's `_delta_log`.

Delta's log protocol is "create version N+1 if it is absent"; `DeltaLog.commit` does exactly that,
and nothing else writes these logs. Three facts determine the code. An error, and even "already
exists", does not show whether our write landed, so both are settled by reading the slot back.
Clean-up frees old slots, so what is read at a slot counts only for a limited time after the head
was confirmed; after that, the log is opened again. And the clocks of a paused machine may stop, so
what was read is checked against the version before it: clean-up deletes the oldest first, so while
that version exists, no later slot was freed.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Protocol as Interface

import msgspec

from txnlog.errors import (
    RESTORE_ALL,
    RESTORE_FILE,
    CorruptLogError,
    ForeignTableError,
    InvalidCommitError,
    LogGapError,
    NothingWrittenError,
    NotSyncedError,
    ObjectNotFoundError,
    OutOfMemoryError,
    StorageError,
    TxnLogError,
)
from txnlog.protocol.contention import give_way_ms, is_wanted
from txnlog.protocol.txn_memory import is_horizon
from txnlog.storage.delta import log_files
from txnlog.storage.delta.actions import (
    ENGINE,
    Action,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Txn,
    decode_commit,
    encode_commit,
)
from txnlog.storage.delta.chain import check_chain, check_checkpoint
from txnlog.storage.delta.checkpoint_reader import read_newest
from txnlog.storage.delta.checkpointer import Checkpointer
from txnlog.storage.delta.log_files import LogFiles, checkpoint_path, commit_path
from txnlog.storage.delta.log_settings import LogSettings as LogSettings
from txnlog.storage.delta.table_protocol import check_protocol
from txnlog.storage.store.objects import ObjectStore

_READ_AT_ONCE = 32
"""Commits that are read by number before they are applied; a log in an object store that has more
is listed, so that the others are fetched together."""
_FAR_BEHIND = 10_000
"""Commits that a local disk gives in about half a second, in which a log is opened again."""
_OPENS_MAX = 5
_PUTS_MAX = 64
_CHECK_SLOTS_MS = 10_000
"""How long a check of the slots around the head is valid in an object store."""
_LOCAL_CHECK_SLOTS_MS = 1_000
"""The same on a local disk, for the slot after the next one: only manual changes leave a hole."""

_stamps = itertools.count(1)


def new_stamp() -> int:
    """A number above all earlier ones in this process: an order that does not depend on clocks."""
    return next(_stamps)


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another process's commit is in the slot; ours has not landed and will not."""

    version: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """The commit may have landed, or may still land; read the log and check for its effect."""

    write_id: str


Outcome = Committed | Conflict | Unknown


class View(Interface):
    """A table's state in memory: gets every commit once, in order."""

    def reset(self) -> None:
        """Drop all state: a checkpoint follows."""

    def parse(self, commit: Commit) -> Any:
        """Parse one commit, or a checkpoint as one. Changes nothing.

        Raises for an invalid commit; commits of this process are parsed before they are written.
        """

    def apply(self, parsed: Any) -> None:
        """Apply the result of `parse`."""


class DeltaLog:
    """One table's log: `refresh` tails it into a View, `commit` appends to it.

    `mark` is a table property that a foreign table of this name does not have. Not thread-safe: one
    thread at a time. The constructor does no I/O.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        view: View,
        *,
        settings: LogSettings | None = None,
        mark: str | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self.settings = settings or LogSettings()
        self.version = -1
        self.metadata: Metadata | None = None
        self.digest = ""
        """Digest of the newest commit's bytes; "" if unknown."""
        self.forgotten_at = 0
        """The stamp of when this process last read that the table forgot markers or producers.

        An effect that is missing from then on may have been there: earlier reads must be repeated.
        """
        self._horizons: dict[str, int] = {}
        self._view = view
        self._mark = mark
        self._clock = store.clock
        self._checkpointer = Checkpointer(store, path, self.settings)
        self._confirmed_ms: int | None = None
        self._checked_ms: int | None = None
        self._saw_no_hole_ms: int | None = None
        self._proved_wall_ms: int | None = None
        """By the wall clock, before the last request that showed that no slot from the head on had
        been freed; see `_is_dated`."""
        self._dated_from: int | None = None
        """The version before the first commit of ours since the last look: dates proved it."""
        self._loads = 0
        self._unproved: int | None = None
        """The version before the first commit of ours whose place is not proved yet (D87)."""
        self._last_writer = False
        self._is_ready = False
        self._wins = 0
        self._others_ms: int | None = None

    def __repr__(self) -> str:
        return f"DeltaLog({self.store.url}/{self.path}, version {self.version})"

    @property
    def exists(self) -> bool:
        """Whether the table had a version at the last refresh."""
        return self.version >= 0

    @property
    def is_head_ours(self) -> bool:
        """Whether the newest commit in memory is this object's own."""
        return self._last_writer

    @property
    def likely_current(self) -> bool:
        """Whether a refresh may be unnecessary: the newest commit in memory is ours, or `get_ready`
        was called. Not on a local disk where others write: there a look is cheaper than a conflict.

        A put-if-absent at the next version proves or disproves it, so a decision that ends in a
        commit may rely on it; a decision with another result may not.
        """
        is_likely = (self._last_writer or self._is_ready) and self._trusted()
        return is_likely and not (self.store.is_local and self._is_wanted())

    def give_way(self) -> None:
        """Before the next commit: wait for a moment if other writers have
        committed here recently and this one keeps winning.
        """
        if not self._is_wanted():
            return
        latency_ms = self.store.latency.ms
        wait_ms = give_way_ms(wins=self._wins, latency_ms=latency_ms, jitter=random.random())
        if wait_ms:
            self._clock.sleep_ms(wait_ms)
            self._wins = 0
            self._last_writer = False

    def _is_wanted(self) -> bool:
        """Whether other processes have committed here recently."""
        since_ms = None if self._others_ms is None else self._clock.boot_ms() - self._others_ms
        return is_wanted(since_ms, latency_ms=self.store.latency.ms)

    def _meet_others(self) -> None:
        """Another process has committed since our last commit."""
        self._wins = 0
        self._others_ms = self._clock.boot_ms()

    # -- reading ---------------------------------------------------------------------------------

    def refresh(self, *, sure: bool = False) -> None:
        """Bring the view up to the head of the log; a missing table has version -1.

        `sure`: also check, in an object store, that the log still exists around the head (without
        it, that request is made every _CHECK_SLOTS_MS only).
        Raises CorruptLogError, LogGapError, UnsupportedProtocolError, ForeignTableError,
        StorageError.
        """
        is_proved = self._unproved is None
        base = self._last_seen(self.version)
        self._is_ready = False
        while self._trusted():
            sent_ms, wall_ms = self._clock.boot_ms(), self._clock.now_ms()
            commits, is_end = self._read_next()
            if not self._trusted():
                break
            if commits:
                if not is_proved and not self.store.exists(commit_path(self.path, base)):
                    break
                is_proved, self._unproved = True, None
                # Their writers may not have synced them yet.
                self.store.rely_on([commit_path(self.path, each.version) for each in commits])
                self._last_writer = False
                self._meet_others()
                self._take(commits)
            if is_end:
                if self._is_at_head(base, wall_ms, sure=sure or not is_proved):
                    self._confirmed_ms = sent_ms
                    self._unproved = None
                    return
                if self.exists:
                    self.store.check_folder(f"{self.path}/_delta_log")
                break
            if not self.store.is_local or self._is_far_behind():
                self._catch_up(base)
                return
            # So many commits are worth the check that a listing would be: whether one is missing.
            sure = True
        self._open()

    def _read_next(self) -> tuple[list[Commit], bool]:
        """The next commits by number, up to _READ_AT_ONCE; and whether the slot after them is
        empty. An error ends it: after the first commit it is met, and raised, by the next call.
        """
        commits: list[Commit] = []
        try:
            while len(commits) < _READ_AT_ONCE:
                version = self.version + 1 + len(commits)
                source = commit_path(self.path, version)
                data = self._get_if_there(source)
                if data is None:
                    return commits, True
                commits.append(decode_commit(data, version=version, source=source))
        except TxnLogError:
            if not commits:
                raise
        return commits, False

    def _is_far_behind(self) -> bool:
        """Whether a checkpoint saves reading very many commits."""
        hint = log_files.read_hint(self.store, self.path)
        return hint is not None and hint.version > self.version + _FAR_BEHIND

    def get_ready(self, *, check_head: bool = True) -> None:
        """Bring the view up to the head for a commit that follows at once, in one round if no other
        process writes here: that commit then needs no refresh, nor requests before its put.

        `check_head`: also where the head is ours, so that most likely nothing follows it. That
        nothing was freed meanwhile is proved after the put only. Raises as `refresh`.
        """
        if not (self.exists and self.likely_current and self._is_still_head(check_head)):
            self.refresh()
            self._is_ready = self.exists

    def _is_still_head(self, check_head: bool) -> bool:
        """Whether no slot is taken after the newest commit in memory; see `get_ready`."""
        if self.store.is_local:
            # Where that commit is, the folder is, too: it was not unmounted.
            return not check_head or (
                not self._is_there(self.version + 1) and self._is_there(self.version)
            )
        is_due = self._must_look_for_hole()
        slots = [self.version + 1] * check_head + [self.version + 2] * is_due
        if any(self.store.together([partial(self._is_there, slot) for slot in slots])):
            return False
        if is_due:
            self._saw_no_hole_ms = self._clock.boot_ms()
        return True

    def _get_if_there(self, path: str) -> bytes | None:
        """None: it does not exist. On a local disk the question costs a third of the error."""
        if self.store.is_local and not self.store.exists(path):
            return None
        try:
            return self.store.get(path)
        except ObjectNotFoundError:
            return None

    def invalidate(self) -> None:
        """Distrust the state in memory: the next refresh opens the log again."""
        self._confirmed_ms = None

    def _trusted(self) -> bool:
        confirmed_ms = self._confirmed_ms
        if confirmed_ms is None:
            return False
        return self._clock.boot_ms() - confirmed_ms <= self.settings.trust_ms

    def _is_at_head(self, base: int, wall_ms: int, *, sure: bool) -> bool:
        """Whether the commits read after version `base` belong to the log, and no more follow.

        `wall_ms`: the wall clock before the request that found the next slot empty. That `base` is
        still there shows that the slot was never freed until then; it may be freed right after.
        False if `base` is gone: the slots after it may have been freed, and may hold stray files.
        False if the slot after the next one is taken and the next one is not: a commit is missing.
        """
        is_due = sure or self._must_check_slots()
        if base < 0 or not (is_due or self.store.is_local):
            return True
        slots = [base, self.version + 2] if is_due else [base]
        found = self.store.together(
            [partial(self.store.exists, commit_path(self.path, slot)) for slot in slots]
        )
        if not found[0]:
            return False
        self._note_proof(wall_ms)
        if not is_due:
            return True
        self._checked_ms = self._clock.boot_ms()
        return not found[1] or self.store.exists(commit_path(self.path, self.version + 1))

    def _must_check_slots(self) -> bool:
        """Whether the last check of the slots around the head is too old."""
        return self._is_past(self._checked_ms)

    def _must_look_for_hole(self) -> bool:
        """The same before a commit, whose own put will show whether the log still exists."""
        return self._must_check_slots() and self._is_past(self._saw_no_hole_ms)

    def _is_past(self, checked_ms: int | None) -> bool:
        if checked_ms is None:
            return True
        again_ms = _LOCAL_CHECK_SLOTS_MS if self.store.is_local else _CHECK_SLOTS_MS
        return self._clock.boot_ms() - checked_ms > again_ms

    def _catch_up(self, base: int) -> None:
        """Far behind: list once, then get the missing commits. `base` as in `refresh`."""
        sent_ms, wall_ms = self._clock.boot_ms(), self._clock.now_ms()
        files = log_files.list_log(self.store, self.path, since=self.version)
        newest = files.newest_checkpoint
        if newest is not None and newest > self.version + 10 * _READ_AT_ONCE:
            self._open()
            return
        try:
            commits = self._fetch(files, self.version)
        except ObjectNotFoundError:
            # Clean-up removed a listed commit: the state in memory is older than its retention.
            self._open()
            return
        if not self._trusted() or not (base < 0 or self.store.exists(commit_path(self.path, base))):
            self._open()
            return
        if commits:
            self.store.rely_on([commit_path(self.path, commit.version) for commit in commits])
        self._unproved = None
        self._take(commits)
        self._confirmed_ms = self._checked_ms = sent_ms
        self._note_proof(wall_ms)

    def _open(self) -> None:
        """Start from the newest intact checkpoint; the listing confirms the head."""
        for attempt in range(_OPENS_MAX):
            sent_ms, wall_ms = self._clock.boot_ms(), self._clock.now_ms()
            files = log_files.list_log(self.store, self.path)
            try:
                self._load(files)
            except ObjectNotFoundError:
                # Clean-up removed a listed file before it was read: a newer checkpoint exists.
                self.store.back_off(attempt + 3)
                continue
            if self._clock.boot_ms() - sent_ms <= self.settings.trust_ms:
                self._confirmed_ms = self._checked_ms = sent_ms
                self._note_proof(wall_ms)
                return
        raise LogGapError(
            f"{self.store.url}/{self.path}/_delta_log: files that were listed could not be read "
            f"in {_OPENS_MAX} tries; commits after the newest checkpoint are missing. "
            f"{RESTORE_ALL}",
            file=f"{self.path}/_delta_log",
        )

    def _load(self, files: LogFiles) -> None:
        """Replace the view; it is unchanged if a file cannot be read."""
        self._confirmed_ms = None
        if self.exists and not files.commits and files.newest_checkpoint is None:
            self.store.check_folder(f"{self.path}/_delta_log")
            raise LogGapError(
                f"{self.store.url}/{self.path}/_delta_log: no file of this log is left, and "
                f"version {self.version} was there. {RESTORE_ALL}",
                file=f"{self.path}/_delta_log",
            )
        files, checkpoint, commits = self._read_files(files)
        after = -1 if checkpoint is None else checkpoint.version
        is_head = not commits or commits[-1].version <= after
        relied_on = [commit_path(self.path, one.version) for one in commits if one.version > after]
        if checkpoint is not None:
            relied_on.insert(0, checkpoint_path(self.path, after))
            check_checkpoint(self.store, self.path, checkpoint, commits, is_head=is_head)
            commits = [checkpoint, *(commit for commit in commits if commit.version > after)]
        check_chain(self.store, self.path, "", commits)
        self._check_not_shorter(commits)
        parsed = [self._parse(commit) for commit in commits]
        if relied_on:
            self.store.rely_on(relied_on)
        self._view.reset()
        self._loads += 1
        self._unproved = None
        self.version = -1
        self.metadata = None
        self.digest = ""
        for commit, found in zip(commits, parsed, strict=True):
            self._apply(commit, found)

    def _read_files(self, files: LogFiles) -> tuple[LogFiles, Commit | None, list[Commit]]:
        """As `read_newest`, and the commits from the checkpoint's version on, read beside it."""
        newest = files.newest_checkpoint
        if newest is None:
            files, checkpoint = read_newest(self.store, files)
            return files, checkpoint, self._fetch(files, -1)
        calls: list[Callable[[], Any]] = [
            partial(read_newest, self.store, files),
            partial(self._fetch, files, max(newest - 1, -1)),
        ]
        (files, checkpoint), commits = self.store.together(calls)
        if checkpoint is None or checkpoint.version != newest:
            after = -1 if checkpoint is None else checkpoint.version
            commits = self._fetch(files, max(after - 1, -1))
        return files, checkpoint, commits

    def _check_not_shorter(self, commits: Sequence[Commit]) -> None:
        """Raise unless a log that is opened again still has the commit that was its newest."""
        # A commit of ours that is not proved may never have been in the log.
        version = self.version if self._unproved is None else self._unproved
        path = commit_path(self.path, version)
        if version >= 0 and (not commits or commits[-1].version < version):
            raise LogGapError(
                f"{self.store.url}/{path}: this commit was read before and is gone, and the log "
                f"ends before it. {RESTORE_ALL} If the table was created again on "
                "purpose, restart this process.",
                file=path,
            )
        for commit in commits:
            is_known = commit.version == self.version and self._unproved is None
            if is_known and self.digest and commit.digest != self.digest:
                raise CorruptLogError(
                    f"{self.store.url}/{path}: this commit differs from the one this process read "
                    "there before: an older copy was restored, or it was lost and written again. "
                    f"{RESTORE_ALL} If the table was created again on "
                    "purpose, restart this process.",
                    file=path,
                )

    def _fetch(self, files: LogFiles, after: int) -> list[Commit]:
        """The listed commits after a version. Raises LogGapError for a hole in the middle."""
        wanted = [version for version in files.commits if version > after]
        if not wanted:
            return []
        # A listing is no snapshot: commits that it skipped below its newest one must exist, except
        # the one at the checkpoint's version.
        first = after + 1
        if wanted[0] == first + 1 and first in files.checkpoints:
            first = wanted[0]
        versions = range(first, wanted[-1] + 1)
        listed = set(wanted)
        paths = [commit_path(self.path, version) for version in versions]
        try:
            blobs = self.store.get_many(paths)
        except ObjectNotFoundError as error:
            missing = str(error.context.get("path", ""))
            if missing and int(missing[-25:-5]) not in listed:
                again = log_files.list_log(self.store, self.path)
                if (again.newest_checkpoint or -1) < int(missing[-25:-5]):
                    raise LogGapError(
                        f"{self.store.url}/{missing}: this commit is missing in the middle of the "
                        f"log. {RESTORE_FILE}",
                        file=missing,
                    ) from error
            raise
        return [
            decode_commit(data, version=version, source=path)
            for version, path, data in zip(versions, paths, blobs, strict=True)
        ]

    def _take(self, commits: Sequence[Commit]) -> None:
        """Apply commits that follow the head."""
        check_chain(self.store, self.path, self.digest, commits)
        for commit in commits:
            self._apply(commit, self._parse(commit))

    def _parse(self, commit: Commit) -> Any:
        protocol = None
        for action in commit.actions:
            if isinstance(action, Protocol):
                protocol = action
            elif isinstance(action, Metadata):
                self._check_ours(action)
        if protocol is not None:
            check_protocol(protocol, f"{self.store.url}/{self.path}", table=self.path)
        try:
            return self._view.parse(commit)
        except TxnLogError:
            raise
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise CorruptLogError(
                f"{self.store.url}/{commit_path(self.path, commit.version)}: this version cannot "
                f"be parsed ({type(error).__name__}: {error}). It was not written by txnlog, "
                f"or is damaged. {RESTORE_FILE}",
                file=commit_path(self.path, commit.version),
            ) from error

    def _apply(self, commit: Commit, parsed: Any) -> None:
        # Applied in part, as after an interrupt, it must not be built on: then the log is opened.
        confirmed_ms, self._confirmed_ms = self._confirmed_ms, None
        for action in commit.actions:
            if isinstance(action, Metadata):
                self.metadata = action
            elif (
                isinstance(action, Txn)
                and is_horizon(action.app_id)
                and self._horizons.get(action.app_id) != action.version
            ):
                self._horizons[action.app_id] = action.version
                self.forgotten_at = new_stamp()
        self._view.apply(parsed)
        self.version = commit.version
        self.digest = commit.digest
        self._confirmed_ms = confirmed_ms

    def _check_ours(self, metadata: Metadata) -> None:
        if self._mark is not None and self._mark not in metadata.configuration:
            raise ForeignTableError(
                f"{self.store.url}/{self.path} is a Delta table of another tool: it has no "
                f"property {self._mark!r}. Choose another name for the topic, or another root.",
                table=self.path,
            )

    # -- writing ---------------------------------------------------------------------------------

    def commit(
        self,
        actions: Sequence[Action],
        *,
        operation: str,
        parameters: dict[str, str] | None = None,
        beside: Sequence[Callable[[], object]] = (),
        prove_later: bool = False,
    ) -> Outcome:
        """Create version `self.version + 1`, if it is absent, based on the last refresh.

        `beside` are calls that may be made when the commit has landed, together with the check of
        the previous version (D52). They must not raise, nor use this log. With `prove_later` that
        check is deferred to the next use of this log: for a commit on which nothing else depends.
        Conflict: refresh, decide again. Unknown: refresh, check whether the effect is there, and
        only then decide again. On Committed the view already has the commit. Raises
        NothingWrittenError if nothing can have been written (no permission, no space, ...),
        InvalidCommitError for a commit that could not be read back.
        """
        if self._confirmed_ms is None:
            raise RuntimeError(f"{self!r}: commit before refresh")
        version = self.version + 1
        path = commit_path(self.path, version)
        info = CommitInfo(
            self._clock.now_ms(),
            operation,
            ENGINE,
            parameters or {},
            write_id=os.urandom(16).hex(),
            previous=self.digest,
        )
        data, commit, parsed = self._encode(info, actions, path)
        self._last_writer = self._is_ready = False
        if commit.version == 0:
            self.store.make_folder(f"{self.path}/_delta_log")
        sent_ms = self._clock.boot_ms()
        if self._is_late(version):
            return Conflict(version)
        landed = self._put_until_settled(path, data, info.write_id)
        self._wins += 1 if landed else 0
        if landed and prove_later and self._may_prove_later(version) and self._trusted():
            self._unproved = version - 1 if self._unproved is None else self._unproved
            self._apply(commit, parsed)
            self._confirmed_ms, self._last_writer = sent_ms, True
            return Committed(version)
        if landed is None or not self._trusted() or not self._follows(version, beside):
            self.invalidate()
            return Unknown(info.write_id)
        self._unproved = None
        if not landed:
            self._meet_others()
            return Conflict(version)
        self._apply(commit, parsed)
        self._confirmed_ms = self._checked_ms = sent_ms
        self._last_writer = True
        self._note_proof(info.timestamp, is_dated=self._dated_from is not None)
        self._checkpointer.after_commit(commit, sent_ms)
        return Committed(version)

    def _is_late(self, version: int) -> bool:
        """Whether there is no use in writing this version, as far as one look tells."""
        if self._must_look_for_hole() and self._is_there(version + 1):
            # A refresh shows whether others were faster, or the commit of this version is missing.
            self._checked_ms = None
            return True
        if self.store.is_local and self._is_wanted() and self._is_there(version):
            self._meet_others()
            return True
        return False

    def _may_prove_later(self, version: int) -> bool:
        """Not where a checkpoint may follow, for the first commit of a table, or what is proved."""
        is_checkpoint = version % self.settings.checkpoint_interval == 0
        return not (is_checkpoint or self._is_dated())

    def prove(self) -> bool:
        """Make the check that `prove_later` deferred; False: our commit may not be in the log.

        Then `refresh` opens the log again.
        """
        if self._unproved is None:
            return True
        is_proved = self._follows(self.version)
        if is_proved:
            self._unproved = None
        else:
            self.invalidate()
        return is_proved

    def proof(self) -> Callable[[], bool]:
        """`prove`, for a call later on: False also where the log was opened again till then."""
        loads = self._loads
        return lambda: self._loads == loads and self.prove()

    def _is_there(self, version: int) -> bool:
        return self.store.exists(commit_path(self.path, version))

    def _encode(
        self, info: CommitInfo, actions: Sequence[Action], path: str
    ) -> tuple[bytes, Commit, Any]:
        """The bytes of a commit, and their parsed form: only what can be read back is written."""
        try:
            data = encode_commit(info, actions)
            commit = decode_commit(data, version=self.version + 1, source=path)
            return data, commit, self._parse(commit)
        except (
            CorruptLogError,
            msgspec.MsgspecError,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:
            raise InvalidCommitError(
                f"{self.path}: a commit ({info.operation}) was not written, as no process could "
                f"read it back: {error} Nothing has changed. An argument has a wrong type or value "
                "that txnlog failed to refuse; please report it.",
                table=self.path,
            ) from error

    def _follows(self, version: int, beside: Sequence[Callable[[], object]] = ()) -> bool:
        """Whether the slot of this version, and what was read from it, still belongs to the log.

        `beside` as in `commit`.

        This process may have been paused, with all its clocks, since the refresh: then our commit
        may be in a freed slot, or a stray file in the slot that ours was read from.
        """
        base = self._last_seen(version - 1)
        try:
            if version > 0:
                if self._is_dated():
                    self.store.together(beside)
                    self._dated_from = base
                    return True
                calls: list[Callable[[], object]] = [partial(self._is_there, base), *beside]
                is_there = self.store.together(calls)[0] if beside else self._is_there(base)
                self._dated_from = None
                return is_there is True
            files = log_files.list_whole_log(self.store, self.path)
        except (StorageError, OutOfMemoryError):
            return False
        return not files.checkpoints and files.commits == list(range(len(files.commits)))

    def _last_seen(self, version: int) -> int:
        """The newest version up to this one that was read or looked at: later ones are ours.

        A look at one of ours would not show that the log before it is gone.
        """
        found = self._unproved if self._dated_from is None else self._dated_from
        return version if found is None else found

    def _note_proof(self, wall_ms: int, *, is_dated: bool = False) -> None:
        """No slot from the head on had been freed by a request after `wall_ms`; see `_is_dated`.

        Nothing is noted where the wall clock was set back meanwhile: the request may be older. Nor
        for what dates prove: a writer that is alone would never look again.
        """
        if not is_dated:
            self._proved_wall_ms = wall_ms if wall_ms <= self._clock.now_ms() else None
            self._dated_from = None

    def _is_dated(self) -> bool:
        """Whether the dates of our requests show what a look at the slot before would (D129).

        The store refuses a request that is dated more than 15 minutes from its own time. So by its
        time, no more than `dated_ms` and half an hour are between the last proof and a request that
        it has just accepted, however long this process was paused: too little to free a slot. Not
        for a commit that is left to be proved: no request needs to have been accepted since.
        """
        proved_ms = self._proved_wall_ms
        if proved_ms is None or self._unproved is not None:
            return False
        if not self.store.refuses_skewed_requests:
            return False
        return 0 <= self._clock.now_ms() - proved_ms <= self.settings.dated_ms

    def _put_until_settled(self, path: str, data: bytes, write_id: str) -> bool | None:
        """Put the same bytes until it is known whose commit is in the slot; None: still unknown."""
        give_up_ms = self._clock.boot_ms() + self.settings.commit_timeout_ms
        doubtful = False
        for attempt in range(_PUTS_MAX):
            sent_ms = self._clock.boot_ms()
            try:
                is_created = self.store.put_if_absent(path, data)
                self.store.latency.record(self._clock.boot_ms() - sent_ms)
                if is_created:
                    self.store.retries.worked(self.path)
                    return True
            except NotSyncedError:
                return None
            except (NothingWrittenError, CorruptLogError):
                if doubtful:
                    return None
                raise
            except (StorageError, OutOfMemoryError) as error:
                self._say_retried(error)
            # From here on our put may still be under way, even if the store replied "exists".
            doubtful = True
            try:
                found = decode_commit(self.store.get(path), version=0, source=path)
                self.store.rely_on([path])
                is_ours = found.info.write_id == write_id
                if is_ours:
                    self.store.retries.worked(self.path)
                return is_ours
            except NotSyncedError:
                return None
            except (ObjectNotFoundError, StorageError, OutOfMemoryError):
                # An empty slot proves nothing: a put under way may still land in it.
                pass
            if self._clock.boot_ms() > give_up_ms or not self._trusted():
                return None
            self.store.back_off(attempt + 3)
        return None

    def _say_retried(self, error: TxnLogError) -> None:
        up_to_s = self.settings.commit_timeout_ms / 1000
        self.store.retries.failed(
            self.path, f"A commit to {self.path}", error, until=f"for up to {up_to_s:g} s"
        )
