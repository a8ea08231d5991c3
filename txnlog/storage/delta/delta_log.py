"""The Delta committer and tailing reader of one table's `_delta_log`.

Delta's log protocol is "create version N+1 if it is absent"; `DeltaLog.commit` does exactly that,
and nothing else writes these logs. Three facts determine the code. An error, and even "already
exists", does not show whether our write landed, so both are settled by reading the slot back.
Clean-up frees old slots, so what is found at a slot counts only for a limited time after the head
was confirmed, by the boot clock and by the wall clock; after that, the log is opened again. And the
clocks of a guest that was paused may not show it, so now and then a look shows that the versions
around the head are still there: clean-up deletes the oldest first, so while a version exists, no
later slot was freed.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
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
    Remove,
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
_AHEAD_MAX = 8
"""Commits that are asked for in one round of an object store."""
_FAR_BEHIND = 10_000
"""Commits that a local disk gives in about half a second, in which a log is opened again."""
_OPENS_MAX = 5
_PUTS_MAX = 64
_LOOK_MS = 10_000
"""How long a look at the slots around the head is valid in an object store."""

_stamps = itertools.count(1)


def new_stamp() -> int:
    """A number above all earlier ones in this process: an order that does not depend on clocks."""
    return next(_stamps)


class _Time(NamedTuple):
    """A moment by both clocks."""

    boot_ms: int
    wall_ms: int


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
        self.removed_at = -1
        """The newest version that removed files; of a checkpoint that was read: may have."""
        self._horizons: dict[str, int] = {}
        self._view = view
        self._mark = mark
        self._clock = store.clock
        self._checkpointer = Checkpointer(store, path, self.settings)
        self._confirmed: _Time | None = None
        """Before the request that showed that the view is the log's newest state."""
        self._looked_ms: int | None = None
        self._looked_at = -1
        """The newest version at the last look: what follows it was read or written since."""
        self._last_writer = False
        self._is_ready = False
        self._wins = 0
        self._others_ms: int | None = None
        self._ahead = 1
        """Slots that the next read asks for together."""
        self._beaten_by = -1, b""
        """The version at which a commit of ours was beaten, and what is there: read only once."""

    def __repr__(self) -> str:
        return f"DeltaLog({self.store.url}/{self.path}, version {self.version})"

    @property
    def exists(self) -> bool:
        """Whether the table had a version at the last refresh."""
        return self.version >= 0

    @property
    def likely_current(self) -> bool:
        """Whether a refresh may be unnecessary: the newest commit in memory is ours, or `get_ready`
        was called. Not on a local disk where others write: there a look is cheaper than a conflict.

        A put-if-absent at the next version proves or disproves it, so a decision that ends in a
        commit may rely on it; a decision with another result may not.
        """
        is_likely = (self._last_writer or self._is_ready) and self._is_trusted()
        return is_likely and not (self.store.is_local and self._is_wanted())

    @property
    def is_recent(self) -> bool:
        """Whether the view was the newest state a short time ago: half of the minimum retention."""
        return self._is_trusted()

    def give_way(self) -> None:
        """Before the next commit: wait for a moment if this writer keeps winning, and others have
        committed here recently, or may be trying to.
        """
        is_wanted = self._is_wanted()
        if self.store.is_local and not is_wanted:
            return
        latency_ms, jitter = self.store.latency.ms, random.random()
        wait_ms = give_way_ms(
            wins=self._wins, is_wanted=is_wanted, latency_ms=latency_ms, jitter=jitter
        )
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

        `sure`: also look, in an object store, whether the log still exists around the head (without
        it, it looks every _LOOK_MS only).
        Raises CorruptLogError, LogGapError, UnsupportedProtocolError, ForeignTableError,
        StorageError.
        """
        self._is_ready = False
        while self._is_trusted():
            sent = self._now()
            commits, is_end = self._read_next()
            if not self._is_trusted():
                break
            if commits:
                # Their writers may not have synced them yet.
                self.store.rely_on([commit_path(self.path, each.version) for each in commits])
                self._last_writer = False
                self._meet_others()
                self._take(commits)
            if is_end:
                # On a local disk it costs microseconds, and shows that it was not unmounted.
                is_due = sure or self._must_look() or (self.store.is_local and not commits)
                if not is_due or self._look():
                    self._confirmed = sent
                    return
                if self.exists:
                    self.store.check_folder(f"{self.path}/_delta_log")
                break
            if not self.store.is_local or self._is_far_behind():
                self._catch_up()
                return
            # So many commits are worth the look that a listing would be: whether one is missing.
            sure = True
        self._open()

    def _read_next(self) -> tuple[list[Commit], bool]:
        """The next commits by number, up to _READ_AT_ONCE; and whether the slot after them is
        empty. An error ends it: after the first commit it is met, and raised, by the next call.
        """
        commits: list[Commit] = []
        try:
            while len(commits) < _READ_AT_ONCE:
                # Where several were found, several follow: a round each, and others commit more.
                count = (
                    1 if self.store.is_local else min(max(self._ahead, len(commits)), _AHEAD_MAX)
                )
                next_version = self.version + 1 + len(commits)
                found = self._get_each(range(next_version, next_version + count))
                for version, data in enumerate(found, next_version):
                    if data is None:
                        self._ahead = len(commits) + 1 if len(commits) > 1 else 1
                        return commits, True
                    source = commit_path(self.path, version)
                    commits.append(decode_commit(data, version=version, source=source))
        except TxnLogError:
            if not commits:
                raise
        return commits, False

    def read_ahead(self, commits: int) -> None:
        """The next read asks an object store for so many commits in its first round."""
        self._ahead = max(self._ahead, commits)

    def _get_each(self, versions: Sequence[int]) -> list[bytes | None]:
        """The commits at these slots, None where one is empty."""
        (beaten, data), self._beaten_by = self._beaten_by, (-1, b"")
        known: list[bytes | None] = [data] if beaten == versions[0] else []
        paths = [commit_path(self.path, version) for version in versions[len(known) :]]
        return known + self.store.together([partial(self._get_if_there, path) for path in paths])

    def _is_far_behind(self) -> bool:
        """Whether a checkpoint saves reading very many commits."""
        hint = log_files.read_hint(self.store, self.path)
        return hint is not None and hint.version > self.version + _FAR_BEHIND

    def get_ready(self, *, check_head: bool = True) -> None:
        """Bring the view up to the head for a commit that follows at once, in one round if no other
        process writes here: that commit then needs no refresh, nor requests before its put.

        `check_head`: also where the head is ours, so that most likely nothing follows it. Raises as
        `refresh`.
        """
        if not (self.exists and self.likely_current and self._is_still_head(check_head)):
            self.refresh()
            self._is_ready = self.exists

    def _is_still_head(self, check_head: bool) -> bool:
        """Whether no slot is taken after the newest commit in memory; see `get_ready`."""
        calls: list[Callable[[], bool]] = []
        if check_head:
            calls.append(lambda: not self._is_there(self.version + 1))
        if self._must_look() or (check_head and self.store.is_local):
            calls.append(self._look)
        return all(self.store.together(calls))

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
        self._confirmed = None

    def _now(self) -> _Time:
        return _Time(self._clock.boot_ms(), self._clock.now_ms())

    def _is_trusted(self) -> bool:
        """Whether the view was confirmed a short time ago, by both clocks (D3).

        Each may stand still, or be behind, where the machine was suspended; a wall clock that is
        set forward opens the log again, which costs a listing.
        """
        if self._confirmed is None:
            return False
        now, confirmed = self._now(), self._confirmed
        passed_ms = max(now.boot_ms - confirmed.boot_ms, now.wall_ms - confirmed.wall_ms)
        return passed_ms <= self.settings.trust_ms

    def _must_look(self) -> bool:
        """Whether the last look is too old.

        By the boot clock. A guest that is paused sooner after a look, and whose clocks do not show
        it, may begin a branch of its own; the next look finds that.
        """
        looked_ms = self._looked_ms
        return looked_ms is None or self._clock.boot_ms() - looked_ms > _LOOK_MS

    def _look(self) -> bool:
        """Whether the log still has its newest versions, and no commit is missing.

        Looks at the newest version of the last look: if that is gone, clean-up may have freed the
        slots of all that was read or written since; at what was, which a log that was restored
        meanwhile may lack; and at the slot after the next, which is taken before the next one only
        where a commit is missing.
        """
        sent_ms = self._clock.boot_ms()
        if not self.exists:
            files = log_files.list_log(self.store, self.path)
            if files.commits or files.checkpoints:
                return False
        known, beyond = range(max(self._looked_at, 0), self.version + 1), self.version + 2
        if len(known) > _READ_AT_ONCE and not self.store.is_local:
            found = set(log_files.list_log(self.store, self.path, since=known[0]).commits)
        else:
            looks = {slot: partial(self._is_there, slot) for slot in (*known, beyond)}
            are_there = self.store.together(list(looks.values()))
            found = {slot for slot, is_there in zip(looks, are_there, strict=True) if is_there}
        if not found.issuperset(known):
            return False
        if beyond in found and not self._is_there(self.version + 1):
            return False
        self._looked_ms, self._looked_at = sent_ms, self.version
        return True

    def _catch_up(self) -> None:
        """Far behind: list once, then get the missing commits."""
        sent = self._now()
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
        if not (self._is_trusted() and self._look()):
            self._open()
            return
        if commits:
            self.store.rely_on([commit_path(self.path, commit.version) for commit in commits])
        self._take(commits)
        self._confirmed = sent

    def _open(self) -> None:
        """Start from the newest intact checkpoint; the listing confirms the head."""
        for attempt in range(_OPENS_MAX):
            sent = self._now()
            files = log_files.list_log(self.store, self.path)
            try:
                self._load(files)
            except ObjectNotFoundError:
                # Clean-up removed a listed file before it was read: a newer checkpoint exists.
                self.store.back_off(attempt + 3)
                continue
            self._confirmed = sent
            if self._is_trusted():
                self._looked_ms, self._looked_at = sent.boot_ms, self.version
                return
        raise LogGapError(
            f"{self.store.url}/{self.path}/_delta_log: files that were listed could not be read "
            f"in {_OPENS_MAX} tries; commits after the newest checkpoint are missing. "
            f"{RESTORE_ALL}",
            file=f"{self.path}/_delta_log",
        )

    def _load(self, files: LogFiles) -> None:
        """Replace the view; it is unchanged if a file cannot be read."""
        self._confirmed = None
        self._beaten_by = -1, b""
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
            self.removed_at = max(self.removed_at, after)
            relied_on.insert(0, checkpoint_path(self.path, after))
            check_checkpoint(self.store, self.path, checkpoint, commits, is_head=is_head)
            commits = [checkpoint, *(commit for commit in commits if commit.version > after)]
        check_chain(self.store, self.path, "", commits)
        self._check_not_shorter(commits)
        parsed = [self._parse(commit) for commit in commits]
        if relied_on:
            self.store.rely_on(relied_on)
        self._view.reset()
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
        path = commit_path(self.path, self.version)
        if self.exists and (not commits or commits[-1].version < self.version):
            raise LogGapError(
                f"{self.store.url}/{path}: this commit was read before and is gone, and the log "
                f"ends before it. {RESTORE_ALL} If the table was created again on "
                "purpose, restart this process.",
                file=path,
            )
        for commit in commits:
            is_known = commit.version == self.version and self.digest
            if is_known and commit.digest != self.digest:
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
        confirmed, self._confirmed = self._confirmed, None
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
            elif isinstance(action, Remove):
                self.removed_at = commit.version
        self._view.apply(parsed)
        self.version = commit.version
        self.digest = commit.digest
        if self.settings.watch is not None:
            self.settings.watch(self.path, commit)
        self._confirmed = confirmed

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
    ) -> Outcome:
        """Create version `self.version + 1`, if it is absent, based on the last refresh.

        Conflict: refresh, decide again. Unknown: refresh, check whether the effect is there, and
        only then decide again. On Committed the view already has the commit. Raises
        NothingWrittenError if nothing can have been written (no permission, no space, ...),
        InvalidCommitError for a commit that could not be read back.
        """
        if self._confirmed is None:
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
        sent = self._now()
        if self._is_late(version):
            return Conflict(version)
        landed = self._put_until_settled(path, data, info.write_id)
        if landed is None or not self._is_trusted():
            # Late: the slot, or what is found in it, may have been freed before.
            self.invalidate()
            return Unknown(info.write_id)
        if not landed:
            self._meet_others()
            return Conflict(version)
        self._wins += 1
        self._apply(commit, parsed)
        self._confirmed, self._last_writer = sent, True
        self._checkpointer.after_commit(commit, sent.boot_ms)
        return Committed(version)

    def _is_late(self, version: int) -> bool:
        """Whether there is no use in writing this version, as far as one look tells."""
        is_gone = self.store.is_local and self.exists and not self._is_there(self.version)
        if is_gone or (self._must_look() and not self._look()):
            self._looked_ms = None
            return True
        if self.store.is_local and self._is_wanted() and self._is_there(version):
            self._meet_others()
            return True
        return False

    def _is_there(self, version: int) -> bool:
        return self.store.exists(commit_path(self.path, version))

    def _encode(
        self, info: CommitInfo, actions: Sequence[Action], path: str
    ) -> tuple[bytes, Commit, Any]:
        """The bytes of a commit, parsed again (D54): only what can be read back is written."""
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
                there = self.store.get(path)
                found = decode_commit(there, version=0, source=path)
                self.store.rely_on([path])
                if found.info.write_id == write_id:
                    self.store.retries.worked(self.path)
                    return True
                self._beaten_by = self.version + 1, there
                return False
            except NotSyncedError:
                return None
            except (ObjectNotFoundError, StorageError, OutOfMemoryError):
                # An empty slot proves nothing: a put under way may still land in it.
                pass
            if self._clock.boot_ms() > give_up_ms or not self._is_trusted():
                return None
            self.store.back_off(attempt + 3)
        return None

    def _say_retried(self, error: TxnLogError) -> None:
        up_to_s = self.settings.commit_timeout_ms / 1000
        self.store.retries.failed(
            self.path, f"A commit to {self.path}", error, until=f"for up to {up_to_s:g} s"
        )
