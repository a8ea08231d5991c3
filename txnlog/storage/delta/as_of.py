"""A root as it was at a time: each log ends with its newest commit of that time.

The times are those that the writers' clocks gave their commits: two tables may differ by as much as
these clocks do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import accumulate

from txnlog.errors import ConfigError, CorruptLogError, ObjectNotFoundError
from txnlog.storage.delta.actions import decode_commit
from txnlog.storage.delta.log_files import LogFiles, commit_path, sort_files
from txnlog.storage.store.objects import ObjectMeta, ObjectStore
from txnlog.storage.store.read_only import ReadOnlyStore

_LOG_FILE = re.compile(r"(?:(.+)/)?_delta_log/(?:([0-9]{20})\.[^/]*|_last_checkpoint)\Z")
_LOG_FOLDER = "/_delta_log"
_STEPS_MAX = 16
"""Commits since an earlier time that are read in turn; a log with more is listed."""


class _OlderStore(ReadOnlyStore):
    """A store in which the logs of tables end with an older version."""

    def _version(self, table: str) -> int:
        """The newest version of a table; -1: it has none."""
        raise NotImplementedError

    def get(self, path: str) -> bytes:
        self._check(path)
        return super().get(path)

    def exists(self, path: str) -> bool:
        return self._is_there(path) and super().exists(path)

    def head(self, path: str) -> ObjectMeta:
        self._check(path)
        return super().head(path)

    def list(self, prefix: str, *, start_after: str | None = None) -> list[ObjectMeta]:
        return [
            item
            for item in super().list(prefix, start_after=start_after)
            if self._is_there(item.path)
        ]

    def free_bytes(self) -> int | None:
        """Unknown."""
        return None

    def _check(self, path: str) -> None:
        if not self._is_there(path):
            raise ObjectNotFoundError(f"{self.url}/{path}: was not there yet.", path=path)

    def _is_there(self, path: str) -> bool:
        found = _LOG_FILE.match(path)
        if found is None:
            return True
        table, version = found.groups()
        return version is not None and int(version) <= self._version(table or "")


class StoreAtVersions(_OlderStore):
    """A store in which the log of each of these tables ends with this version."""

    def __init__(self, base: ObjectStore, versions: Mapping[str, int]) -> None:
        super().__init__(base)
        self._versions = versions

    def _version(self, table: str) -> int:
        return self._versions.get(table, -1)


class StoreAsOf(_OlderStore):
    """A store in which no commit, nor checkpoint of one, is there that was made after a time; and
    no log but those of `tables`, since another tool's may be cleaned up as it likes.

    Reading a log that is gone as of then raises ConfigError.
    """

    def __init__(self, base: ObjectStore, at_ms: int, tables: Collection[str]) -> None:
        super().__init__(base)
        self.at_ms = at_ms
        self._tables = tables
        self._versions: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def advance(self, at_ms: int, tables: Collection[str]) -> None:
        """Go on to a later time: logs that were read are tailed from where they were."""
        self.at_ms, self._tables = at_ms, tables
        self._before |= self._versions
        self._versions = {}

    def _version(self, table: str) -> int:
        """The newest version of a table then; -1: it had none."""
        if table not in self._tables:
            return -1
        if table not in self._versions:
            found = self._next(table)
            if found is None:
                found = version_at(self._base, log_of(self._base, table), self.at_ms)
            if found is None:
                raise ConfigError(
                    f"{self.url}/{table}: its log was cleaned up, and no longer shows how the "
                    "table was then. Ask for a later time.",
                    table=table,
                )
            self._versions[table] = found
        return self._versions[table]

    def _next(self, table: str) -> int | None:
        """From its version before, if few commits were made since; None: not known."""
        version = self._before.get(table, -1)
        for after in range(version + 1, version + 1 + _STEPS_MAX) if version >= 0 else ():
            try:
                if made_ms(self._base, table, after) > self.at_ms:
                    return after - 1
            except ObjectNotFoundError:
                # The head; or commits that were cleaned up.
                return after - 1 if self._base.exists(commit_path(table, after - 1)) else None
            except CorruptLogError:
                return None
        return None


def log_of(store: ObjectStore, table: str) -> LogFiles:
    """All files of a log, in one listing."""
    return sort_files(table, store.list(table + _LOG_FOLDER))


def version_at(store: ObjectStore, files: LogFiles, at_ms: int) -> int | None:
    """The newest version of a table at a time; -1: it had none; None: the log is cleaned up."""
    first = first_version(files)
    if first is None:
        return -1
    versions = [version for version in files.commits if version >= first]
    listed_ms = {item.path: item.last_modified_ms for item in files.objects}
    paths = [commit_path(files.table, version) for version in versions]
    guess = bisect_right(list(accumulate((listed_ms[path] for path in paths), max)), at_ms)
    known: dict[int, bool] = {-1: True, len(versions): False}

    def is_made(index: int) -> bool:
        if index not in known:
            try:
                known[index] = made_ms(store, files.table, versions[index]) <= at_ms
            except CorruptLogError:
                known[index] = listed_ms[paths[index]] <= at_ms
        return known[index]

    # From where the listing has it: a store's times may be whole seconds of another clock.
    low, high, step = guess - 1, guess, 1
    while not is_made(low):
        low, high, step = max(-1, low - step), low, 2 * step
    step = 1
    while is_made(high):
        low, high, step = high, min(len(versions), high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_made(middle) else (low, middle)
    if low >= 0:
        return versions[low]
    return -1 if first == 0 else None


def first_version(files: LogFiles) -> int | None:
    """The oldest version that can be read; None: there is no log."""
    if files.commits and files.commits[0] == 0:
        return 0
    return files.checkpoints[0] if files.checkpoints else None


def made_ms(store: ObjectStore, table: str, version: int) -> int:
    """When a commit was made, by its writer's clock. Raises ObjectNotFoundError."""
    path = commit_path(table, version)
    return decode_commit(store.get(path), version=version, source=path).info.timestamp


def earliest_ms(store: ObjectStore, first: str, tables: Iterable[str]) -> int:
    """The first time as of which table `first`, and then all of these, can be read."""
    calls = [
        partial(_earliest_ms, store, first, is_there=True),
        *(partial(_earliest_ms, store, table, is_there=False) for table in tables),
    ]
    return max(store.together(calls))


def _earliest_ms(store: ObjectStore, table: str, *, is_there: bool) -> int:
    """`is_there`: not before its first version. 0: there is no bound, or none can be read."""
    try:
        if store.exists(commit_path(table, 0)):
            return made_ms(store, table, 0) if is_there else 0
        files = log_of(store, table)
        first = first_version(files)
        later = [version for version in files.commits if first is not None and version >= first]
        return made_ms(store, table, later[0]) if later else 0
    except (ObjectNotFoundError, CorruptLogError):
        return 0
