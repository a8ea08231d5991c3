"""Our Delta committer and tailing reader: one table's `_delta_log`, one version after the other.

Delta's log protocol is "create version N+1 if it is absent"; `DeltaLog.commit` does exactly that,
and nothing else writes these logs. Two facts shape the code. An error, and even "already exists",
says nothing about whether our write landed, so both are settled by reading the slot back. And
clean-up frees old slots, so what is found at a slot counts only for a limited time after the head
was last known for sure (the confirmed head); later than that, the log is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from txnlog.clock import backoff_ms
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    ForeignTableError,
    LogGapError,
    NothingWrittenError,
    ObjectNotFoundError,
    StorageError,
    TxnLogError,
    UnsupportedProtocolError,
)
from txnlog.storage import checkpoints, log_files
from txnlog.storage.actions import (
    ENGINE,
    Action,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    decode_commit,
    encode_commit,
)
from txnlog.storage.log_files import LogFiles, commit_path
from txnlog.storage.objects import ObjectStore

READER_VERSION = 1
WRITER_VERSION = 2
PROTOCOL = Protocol(READER_VERSION, WRITER_VERSION)

LOG_RETENTION_MS_MIN = 3_600_000
_TAIL_BEFORE_LISTING = 32
_OPENS_MAX = 5
_PUTS_MAX = 64


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else's commit is in the slot; ours never was and never will be."""

    version: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """The commit may have landed, or may yet; read the log and ask whether its effect is there."""

    write_id: str


Outcome = Committed | Conflict | Unknown


class View(Interface):
    """What a table means: fed every commit once, in order."""

    def reset(self) -> None:
        """Forget everything: a checkpoint follows."""

    def apply(self, commit: Commit) -> None:
        """Take in one commit, or a checkpoint in the shape of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How a log is kept. `trust_ms` is half the shortest log retention there may ever be.

    checkpoint_mode: "background" (a thread), "inline" (before commit returns) or "off".
    """

    checkpoint_interval: int = 100
    checkpoint_mode: str = "background"
    log_retention_ms: int = 86_400_000
    trust_ms: int = LOG_RETENTION_MS_MIN // 2
    commit_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if self.log_retention_ms < 2 * self.trust_ms:
            raise ConfigError(
                f"log_retention_ms={self.log_retention_ms} is shorter than twice "
                f"trust_ms={self.trust_ms}: others would still believe what clean-up removes. "
                "Keep logs longer.",
                log_retention_ms=self.log_retention_ms,
            )


class DeltaLog:
    """One table's log: `refresh` tails it into a View, `commit` appends to it.

    `mark` is a table property that a table of somebody else under this name would not have. Not
    thread-safe: one thread at a time. The constructor does no I/O.
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
        self.cleaned_ms: int | None = None
        """By the boot clock: when this process last looked for log files to remove."""
        self.covered: checkpoints.Covered | None = None
        self._view = view
        self._mark = mark
        self._clock = store.clock
        self._confirmed_ms: int | None = None
        self._last_writer = False

    def __repr__(self) -> str:
        return f"DeltaLog({self.store.url}/{self.path}, version {self.version})"

    @property
    def exists(self) -> bool:
        """Whether the table had a version at the last refresh."""
        return self.version >= 0

    @property
    def likely_current(self) -> bool:
        """The newest commit we know of is ours: a guess that no refresh is needed first.

        A put-if-absent after our version proves the guess right or wrong, so a decision that ends
        in a commit may be made on it; one that ends in anything else may not.
        """
        return self._last_writer and self._trusted()

    # -- reading ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Bring the view up to the head of the log; a table that is not there has version -1.

        Raises CorruptLogError, LogGapError, UnsupportedProtocolError, ForeignTableError,
        StorageError.
        """
        for _ in range(_TAIL_BEFORE_LISTING):
            if not self._trusted():
                self._open()
                return
            sent_ms = self._clock.boot_ms()
            source = commit_path(self.path, self.version + 1)
            try:
                data = self.store.get(source)
            except ObjectNotFoundError:
                if self.exists:
                    self.store.check_folder(f"{self.path}/_delta_log")
                if self._trusted():
                    self._confirmed_ms = sent_ms
                else:
                    self._open()
                return
            if not self._trusted():
                self._open()
                return
            # Its writer may not have come so far yet.
            self.store.sync(source)
            self._last_writer = False
            self._apply(decode_commit(data, version=self.version + 1, source=source))
        self._catch_up()

    def invalidate(self) -> None:
        """Believe nothing any more: the next refresh opens the log again."""
        self._confirmed_ms = None

    def _trusted(self) -> bool:
        confirmed_ms = self._confirmed_ms
        if confirmed_ms is None:
            return False
        return self._clock.boot_ms() - confirmed_ms <= self.settings.trust_ms

    def _catch_up(self) -> None:
        """Far behind: list once, and get what is missing some at a time."""
        sent_ms = self._clock.boot_ms()
        files = log_files.list_log(self.store, self.path, since=self.version)
        newest = files.newest_checkpoint
        if newest is not None and newest > self.version + 10 * _TAIL_BEFORE_LISTING:
            self._open()
            return
        try:
            commits = self._fetch(files, self.version)
        except ObjectNotFoundError:
            # Clean-up took a listed commit: whatever we held is older than what it keeps.
            self._open()
            return
        if not self._trusted():
            self._open()
            return
        if commits:
            self.store.sync(commit_path(self.path, commits[-1].version))
        for commit in commits:
            self._apply(commit)
        self._confirmed_ms = sent_ms

    def _open(self) -> None:
        """Start from the newest complete checkpoint; the listing is the confirmed head."""
        for attempt in range(_OPENS_MAX):
            sent_ms = self._clock.boot_ms()
            files = log_files.list_log(self.store, self.path)
            try:
                self._load(files)
            except ObjectNotFoundError:
                # Clean-up took a file between the listing and the read: a newer checkpoint exists.
                self._clock.sleep_ms(backoff_ms(attempt + 3))
                continue
            if self._clock.boot_ms() - sent_ms <= self.settings.trust_ms:
                self._confirmed_ms = sent_ms
                return
        raise LogGapError(
            f"{self.store.url}/{self.path}/_delta_log: files that were listed could not be read "
            f"in {_OPENS_MAX} tries; commits after the newest checkpoint are missing. Restore "
            "them from a backup.",
            file=f"{self.path}/_delta_log",
        )

    def _load(self, files: LogFiles) -> None:
        """Replace the view; memory stays as it was when something cannot be read."""
        self._confirmed_ms = None
        commits = []
        if self.exists and not files.commits and files.newest_checkpoint is None:
            self.store.check_folder(f"{self.path}/_delta_log")
            raise LogGapError(
                f"{self.store.url}/{self.path}/_delta_log: no file of this log is left, and "
                f"version {self.version} was there. Restore the folder from a backup.",
                file=f"{self.path}/_delta_log",
            )
        if files.newest_checkpoint is not None:
            commits.append(checkpoints.read_checkpoint(self.store, files))
        elif files.commits and files.commits[0] != 0:
            raise LogGapError(
                f"{self.store.url}/{self.path}/_delta_log: the first commit is "
                f"{files.commits[0]} and there is no checkpoint. Restore the missing files.",
                file=commit_path(self.path, 0),
            )
        commits += self._fetch(files, commits[0].version if commits else -1)
        if commits:
            self.store.sync(commit_path(self.path, commits[-1].version))
        self._view.reset()
        self.version = -1
        self.metadata = None
        for commit in commits:
            self._apply(commit)

    def _fetch(self, files: LogFiles, after: int) -> list[Commit]:
        """The listed commits after a version; a hole in the middle is a LogGapError."""
        wanted = [version for version in files.commits if version > after]
        if not wanted:
            return []
        # A listing is no snapshot: what it skipped below its newest commit must be there.
        versions = range(after + 1, wanted[-1] + 1)
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
                        "log. Restore it from a backup.",
                        file=missing,
                    ) from error
            raise
        return [
            decode_commit(data, version=version, source=path)
            for version, path, data in zip(versions, paths, blobs, strict=True)
        ]

    def _apply(self, commit: Commit) -> None:
        protocol = None
        for action in commit.actions:
            if isinstance(action, Protocol):
                protocol = action
            elif isinstance(action, Metadata):
                self._check_ours(action)
                self.metadata = action
        if protocol is not None:
            self._check_protocol(protocol)
        try:
            self._view.apply(commit)
        except TxnLogError:
            raise
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptLogError(
                f"{self.store.url}/{commit_path(self.path, commit.version)}: this version cannot "
                f"be understood ({type(error).__name__}: {error}). It was written by something "
                "else than txnlog, or is damaged; restore the file from a backup.",
                file=commit_path(self.path, commit.version),
            ) from error
        self.version = commit.version

    def _check_ours(self, metadata: Metadata) -> None:
        if self._mark is not None and self._mark not in metadata.configuration:
            raise ForeignTableError(
                f"{self.store.url}/{self.path} is a Delta table of something else: it has no "
                f"property {self._mark!r}. Choose another name for the topic, or another root.",
                table=self.path,
            )

    def _check_protocol(self, protocol: Protocol) -> None:
        reader, writer = protocol.min_reader_version, protocol.min_writer_version
        features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
        if reader > READER_VERSION or writer > WRITER_VERSION or features:
            raise UnsupportedProtocolError(
                f"{self.store.url}/{self.path} is a Delta table of protocol ({reader}, {writer}) "
                f"with features {features}; txnlog knows (1, 2) without any. Upgrade txnlog, or "
                "undo the table upgrade that another tool made.",
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
        """Create version `self.version + 1`, if it is absent, from what the last refresh showed.

        Conflict: refresh, decide again. Unknown: refresh, look whether the effect is there, and
        only then decide again. On Committed the view has the commit already. Raises
        NothingWrittenError when nothing can have been written: no permission, no space, ...
        """
        if self._confirmed_ms is None:
            raise RuntimeError(f"{self!r}: commit before refresh")
        info = CommitInfo(
            self._clock.now_ms(), operation, ENGINE, parameters or {}, os.urandom(16).hex()
        )
        commit = Commit(self.version + 1, info, tuple(actions))
        path = commit_path(self.path, commit.version)
        self._last_writer = False
        if commit.version == 0:
            self.store.make_folder(f"{self.path}/_delta_log")
        sent_ms = self._clock.boot_ms()
        landed = self._put_until_settled(path, encode_commit(info, actions), info.write_id)
        if landed is None or not self._trusted():
            self.invalidate()
            return Unknown(info.write_id)
        if not landed:
            return Conflict(commit.version)
        self._apply(commit)
        self._confirmed_ms = sent_ms
        self._last_writer = True
        checkpoints.after_commit(self, sent_ms)
        return Committed(commit.version)

    def _put_until_settled(self, path: str, data: bytes, write_id: str) -> bool | None:
        """Same bytes into the same slot until it is known whose commit is there; None: gave up."""
        give_up_ms = self._clock.boot_ms() + self.settings.commit_timeout_ms
        doubtful = False
        for attempt in range(_PUTS_MAX):
            try:
                if self.store.put_if_absent(path, data):
                    return True
            except NothingWrittenError:
                if doubtful:
                    return None
                raise
            except StorageError:
                pass
            # From here on a put of ours may be on its way, even if the store said "exists".
            doubtful = True
            try:
                found = decode_commit(self.store.get(path), version=0, source=path)
                self.store.sync(path)
                return found.info.write_id == write_id
            except (ObjectNotFoundError, StorageError):
                # Absent now is not "never": a put under way may still land in this slot.
                pass
            if self._clock.boot_ms() > give_up_ms or not self._trusted():
                return None
            self._clock.sleep_ms(backoff_ms(attempt + 3))
        return None
