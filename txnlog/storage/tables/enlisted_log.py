"""The log of an enlisted Delta table: what is staged for it, and the commit that publishes that.

After a publication the commit before it is read again: see enlisted_reader. Without it the log was
cleaned up or made again in between, and the publication is in no log that anyone reads.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from txnlog.errors import (
    ConcurrentTransactionsError,
    CorruptLogError,
    NothingWrittenError,
    NotSyncedError,
    ObjectNotFoundError,
    StorageError,
    TableChangedError,
    TableConflictError,
    TxnLogError,
    UnknownTableError,
)
from txnlog.protocol.contention import retry_ms
from txnlog.protocol.enlisted.actions import CommitInfo, TableState, encode_actions, file_names
from txnlog.protocol.enlisted.compatibility import renamed, unpublishable
from txnlog.protocol.enlisted.conflicts import conflict
from txnlog.protocol.enlisted.features import (
    DAY_MS,
    FILE_RETENTION,
    TXN_RETENTION,
    check_enlistable,
    retention_ms,
    unknown_features,
)
from txnlog.protocol.enlisted.parts import (
    Decided,
    Part,
    check_part,
    decode_part,
    encode_part,
    fence,
    fence_app_id,
    publication,
    staging_folder,
)
from txnlog.storage.delta.actions import ENGINE, digest_of
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.transact import CONFLICTS_MAX, UNKNOWNS_MAX
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_reader import EnlistedReader

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Published:
    """Our commit has this version; to be proved before the transaction is completed.

    `before` is the digest of the commit before it. With `refused` it is a fence instead: why.
    """

    version: int
    write_id: str
    before: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    """The table has the transaction's txn: this process, or another one, published it before."""

    version: int


@dataclass(frozen=True, slots=True)
class TableReplaced:
    """The table was dropped and made again: as if the part had been published just before."""

    table_id: str


@dataclass(frozen=True, slots=True)
class AlreadyRefused:
    """The table has the transaction's fence; why, as its log still says."""

    refused: str


Publication = Published | AlreadyPublished | TableReplaced | AlreadyRefused


@dataclass(frozen=True, slots=True)
class PartFile:
    """Where a part file is, below the table's URL; the manifest holds this."""

    path: str
    size_bytes: int
    digest: str


class EnlistedLog(EnlistedReader):
    """Follows the log of a table, and publishes parts in it. `now_ms`: the root's store's time."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        super().__init__(store)
        self._now_ms = now_ms
        self._judged: tuple[Part, tuple[int, str], str] | None = None

    # -- parts -----------------------------------------------------------------------------------

    def check(self, part: Part) -> None:
        """Before the decision, after `refresh`: whether a part could be published now.

        Raises TableFeatureError, TableChangedError, TableConflictError, UnknownTableError (another
        table).
        """
        check_enlistable(self.state)
        definition = self.state.definition
        if definition.metadata.id != part.definition.metadata.id:
            raise UnknownTableError(
                f"{self.store.url} was dropped and made again since the data was staged: its id is "
                f"{definition.metadata.id}, not {part.definition.metadata.id}. Nothing was "
                "written. Enlist the new table.",
                url=self.store.url,
            )
        if part.mode == "merge":
            if refused := self.conflict(part):
                raise conflict_error(self.store.url, refused)
        elif why := unpublishable(part, definition) or renamed(part.definition, definition):
            raise TableChangedError(
                f"{self.store.url}: the staged data does not fit the table as of version "
                f"{self.state.version}: {why}. Nothing was written. Stage it again.",
                url=self.store.url,
            )

    def put_part(self, part: Part, *, cluster_id: str) -> PartFile:
        """Write the part file, which no log refers to. Raises ValueError for an invalid part."""
        check_part(part)
        data = encode_part(part)
        path = f"{staging_folder(cluster_id)}/{os.urandom(16).hex()}.json"
        self.store.make_folder(staging_folder(cluster_id))
        self.store.put_new(path, data)
        return PartFile(path, len(data), digest_of(data))

    def read_part(self, file: PartFile) -> Part:
        """Read a part file. Raises CorruptLogError, ObjectNotFoundError."""
        source = f"{self.store.url}/{file.path}"
        data = self.store.get(file.path)
        if digest_of(data) != file.digest:
            raise CorruptLogError(
                f"{source}: this file of a decided transaction is not the one that was decided. "
                "Its rows cannot be published without it. Restore this very file from a backup of "
                "the table.",
                file=source,
            )
        return decode_part(data, source=source)

    def conflict(self, part: Part) -> str:
        """Why a part that depends on what was read may not follow the newest version; "": it may.

        Reads the commits since the version that was read, once for each head.
        """
        head = self.state.version, self.state.digest
        if self._judged is None or self._judged[0] is not part or self._judged[1] != head:
            self._judged = part, head, self._conflict(part)
        return self._judged[2]

    def _conflict(self, part: Part) -> str:
        first = part.read_version
        if (self.state.version, self.state.digest) == (first, part.read_digest):
            return ""
        if self.state.version < first:
            return f"its log ends before version {first}"
        commits = self._commits(
            range(first if part.read_digest else first + 1, self.state.version + 1)
        )
        try:
            if part.read_digest and digest_of(next(commits)) != part.read_digest:
                return f"version {first} is another one than was read"
            return conflict(part, commits) or ""
        except ObjectNotFoundError:
            return f"commits since version {first} are gone from its log"
        except (ValueError, msgspec.MsgspecError) as error:
            return f"a version after {first} cannot be understood ({error})"

    def _commits(self, versions: Sequence[int]) -> Iterator[bytes]:
        """Some at a time: the first one may be in conflict, and there may be very many."""
        for start in range(0, len(versions), _AT_ONCE):
            paths = [commit_path("", version) for version in versions[start : start + _AT_ONCE]]
            yield from self.store.together([partial(self.store.get, path) for path in paths])

    # -- publication -----------------------------------------------------------------------------

    def publish(
        self,
        part: Part,
        decided: Decided,
        *,
        is_still_decided: Callable[[], bool],
        lost: str = "",
    ) -> Publication | None:
        """Put the publication at the next version, unless the table has its txn already (D139).

        `is_still_decided` is asked after each reading of the head, before the put: a process that
        has not written the decision a short time ago reads the row again. None: it said no.
        The first put follows the state as it is known: others rarely commit since. Of mode merge it
        is what decides, if nothing conflicts with it; else a fence is put instead (R77); also if a
        file of it is `lost`: how.
        Raises TableChangedError with `decided`.
        """
        unknowns = 0
        for attempt in range(CONFLICTS_MAX):
            is_guess = attempt == 0 and self._is_trusted()
            if not is_guess:
                self.refresh()
            known = self.state
            try:
                settled = self._settled(part, decided)
                # It may have read the table again, to list files.
                is_guess = is_guess and self.state is known
                if settled is not None or not (is_guess or is_still_decided()):
                    if is_guess:
                        continue
                    return settled
                published = self._put(part, decided, lost)
            except (NothingWrittenError, NotSyncedError):
                raise
            except StorageError:
                # It may have landed, or may still land: then the next reading finds its txn, or
                # the slot is taken by another commit of the same txn.
                unknowns += 1
                if unknowns == UNKNOWNS_MAX:
                    raise
                self.store.back_off(attempt + 3)
                continue
            except TxnLogError:
                if is_guess:
                    continue
                raise
            if published is not None:
                return published
            latency_ms, jitter = self.store.latency.ms, random.random()
            self.store.clock.sleep_ms(retry_ms(attempt, latency_ms=latency_ms, jitter=jitter))
        raise ConcurrentTransactionsError(
            f"{self.store.url}: other writers won {CONFLICTS_MAX} versions in a row; try again.",
            url=self.store.url,
        )

    def _settled(self, part: Part, decided: Decided) -> Publication | None:
        """What needs no put: the part is published, or its table is gone.

        Raises TableChangedError with `decided` for a table that the part does not fit.
        """
        is_old = self._may_have_forgotten(decided)
        if self.state.files is None and (is_old or part.mode == "overwrite"):
            # A newer state than before, perhaps: what follows is decided on that.
            self._open(files=True)
        definition = self.state.definition
        # First: a table may be replaced in its own log, by what was in it.
        if is_published(self.state, decided):
            return AlreadyPublished(self.state.version)
        if definition.metadata.id != part.definition.metadata.id:
            return TableReplaced(definition.metadata.id)
        if part.mode == "merge" and is_published(self.state, fence(part, decided)[1]):
            return AlreadyRefused(self.conflict(part) or "another process has found a conflict")
        if is_old and self._has_files(part, decided):
            return AlreadyPublished(self.state.version)
        if part.mode == "merge":
            if unknown := unknown_features(definition):
                named = ", ".join(map(repr, unknown))
                raise self._blocked(
                    decided,
                    f"it needs {named}, which txnlog does not know, so no commit is put there.",
                    decides=True,
                )
            return None
        if why := unpublishable(part, definition):
            raise self._blocked(
                decided,
                f"{why}. Undo that change, and the rows are published; "
                "or write them in the table's new schema: `txnlog tables restage`.",
            )
        return None

    def _may_have_forgotten(self, decided: Decided) -> bool:
        """Whether the table may have a publication, but its txn no more: some keep them for a time,
        at least 7 days when they are enlisted.
        """
        kept_ms = self.kept_ms(TXN_RETENTION)
        limit_ms = 7 * DAY_MS if kept_ms is None else min(kept_ms, 7 * DAY_MS)
        return self._now_ms() - decided.decided_ms > limit_ms / 2

    def _has_files(self, part: Part, decided: Decided) -> bool:
        """Whether the files of an old part are in the table, or were."""
        age_ms = self._now_ms() - decided.decided_ms
        names = file_names(*part.adds) - file_names(*part.removes)
        are_sure = names and age_ms <= (self.kept_ms(FILE_RETENTION) or 0)
        if self.kept_ms(TXN_RETENTION) is not None and not are_sure:
            txn = f"a txn of the appId {decided.app_id!r} and the version {decided.epoch}"
            there = f" If they are, commit {txn} to it."
            raise self._blocked(
                decided,
                "it was decided so long ago that the table may have forgotten whether it is "
                f"published. If its rows are not there, unset {TXN_RETENTION} of the table, and "
                f"they are published.{there if part.mode == 'merge' else ''}",
                decides=part.mode == "merge",
            )
        known = file_names(*(self.state.files or {}).values()) | (self.state.removed or set())
        if part.mode == "append":
            # A long list, and no append needs it.
            self.state.files = self.state.removed = None
        return not known.isdisjoint(part.file_names)

    def kept_ms(self, name: str) -> float | None:
        """`retention_ms` of the table as last read; 0 where that is not known."""
        try:
            return retention_ms(self.state.definition, name)
        except ValueError:
            return 0

    def _blocked(self, decided: Decided, why: str, *, decides: bool = False) -> TableChangedError:
        if decides:
            return TableChangedError(
                f"{self.store.url}: the table cannot decide the transaction as of version "
                f"{self.state.version}: {why} To give the transaction up, commit a txn of the "
                f"appId {fence_app_id(decided.app_id)!r} and the version {decided.epoch} to it.",
                url=self.store.url,
                abortable=False,
            )
        return TableChangedError(
            f"{self.store.url}: the transaction is committed, but its rows for this table cannot "
            f"be published as of version {self.state.version}: {why} To give these rows up, commit "
            f"a txn of the appId {decided.app_id!r} and the version {decided.epoch} to the table.",
            url=self.store.url,
            decided=True,
            abortable=False,
        )

    def _put(self, part: Part, decided: Decided, lost: str) -> Published | None:
        """One attempt at the next version; None if another commit is there."""
        version, before = self.state.version + 1, self.state.digest
        refused = lost or (self.conflict(part) if part.mode == "merge" else "")
        if refused:
            part, decided = fence(part, decided)
        write_id = os.urandom(16).hex()
        now_ms = self._now_ms()
        try:
            actions = publication(
                part, self.state, decided, write_id=write_id, engine=ENGINE, now_ms=now_ms
            )
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(self.state.version, str(error)) from error
        data = encode_actions(actions)
        # D54: what could not be read back is not written.
        self._decoded(version, data)
        sent_ms = self.store.clock.boot_ms()
        is_created = self.store.put_if_absent(commit_path("", version), data)
        self.store.latency.record(self.store.clock.boot_ms() - sent_ms)
        if not is_created:
            return None
        self._take(version, data)
        return Published(version, write_id, before, refused)

    def prove(self, published: Published, part: Part, decided: Decided) -> bool:
        """Whether the version before the publication is there, so that it continues the log that
        was read. Else our commit is deleted if it is still ours, and is to be published again.
        """
        version = published.version
        if published.refused:
            part, decided = fence(part, decided)
        before = self._get(commit_path("", version - 1))
        if before is not None and digest_of(before) == published.before:
            return True
        path = commit_path("", version)
        found = self._get(path)
        if found is not None and self._write_id(version, found) == published.write_id:
            if self._is_of_log(part, decided):
                return True
            self.store.delete([path])
        self._confirmed = None
        return False

    def _is_of_log(self, part: Part, decided: Decided) -> bool:
        """Whether the log, opened again, has a publication of the part: what was before it may have
        been cleaned up since then.
        """
        try:
            self._open(files=self.state.files is not None)
        except (CorruptLogError, UnknownTableError):
            return False
        is_same = self.state.definition.metadata.id == part.definition.metadata.id
        return is_same and is_published(self.state, decided)

    def _write_id(self, version: int, data: bytes) -> str:
        try:
            actions = self._decoded(version, data)
        except CorruptLogError:
            return ""
        return next((each.write_id for each in actions if isinstance(each, CommitInfo)), "")


def is_published(state: TableState, decided: Decided) -> bool:
    """Whether the table, as it was last read, has the part of a transaction, or its fence."""
    return state.txns.get(decided.app_id, -1) >= decided.epoch


def conflict_error(url: str, why: str) -> TableConflictError:
    """Of a change that its table has refused."""
    return TableConflictError(
        f"{url}: what the change was made of is not the table any more: {why}. Nothing of the "
        "transaction was committed. Read the table again, in a new transaction.",
        url=url,
    )
