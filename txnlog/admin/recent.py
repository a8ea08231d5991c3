"""The commits of the last minutes of every table, remembered as they are read.

A log that is tailed tells each commit once, so that a page that stays open reads nothing twice;
what a checkpoint hid when the log was opened is read backwards, a bounded number of commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeVar

from txnlog.admin.histories import row_of
from txnlog.errors import CorruptLogError, ObjectNotFoundError
from txnlog.protocol.decoding import to_int64
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.panels.changes import (
    MARKERS,
    Change,
    Changes,
    GroupChange,
    TopicChange,
    Window,
    appended,
)
from txnlog.protocol.shards import offsets_table, state_table
from txnlog.protocol.stories import RowChange
from txnlog.protocol.txn_memory import producer_key
from txnlog.storage.delta.actions import Add, Commit, Remove, Txn, decode_commit
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import PATH as CLUSTER

COMMITS_MAX = 1_000
"""Commits of a table that are remembered, the newest ones."""
_ROUNDS = (1, 16, *([64] * (COMMITS_MAX // 64 + 1)))
"""Commits of a table that are read at once, when it was opened: most tables need one."""
_READ_AT_ONCE = 128
"""Commits of all tables that are in memory at once."""

C = TypeVar("C", RowChange, TopicChange, GroupChange)

_STATE, _OFFSETS = state_table(0)[:-1], offsets_table(0)[:-1]


class Recent:
    """`watch` is told every commit of the root's logs; `fill` then completes a window."""

    def __init__(self, window_ms: int, now_ms: int) -> None:
        self.window = Window(now_ms - window_ms, now_ms)
        self._tables: dict[str, dict[int, tuple[int, list[Change]]]] = {}
        self._ended: set[str] = set()

    def watch(self, table: str, commit: Commit) -> None:
        """A commit that was applied; of a checkpoint, nothing is remembered."""
        if table != CLUSTER and commit.info.operation:
            known = self._tables.setdefault(table, {})
            if commit.version not in known:
                known[commit.version] = commit.info.timestamp, self._changes(table, commit)

    def _changes(self, table: str, commit: Commit) -> list[Change]:
        if commit.info.timestamp < self._kept_ms:
            return []
        try:
            return list(changes_in(table, commit))
        except (CorruptLogError, KeyError, ValueError, TypeError):
            # Whoever reads the table says so.
            return []

    @property
    def _kept_ms(self) -> int:
        """What came before a change in the window is remembered, if it is not older."""
        return self.window.since_ms - self.window.length_ms

    def fill(self, store: ObjectStore, heads: Mapping[str, int], now_ms: int) -> None:
        """Read what is missing of the window; `heads`: the newest version of each table."""
        self.window = Window(now_ms - self.window.length_ms, now_ms)
        for table in self._tables.keys() - heads.keys():
            del self._tables[table]
        ended: set[str] = set()
        for at_once in _ROUNDS:
            missing = {
                table: self._missing(table, head, at_once)
                for table, head in heads.items()
                if table not in ended
            }
            wanted = [(table, version) for table, some in missing.items() for version in some]
            if not wanted:
                break
            for at in range(0, len(wanted), _READ_AT_ONCE):
                some = wanted[at : at + _READ_AT_ONCE]
                read = store.together([partial(_read, store, *one) for one in some])
                for (table, _), commit in zip(some, read, strict=True):
                    if commit is None:
                        ended.add(table)
                    else:
                        self.watch(table, commit)
        self._ended = {table for table in ended if len(self._missing(table, heads[table], 1))}
        for table, head in heads.items():
            self._forget(table, head)

    @property
    def cleaned(self) -> list[str]:
        """The tables of which clean-up has deleted commits of the window."""
        return sorted(self._ended)

    def _missing(self, table: str, head: int, at_once: int) -> range:
        """The next versions to read, downwards."""
        known = self._tables.setdefault(table, {})
        first = head + 1
        while first - 1 in known and known[first - 1][0] >= self.window.since_ms:
            first -= 1
        is_whole = first - 1 in known or head + 1 - first >= COMMITS_MAX
        return range(0) if is_whole else range(max(0, first - at_once), first)

    def _forget(self, table: str, head: int) -> None:
        known = self._tables[table]
        for version, (at_ms, _) in list(known.items()):
            is_old = at_ms < self._kept_ms or version <= head - COMMITS_MAX
            if version != head and is_old:
                del known[version]

    def changes(self) -> Changes:
        """Those of the window."""
        rows: dict[str, list[RowChange]] = {}
        topics: dict[str, list[TopicChange]] = {}
        groups: dict[str, list[GroupChange]] = {}
        cut = {}
        for table, known in self._tables.items():
            if len(known) >= COMMITS_MAX:
                cut[table] = min(at_ms for at_ms, _ in known.values())
            for version in sorted(known):
                for change in known[version][1]:
                    if isinstance(change, RowChange):
                        rows.setdefault(change.transactional_id, []).append(change)
                    elif isinstance(change, GroupChange):
                        groups.setdefault(change.group_id, []).append(change)
                    else:
                        topics.setdefault(table, []).append(change)
        return Changes(
            rows=_of_window(rows, self.window),
            topics=_of_window(topics, self.window),
            groups=_of_window(groups, self.window),
            cut={table: at_ms for table, at_ms in cut.items() if at_ms > self.window.since_ms},
        )


def _of_window(found: Mapping[str, list[C]], window: Window) -> dict[str, list[C]]:
    """Without what is older than the change before the window, and without who had none since."""
    kept = {}
    for key, changes in found.items():
        first = next((at for at, one in enumerate(changes) if one.at_ms >= window.since_ms), None)
        if first is not None:
            kept[key] = changes[max(0, first - 1) :]
    return kept


def _read(store: ObjectStore, table: str, version: int) -> Commit | None:
    """None: it is not there any more."""
    source = commit_path(table, version)
    try:
        return decode_commit(store.get(source), version=version, source=source)
    except (ObjectNotFoundError, CorruptLogError):
        return None


def changes_in(table: str, commit: Commit) -> Iterator[Change]:
    """What a commit says, in the compact form. Raises CorruptLogError, and as `appended`."""
    if table.startswith(_STATE):
        yield from _row_changes(table, commit)
    elif table.startswith(_OFFSETS):
        yield from _group_changes(table, commit)
    else:
        info = commit.info
        parameters = info.operation_parameters
        numbers = (parameters.get(name, "-1") for name in ("producerId", "producerEpoch"))
        transaction = ProducerIdAndEpoch(*map(_number, numbers))
        adds = (action for action in commit.actions if isinstance(action, Add))
        found = appended(add.partition_values for add in adds)
        marked = _marked(commit) if info.operation == MARKERS else ()
        yield TopicChange(
            info.timestamp, commit.version, info.operation, transaction, found, marked
        )


def _marked(commit: Commit) -> tuple[ProducerIdAndEpoch, ...]:
    """The transactions that have their markers in a commit."""
    txns = (action for action in commit.actions if isinstance(action, Txn))
    keys = ((producer_key(txn.app_id), txn.version) for txn in txns)
    return tuple(ProducerIdAndEpoch(key, epoch) for key, epoch in keys if isinstance(key, int))


def _number(text: str) -> int:
    try:
        return to_int64(text)
    except ValueError:
        return -1


def _row_changes(table: str, commit: Commit) -> Iterator[RowChange]:
    info = commit.info
    at, told = (info.timestamp, commit.version), info.operation_parameters
    added = False
    for action in commit.actions:
        if isinstance(action, Add):
            row = row_of(action, table, commit)
            added = True
            yield RowChange(
                *at, row.transactional_id, row, operation=info.operation, parameters=told
            )
    name = told.get("transactionalId")
    if name and not added and any(isinstance(action, Remove) for action in commit.actions):
        yield RowChange(*at, name, None, operation=info.operation, parameters=told)


def _group_changes(table: str, commit: Commit) -> Iterator[GroupChange]:
    if commit.info.operation == "HEARTBEAT":
        return
    for action in commit.actions:
        if isinstance(action, Add):
            group = Group.from_values(
                action.partition_values,  # type: ignore[arg-type]
                path=action.path,
                source=commit_path(table, commit.version),
            )
            yield GroupChange(
                commit.info.timestamp, commit.version, group.group_id, group.positions()
            )
