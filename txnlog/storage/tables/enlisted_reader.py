"""Reading and following the log of an enlisted Delta table, at any URL: others write it.

Nothing is assumed of them but that each creates a version only if it is absent. Who cleans the log
up, and when, is theirs to decide: so what was read is trusted for a short time, and the newest
commit is read again with each tail: while it is there, no later slot was freed, and the log is the
one that was read.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import takewhile

import msgspec

from txnlog.errors import CorruptLogError, ObjectNotFoundError, UnknownTableError
from txnlog.protocol.enlisted.actions import Action, TableMetadata, TableState, decode_actions
from txnlog.protocol.enlisted.schemas import partition_fields, schema_of
from txnlog.storage.delta.actions import digest_of
from txnlog.storage.delta.checkpoint_file import UNDECODABLE
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.log_settings import LOG_RETENTION_MS_MIN
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_checkpoints import ForeignFiles, list_files, read_checkpoint

log = logging.getLogger("txnlog")

TRUST_MS = LOG_RETENTION_MS_MIN // 2
_READ_AT_ONCE = 4
_OPENS_MAX = 5
_MISSED_MAX = 10_000
"""Largest hole in a listing, which is no snapshot; a larger hole is damage."""


class EnlistedReader:
    """The log of the table at the URL of `store`. Not thread-safe; the constructor does no I/O.

    All methods raise StorageError; CorruptLogError, which names the URL and the version;
    UnknownTableError (no log at this URL).
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.state = TableState(store.url)
        self._confirmed: tuple[int, int] | None = None
        """Times before the request that showed that `state` is the newest, by both clocks."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store.url}, version {self.state.version})"

    def refresh(self) -> None:
        """Bring `state` up to the head of the log."""
        while self._is_trusted():
            sent = self._times()
            head = self.state.version
            slots = range(head, head + 1 + _READ_AT_ONCE)
            found = self._get_while_there([commit_path("", slot) for slot in slots])
            if not found or digest_of(found[0]) != self.state.digest:
                # Cleaned up, or another table by now.
                break
            for version, data in enumerate(found[1:], head + 1):
                self._take(version, data)
            if len(found) < len(slots):
                self._confirmed = sent
                return
        self._open(files=self.state.files is not None)

    def refresh_files(self) -> None:
        """As `refresh`, with the live files and the tombstones."""
        if self.state.files is None:
            self._open(files=True)
        else:
            self.refresh()

    def _get_while_there(self, paths: list[str]) -> list[bytes]:
        """The files up to the first that does not exist; in one round."""
        if self.store.is_remote:
            gets = [partial(self._get, path) for path in paths]
            found = iter(self.store.together(gets))
        else:
            # The first one last: if it is unchanged then, what was read before is of its log.
            later = list(takewhile(lambda data: data is not None, map(self._get, paths[1:])))
            found = iter([self._get(paths[0]), *later])
        return list(takewhile(lambda data: data is not None, found))  # type: ignore[arg-type]

    def _get(self, path: str) -> bytes | None:
        try:
            return self.store.get(path)
        except ObjectNotFoundError:
            return None

    def _times(self) -> tuple[int, int]:
        return self.store.clock.boot_ms(), self.store.clock.now_ms()

    def _is_trusted(self) -> bool:
        """Whether the state was confirmed a short time ago, by both clocks (D3)."""
        if self._confirmed is None or not self.state.digest:
            return False
        pairs = zip(self._times(), self._confirmed, strict=True)
        return max(now_ms - then_ms for now_ms, then_ms in pairs) <= TRUST_MS

    def _open(self, *, files: bool) -> None:
        """Read the log from its newest intact checkpoint; `files`: with live files, tombstones."""
        self._confirmed = None
        for attempt in range(_OPENS_MAX):
            sent = self._times()
            try:
                self._load(list_files(self.store), files=files)
            except ObjectNotFoundError as error:
                # A listed file was cleaned up before it was read: there is a newer checkpoint.
                if attempt == _OPENS_MAX - 1:
                    raise self._damaged(None, error.message) from error
                self.store.back_off(attempt + 3)
                continue
            self._confirmed = sent
            return

    def _load(self, listed: ForeignFiles, *, files: bool) -> None:
        if not listed.commits and not listed.checkpoints:
            raise UnknownTableError(
                f"{self.store.url}: there is no Delta table. Check the URL.", url=self.store.url
            )
        state, listed = self._from_checkpoint(listed, files=files)
        first = state.version
        head = max([first, *listed.commits])
        if first < 0 and listed.commits[0] > 0:
            raise self._damaged(listed.commits[0] - 1, "it is missing, and no checkpoint is there")
        if head - first > len(listed.commits) + _MISSED_MAX:
            raise self._damaged(head, "many commits before it are missing")
        self.state = state
        versions = range(max(first, 0), head + 1)
        calls = [partial(self._get, commit_path("", version)) for version in versions]
        for version, data in zip(versions, self.store.together(calls), strict=True):
            if data is not None:
                self._take(version, data)
            elif version > first:
                raise ObjectNotFoundError(f"version {version} is missing")
        self._check_definition(self.state)

    def _from_checkpoint(
        self, listed: ForeignFiles, *, files: bool
    ) -> tuple[TableState, ForeignFiles]:
        """The state of the newest intact checkpoint, or an empty one; and the log's files from
        there on.
        """
        is_whole = False
        left = list(listed.checkpoints)
        while left:
            version, paths = left.pop()
            state = self._empty(files)
            try:
                actions = read_checkpoint(self.store, paths, files=files)
                state.apply(version, actions, is_checkpoint=True)
                self._check_definition(state)
                return state, listed
            except UNDECODABLE as error:
                if is_out_of_memory(error):
                    raise out_of_memory(f"{self.store.url}/{paths[0]}", paths[0]) from error
                log.error("%s/%s: damaged checkpoint skipped: %s", self.store.url, paths[0], error)
            except CorruptLogError as error:
                log.error("A damaged checkpoint is skipped: %s", error)
            if not is_whole:
                is_whole, listed = True, list_files(self.store, whole=True)
                left = [each for each in listed.checkpoints if each[0] < version]
        return self._empty(files), listed

    def _empty(self, files: bool) -> TableState:
        if not files:
            return TableState(self.store.url)
        return TableState(self.store.url, files={}, removed=set())

    def _take(self, version: int, data: bytes) -> None:
        """Apply a commit: the next one, or the one that a checkpoint has already."""
        actions = self._decoded(version, data)
        self.store.rely_on([commit_path("", version)])
        # Applied in part, as after an interrupt, it must not be built on.
        confirmed, self._confirmed = self._confirmed, None
        self.state.apply(version, actions)
        if any(isinstance(action, TableMetadata) for action in actions):
            self._check_definition(self.state)
        self.state.digest = digest_of(data)
        self._confirmed = confirmed

    def _decoded(self, version: int, data: bytes) -> list[Action]:
        try:
            return decode_actions(data, files=self.state.files is not None)
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(version, str(error)) from error

    def _check_definition(self, state: TableState) -> None:
        """Raise CorruptLogError for a table whose definition cannot be understood."""
        try:
            schema_of(state.definition)
            partition_fields(state.definition)
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(state.version, str(error)) from error

    def _damaged(self, version: int | None, why: str) -> CorruptLogError:
        at = "" if version is None else f"version {version} of "
        return CorruptLogError(
            f"{self.store.url}: {at}the log of this Delta table cannot be read ({why}). Another "
            "tool wrote it, or it is damaged. Look at it with the tool that writes the table.",
            url=self.store.url,
            version=version,
            fatal=False,
            abortable=True,
        )
