"""Reads one table's log from the oldest retained version to the newest, past any damage.

After a damaged commit the state is unknown until the next checkpoint that can be read. Damage below
a forced deletion is no finding: its checkpoint hides all that is below from every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txnlog.errors import CorruptLogError, LogGapError, ObjectNotFoundError
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.log_files import (
    Hint,
    check_hint,
    check_listing,
    check_write_ids,
    find_strays,
    missing_commit,
)
from txnlog.protocol.verification.replay import (
    File,
    TableMetadata,
    TableState,
    differences,
    file_of_row,
)
from txnlog.storage.delta.actions import (
    Add,
    Adds,
    Commit,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_commit,
    digest_of,
)
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.log_files import (
    HINT,
    LogFiles,
    checkpoint_path,
    commit_path,
    list_whole_log,
)
from txnlog.storage.delta.table_protocol import is_known
from txnlog.storage.store.objects import ObjectStore

COMMITS_AT_ONCE = 256
BYTES_AT_ONCE = 16 << 20
_READS_MAX = 5

_NO_DIGEST = (-2, "")

Observer = Callable[[File, int], None]
"""Called with each file that a commit or the first checkpoint names, and the version."""


@dataclass(slots=True)
class TableReading:
    """The content of a table's log. `state` is None if it is unknown; `exists`: it has versions.

    `written_ms` maps the versions of retained commits to their store times; `operation` is that of
    the newest one that was read.
    """

    table: str
    exists: bool = False
    state: TableState | None = None
    version: int = -1
    operation: str = ""
    findings: Findings = field(default_factory=Findings)
    written_ms: dict[int, int] = field(default_factory=dict)
    newest_settings: Mapping[str, str] | None = None

    @property
    def metadata(self) -> TableMetadata | None:
        return None if self.state is None else self.state.metadata

    def is_foreign(self, mark: str) -> bool:
        """Whether its properties could be read and lack `mark`, which tables of txnlog have."""
        return self.newest_settings is not None and mark not in self.newest_settings


def read_table(
    store: ObjectStore,
    table: str,
    *,
    since_ms: int | None = None,
    newest_only: bool = False,
    observe: Callable[[Findings], Observer] | None = None,
    tick: Callable[[int], None] = lambda count: None,
) -> TableReading:
    """Read and check a log. Raises StorageError, StorePermissionError.

    `since_ms`, by the store's clock: log files written before it are not read, except the
    checkpoint to start from. `newest_only` reads only the newest state, and checks only what it
    reads. `observe` gets the findings of a reading and returns the Observer of its files. `tick` is
    called with the number of log files read.
    """
    for _ in range(_READS_MAX):
        try:
            files = list_whole_log(store, table)
        except CorruptLogError as error:
            return _unlisted(table, error)
        reader = _LogReader(store, table, files, tick)
        try:
            return reader.read(since_ms=since_ms, newest_only=newest_only, observe=observe)
        except ObjectNotFoundError:
            # Clean-up deleted a listed file; there is a newer checkpoint.
            continue
    raise LogGapError(
        f"{store.url}/{table}/_delta_log: files that are listed could not be read in {_READS_MAX} "
        "tries. Check the store.",
        file=f"{table}/_delta_log",
    )


def _unlisted(table: str, error: CorruptLogError) -> TableReading:
    """The reading of a log that is no folder, or has a hole that is too large to read past."""
    is_gap = isinstance(error, LogGapError)
    found = TableReading(table, exists=True)
    found.findings.add(
        Finding(
            kind=FindingKind.COMMIT_MISSING if is_gap else FindingKind.LOG_MISSING,
            table=table,
            file=str(error.file),
            what=error.message,
        )
    )
    return found


class _LogReader:
    """One pass over one listing."""

    def __init__(
        self, store: ObjectStore, table: str, files: LogFiles, tick: Callable[[int], None]
    ) -> None:
        self._store = store
        self._files = files
        self._tick = tick
        self._table = table
        self._times = {item.path: item.last_modified_ms for item in files.objects}
        self._sizes = {item.path: item.size_bytes for item in files.objects}
        self._write_ids: dict[str, int] = {}
        self._state: TableState | None = None
        self._observer: Observer | None = None
        self._newest = _NO_DIGEST
        self._restart = -1
        """The newest commit that begins the table again: a forced deletion."""
        self.reading = TableReading(table)

    def read(
        self,
        *,
        since_ms: int | None,
        newest_only: bool,
        observe: Callable[[Findings], Observer] | None,
    ) -> TableReading:
        self._skip_strays()
        files, reading = self._files, self.reading
        reading.exists = bool(files.commits or files.checkpoints)
        if not reading.exists:
            return reading
        self._observer = None if observe is None else observe(reading.findings)
        if not newest_only:
            check_listing(self._table, files.commits, files.checkpoints, reading.findings)
            hint = self._hint()
            if hint is not None:
                named = checkpoint_path(self._table, hint.version or 0)
                check_hint(self._table, hint, self._sizes.get(named), reading.findings)
        if not files.commits:
            reading.findings.add(
                missing_commit(self._table, files.checkpoints[-1], "there are checkpoints only")
            )
        self._run(self._first(since_ms, newest_only))
        reading.state = self._state
        reading.version = max([*files.commits, *files.checkpoints])
        return reading

    def _skip_strays(self) -> None:
        """Report stray commits and ignore them, as every client does."""
        files = self._files
        times = {v: self._times[commit_path(self._table, v)] for v in files.commits}
        strays = find_strays(files.commits, files.checkpoints, times)
        if strays and self._may_be_followed(strays[-1]):
            return
        for version in strays:
            path = commit_path(self._table, version)
            what = f"it is below the log, which begins with version {files.checkpoints[0]}"
            self._add(FindingKind.COMMIT_STRAY, path, version, what)
        self._files = files._replace(commits=files.commits[len(strays) :])

    def _may_be_followed(self, version: int) -> bool:
        """Whether this commit and the next one may be of one log.

        Only a next commit that names another predecessor proves that they are not; one of another
        tool names none.
        """
        if version + 1 not in self._files.commits:
            return False
        try:
            data = self._store.get(commit_path(self._table, version))
            path = commit_path(self._table, version + 1)
            following = decode_commit(self._store.get(path), version=version + 1, source=path)
        except (CorruptLogError, ObjectNotFoundError):
            return True
        return following.info.previous in ("", digest_of(data))

    def _first(self, since_ms: int | None, newest_only: bool) -> int:
        """The version to start at: that of a checkpoint, or 0; or the oldest retained version."""
        found = self._files.checkpoints
        if newest_only and found:
            return found[-1]
        if since_ms is not None:
            old = [v for v in found if self._times[checkpoint_path(self._table, v)] < since_ms]
            if old:
                return old[-1]
        return min([*self._files.commits[:1], *found])

    def _run(self, first: int) -> None:
        """Read each version: the commit, then the checkpoint of the same version."""
        waiting = [version for version in self._files.checkpoints if version >= first]
        commits = [version for version in self._files.commits if version >= first]
        if first == 0 and commits[:1] == [0]:
            self._state = TableState()
        # Clean-up deletes commits first; it has not deleted these checkpoints yet.
        while waiting and (not commits or waiting[0] < commits[0]):
            version = waiting.pop(0)
            self._state = None
            self._read_checkpoint(version)
            if commits and version + 1 < commits[0]:
                self._state = None
        end = max([*commits[-1:], *waiting[-1:]], default=-1)
        for version, data in self._commits(commits, end):
            if data is None:
                self._state = None
            else:
                self._read_commit(version, data)
            while waiting and waiting[0] <= version:
                self._read_checkpoint(waiting.pop(0))

    def _commits(
        self, listed: list[int], end: int
    ) -> Iterator[tuple[int, bytes | CorruptLogError | None]]:
        """Each version up to `end` with its bytes, None if they are missing, or why there is no
        file to read.
        """
        due = listed[0] if listed else end + 1
        for some in self._portions(listed):
            paths = [commit_path(self._table, version) for version in some]
            blobs = self._store.together([partial(self._get, path) for path in paths])
            for version, data in zip(some, blobs, strict=True):
                yield from self._gap(due, version)
                yield version, data
                due = version + 1
            self._tick(len(some))
        yield from self._gap(due, end + 1)

    def _get(self, path: str) -> bytes | CorruptLogError:
        try:
            return self._store.get(path)
        except CorruptLogError as error:
            return error

    def _portions(self, versions: list[int]) -> Iterator[list[int]]:
        """Commits to read at once, up to COMMITS_AT_ONCE and BYTES_AT_ONCE."""
        some: list[int] = []
        left_bytes = BYTES_AT_ONCE
        for version in versions:
            size_bytes = self._sizes[commit_path(self._table, version)]
            if some and (len(some) == COMMITS_AT_ONCE or size_bytes > left_bytes):
                yield some
                some, left_bytes = [], BYTES_AT_ONCE
            some.append(version)
            left_bytes -= size_bytes
        if some:
            yield some

    def _gap(self, start: int, end: int) -> Iterator[tuple[int, bytes | CorruptLogError | None]]:
        """Versions that the listing lacks. It is no snapshot, so they may exist."""
        if end - start > COMMITS_AT_ONCE:
            self._add_missing(start, end)
            yield end - 1, None
            return
        for version in range(start, end):
            try:
                yield version, self._get(commit_path(self._table, version))
            except ObjectNotFoundError:
                self._add_missing(version, version + 1)
                yield version, None

    def _add_missing(self, start: int, end: int) -> None:
        newest = max([*self._files.commits, *self._files.checkpoints])
        why = f"{end - start} commits are missing from there on; the newest version is {newest}"
        self.reading.findings.add(missing_commit(self._table, start, why))

    # -- commits ---------------------------------------------------------------------------------

    def _read_commit(self, version: int, data: bytes | CorruptLogError) -> None:
        path = commit_path(self._table, version)
        self.reading.written_ms[version] = self._times.get(path, 0)
        try:
            if isinstance(data, CorruptLogError):
                raise data
            commit = decode_commit(data, version=version, source=path)
        except CorruptLogError as error:
            self._add(FindingKind.COMMIT_DAMAGED, path, version, error.message)
            self._state = None
            self._newest = _NO_DIGEST
            return
        if _begins_again(commit):
            self._restart, self._state = version, TableState()
        self._check_chain(commit, path)
        self._newest = version, digest_of(data)
        self.reading.operation = commit.info.operation
        self._check_origin(commit, path)
        check_write_ids(
            self._table, commit.info.write_id, version, self._write_ids, self.reading.findings
        )
        for action in commit.actions:
            if isinstance(action, Metadata):
                self.reading.newest_settings = action.configuration
        if self._state is not None:
            self._apply(self._state, commit)

    def _check_chain(self, commit: Commit, path: str) -> None:
        """Check that the commit names the digest of the one before; other tools' commits do not."""
        version, digest = self._newest
        wanted = commit.info.previous
        if version == commit.version - 1 and digest and wanted and wanted != digest:
            what = f"it names another predecessor than the present commit of version {version}"
            self._add(FindingKind.CHAIN_BROKEN, path, commit.version, what)

    def _check_origin(self, commit: Commit, path: str) -> None:
        if commit.info.checksum < 0 or commit.info.actions < 0 or not commit.info.write_id:
            what = f"engine {commit.info.engine_info!r}, operation {commit.info.operation!r}"
            self._add(FindingKind.COMMIT_FOREIGN, path, commit.version, what)

    def _apply(self, state: TableState, commit: Commit) -> None:
        # A table's first commit has its protocol before its metaData.
        versions = (1, 2) if state.metadata is None else state.metadata.versions
        for action in commit.actions:
            match action:
                case Add():
                    file = _file(action)
                    state.add(file)
                    if self._observer is not None:
                        self._observer(file, commit.version)
                case Remove():
                    state.remove(action.path)
                case Txn():
                    state.set_txn(action.app_id, action.version, action.last_updated)
                case Metadata():
                    state.metadata = _metadata(action, versions)
                case Protocol():
                    self._check_protocol(action)
                    versions = action.min_reader_version, action.min_writer_version
                    if state.metadata is not None:
                        state.metadata = state.metadata._replace(versions=versions)

    def _check_protocol(self, found: Protocol) -> None:
        if not is_known(found):
            versions = found.min_reader_version, found.min_writer_version
            features = [*(found.reader_features or []), *(found.writer_features or [])]
            self.reading.findings.add(
                Finding(
                    kind=FindingKind.TABLE_UNSUPPORTED,
                    table=self._table,
                    what=f"protocol {versions} with features {features}",
                )
            )

    # -- checkpoints -----------------------------------------------------------------------------

    def _read_checkpoint(self, version: int) -> None:
        """Compare it with the replayed state; continue from it if that is unknown."""
        replayed = self._state
        path = checkpoint_path(self._table, version)
        self._tick(1)
        try:
            commit = read_checkpoint(self._store, self._table, version)
        except CorruptLogError as error:
            self._add(FindingKind.CHECKPOINT_DAMAGED, path, version, error.message)
            return
        if self._newest[0] != version:
            self._newest = version, commit.digest
        elif commit.digest not in ("", self._newest[1]):
            what = "it was made from another commit than the present one of its version"
            self._add(FindingKind.CHAIN_BROKEN, path, version, what)
        elif version == self._restart:
            # No client reads below it any more.
            self.reading.findings.keep_only(FindingKind.HINT_WRONG)
        stated = self._stated(commit)
        if replayed is None:
            self._state = stated
            self._observe_all(stated, version)
            return
        wrong = differences(replayed, stated)
        if wrong:
            self._add(FindingKind.CHECKPOINT_DISAGREES, path, version, "; ".join(wrong))

    def _stated(self, commit: Commit) -> TableState:
        state = TableState()
        metadata: TableMetadata | None = None
        versions = (1, 2)
        txns: dict[str, tuple[int, int | None]] = {}
        files: dict[str, Any] = {}
        for action in commit.actions:
            match action:
                case Protocol():
                    self._check_protocol(action)
                    versions = action.min_reader_version, action.min_writer_version
                case Metadata():
                    metadata = _metadata(action, versions)
                case Txn():
                    txns[action.app_id] = action.version, action.last_updated
                case Adds():
                    files = {
                        "path": action.paths,
                        "size": action.sizes,
                        "modification_time": action.modification_times,
                        "stats": action.stats,
                        **action.values,
                    }
                case _:
                    continue
        assert metadata is not None
        self.reading.newest_settings = metadata.configuration
        if files:
            missing = [name for name in metadata.partition_columns if name not in files]
            count = len(files["path"])
            files |= {name: [None] * count for name in missing}
        state.load(metadata._replace(versions=versions), txns, files)
        return state

    def _observe_all(self, state: TableState, version: int) -> None:
        if self._observer is None:
            return
        for row in state.files.to_pylist():
            self._observer(file_of_row(row), version)

    def _hint(self) -> Hint | None:
        """The content of `_last_checkpoint`. The size of its checkpoint must be read after it."""
        path = f"{self._table}/_delta_log/_last_checkpoint"
        if path not in self._sizes:
            return None
        try:
            found = HINT.decode(self._store.get(path))
        except ObjectNotFoundError:
            return None
        except (CorruptLogError, ValueError, RecursionError):
            return Hint(None)
        named = checkpoint_path(self._table, found.version)
        with suppress(ObjectNotFoundError, CorruptLogError):
            self._sizes[named] = self._store.head(named).size_bytes
        return Hint(found.version, found.size_bytes)

    def _add(self, kind: FindingKind, path: str, version: int, what: str) -> None:
        self.reading.findings.add(
            Finding(kind=kind, table=self._table, file=path, version=version, what=what)
        )


def _begins_again(commit: Commit) -> bool:
    """Whether it holds the whole table, and follows no commit: a topic was deleted by force."""
    info = commit.info
    if commit.version == 0 or info.previous or not info.write_id:
        return False
    kinds = {type(action) for action in commit.actions}
    return {Protocol, Metadata} <= kinds


def _file(add: Add) -> File:
    return File(add.path, add.size, add.modification_time, add.stats or "", add.partition_values)


def _metadata(action: Metadata, versions: tuple[int, int]) -> TableMetadata:
    return TableMetadata(
        action.id,
        action.schema_string,
        tuple(action.partition_columns),
        dict(action.configuration),
        versions,
    )
