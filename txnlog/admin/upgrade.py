"""`txnlog upgrade`: a root of format 1 or 2 gets format 3; see txnlog.protocol.upgrade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from txnlog.errors import ConcurrentTransactionsError, ConfigError
from txnlog.process.failpoint import reach
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.shards import (
    OFFSETS_PREFIX,
    STATE_PREFIX,
    shard_number,
)
from txnlog.protocol.upgrade import (
    NEW_FORMAT,
    OLD_FORMATS,
    OLD_OFFSETS_TABLE,
    Carry,
    Close,
    Convert,
    Lock,
    RootState,
    SealLog,
    Step,
    Switch,
    after_step,
    busy_tables,
    entries_of,
    groups_named,
    next_step,
    prepare_carry,
)
from txnlog.settings.names import OFFSETS_SHARDS_DEFAULT
from txnlog.storage.delta.log_files import list_log
from txnlog.storage.delta.table_protocol import CLOSED
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import ClusterLog, close
from txnlog.storage.tables.offsets_upgrade import OldOffsets, OldShard
from txnlog.storage.tables.row_log import RowCommit, RowView, TransactionLog

WATCH_MS_DEFAULT = 30_000

OnStep = Callable[[str, int, int], None]
"""What is done, the number of parts done, and the number of all parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    """What an upgrade did, or with `dry_run` would do. `steps` in order; empty: nothing to do.

    `pending` entries were found; `transactions` keep theirs, as they may be committed.
    """

    format: str
    groups: int
    pending: int
    transactions: int
    steps: tuple[str, ...]


class _Found(NamedTuple):
    """What there is to convert."""

    groups: int = 0
    pending: int = 0
    transactions: int = 0


class Upgrade:
    """The upgrade of one root. The constructor does no I/O.

    `watch_ms` is how long the root must be unchanged before anything is written.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        shards: int = OFFSETS_SHARDS_DEFAULT,
        watch_ms: int = WATCH_MS_DEFAULT,
        on_step: OnStep = lambda text, done, count: None,
    ) -> None:
        self._store = store
        self._shards = shards
        self._watch_ms = watch_ms
        self._on_step = on_step
        self._cluster = ClusterLog(store)
        self._one = OldOffsets(store)
        self._states: dict[int, TransactionLog] = {}
        self._offsets: dict[int, OldShard] = {}

    def find(self) -> UpgradeReport:
        """What `run` would do now; writes nothing. Raises as `run`."""
        steps: list[str] = []
        root = self._read()
        found = self._survey()
        while (step := next_step(root, shards=self._shards)) is not None:
            steps.append(_describe(step))
            root = after_step(root, step)
        return self._report(found, steps)

    def run(self) -> UpgradeReport:
        """Make the steps that are left; may be repeated at any time, and by several at once.

        Raises ConfigError if there is no cluster, UnsupportedProtocolError for an unknown format,
        ConcurrentTransactionsError (nothing was written) if clients are writing, CorruptLogError
        for a row that cannot be read and on which offsets depend.
        """
        steps: list[str] = []
        root = self._read()
        found = self._survey()
        if self._watch_ms and isinstance(next_step(root, shards=self._shards), Lock):
            self._check_idle()
        while (step := next_step(root, shards=self._shards)) is not None:
            steps.append(_describe(step))
            self._on_step(steps[-1], 0, 1)
            self._do(step)
            root = self._read()
        return self._report(found, steps)

    def _do(self, step: Step) -> None:
        match step:
            case Lock():
                self._cluster.lock()
                reach("upgrade.locked")
            case Close():
                self._each(step, [partial(self._close, table) for table in step.tables])
            case SealLog():
                self._one.seal(cluster_id=self._cluster.cluster_id, shards=step.shards)
                reach("upgrade.sealed")
            case Carry():
                self._survey()
                self._each(step, [partial(self._carry, table) for table in step.tables])
            case Convert():
                self._each(step, [partial(self._convert, number) for number in step.numbers])
            case Switch():
                tables = [log.path for log in self._tables()]
                self._cluster.switch_format(offsets_shards=step.shards, created=tables)
                reach("upgrade.switched")

    def _each(self, step: Step, parts: list[Callable[[], None]]) -> None:
        for done, part in enumerate(parts, 1):
            part()
            self._on_step(_describe(step), done, len(parts))
            reach("upgrade.part")

    def _close(self, table: str) -> None:
        [log] = [log for log in self._tables() if log.path == table]
        kind = "" if isinstance(log, TransactionLog) else "offsets-"
        table_id = f"{self._cluster.cluster_id}-{kind}{log.number}"

        def exists() -> bool:
            log.refresh()
            return log.log.exists

        if not exists():
            self._cluster.create_shard(table, lambda: log.create(table_id, {}), exists)
        close(log.log)

    def _carry(self, table: str) -> None:
        [log] = [log for log in self._states.values() if log.path == table]

        def decide(
            view: RowView[TransactionMetadata], version: int
        ) -> RowCommit[TransactionMetadata] | None:
            rows = [prepare_carry(row, self._group) for row in view.rows.values()]
            carried = tuple(row for row in rows if row is not None)
            return RowCommit(operation="UPGRADE", puts=carried) if carried else None

        log.transact(decide)

    def _convert(self, number: int) -> None:
        carriers = [
            row
            for log in self._states.values()
            for row in log.view.rows.values()
            if row.pending.tickets
        ]
        shard = self._offsets[number]
        if self._cluster.format == OLD_FORMATS[0]:
            self._one.copy(shard, carriers, cluster_id=self._cluster.cluster_id)
        # An upgrade to format 2 may have made a copy with entries.
        shard.convert(carriers)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> RootState:
        self._cluster.refresh()
        if not self._cluster.cluster_id:
            raise ConfigError(
                f"There is no txnlog cluster at {self._store.url}. Check the path.",
                root=self._store.url,
            )
        self._store.watch_folder(cluster_log.PATH, lambda: None)
        found = self._cluster.format
        if found not in OLD_FORMATS:
            return RootState(format=found)
        if found == OLD_FORMATS[0]:
            self._one.refresh()
            shards = self._one.sealed_for
            states, offsets = list(range(self._cluster.shards)), list(range(shards))
        else:
            created = self._cluster.created()
            states, offsets = _numbers(created, STATE_PREFIX), _numbers(created, OFFSETS_PREFIX)
            shards = self._cluster.offsets_shards
        for number in states:
            self._states.setdefault(number, TransactionLog(self._store, number))
        for number in offsets:
            self._offsets.setdefault(number, OldShard(self._store, number))
        self._store.together([log.refresh for log in self._tables()])
        must_close = self._tables() if found != OLD_FORMATS[0] else self._states.values()
        return RootState(
            format=found,
            is_locked=self._cluster.is_locked,
            to_close=tuple(log.path for log in must_close if log.log.protocol != CLOSED),
            shards=shards,
            to_carry=tuple(log.path for log in self._states.values() if _names_groups(log)),
            to_convert=tuple(n for n, log in self._offsets.items() if not log.is_converted),
        )

    def _tables(self) -> list[TransactionLog | OldShard]:
        return [*self._states.values(), *self._offsets.values()]

    def _group(self, group_id: str) -> Group | None:
        """The row of a group. Raises CorruptLogError."""
        if self._cluster.format == OLD_FORMATS[0]:
            return self._one.view.rows.get(group_id)
        shard = self._offsets.get(shard_number(group_id, self._cluster.offsets_shards))
        return None if shard is None else shard.view.rows.get(group_id)

    def _survey(self) -> _Found:
        """Raises CorruptLogError for a row that cannot be read and on which offsets depend."""
        if self._cluster.format not in OLD_FORMATS:
            return _Found()
        is_first = self._cluster.format == OLD_FORMATS[0]
        logs = [self._one] if is_first else list(self._offsets.values())
        groups = [group for log in logs for group in log.view.rows.values()]
        entries = list(entries_of(groups))
        for entry in entries:
            number = shard_number(entry.transactional_id, self._cluster.shards)
            if number in self._states:
                self._states[number].view.rows.get(entry.transactional_id)
        rows = [row for log in self._states.values() for row in log.view.rows.values()]
        carried = [prepare_carry(row, self._group) or row for row in rows]
        return _Found(
            groups=len(groups) + sum(len(log.view.rows.unreadable) for log in logs),
            pending=len(entries),
            transactions=sum(bool(row.pending.tickets) for row in carried),
        )

    def _check_idle(self) -> None:
        """Raise if a table changes: clients that are idle are stopped by the protocol."""
        before = self._versions()
        left_ms, pause_ms = self._watch_ms, max(1, self._watch_ms // 20)
        while left_ms > 0:
            self._on_step("watch for clients", self._watch_ms - left_ms, self._watch_ms)
            self._store.clock.sleep_ms(min(pause_ms, left_ms))
            left_ms -= pause_ms
        busy = busy_tables(before, self._versions())
        if busy:
            raise ConcurrentTransactionsError(
                f"{self._store.url}: other processes are writing to {', '.join(busy)}. Nothing was "
                "upgraded. Stop all producers, consumers, queries and housekeeping of this "
                "cluster, and upgrade again.",
                tables=busy,
            )

    def _versions(self) -> dict[str, int]:
        tables = [cluster_log.PATH, OLD_OFFSETS_TABLE, *(log.path for log in self._tables())]
        newest = self._store.together([partial(self._newest, table) for table in tables])
        return dict(zip(tables, newest, strict=True))

    def _newest(self, table: str) -> int:
        files = list_log(self._store, table)
        return max([*files.commits, *files.checkpoints], default=-1)

    def _report(self, found: _Found, steps: list[str]) -> UpgradeReport:
        return UpgradeReport(format=self._cluster.format, steps=tuple(steps), **found._asdict())


def _numbers(tables: frozenset[str], prefix: str) -> list[int]:
    return sorted(int(name[len(prefix) :]) for name in tables if name.startswith(prefix))


def _names_groups(log: TransactionLog) -> bool:
    return any(groups_named(row) is not None for row in log.view.rows.values())


def _describe(step: Step) -> str:
    match step:
        case Lock():
            return f"close {cluster_log.PATH} to earlier versions"
        case Close():
            return f"close {len(step.tables)} tables of transactions and groups to them"
        case SealLog():
            return f"seal {OLD_OFFSETS_TABLE}"
        case Carry():
            return f"carry offsets of transactions in {len(step.tables)} shards"
        case Convert():
            return f"convert {len(step.numbers)} of {step.shards} shards of the consumer offsets"
        case Switch():
            return f"set format {NEW_FORMAT} in {cluster_log.PATH}"
