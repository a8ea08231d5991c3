"""`txnlog upgrade`: a root of format 1 becomes one of format 2; see txnlog.protocol.upgrade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from txnlog.errors import ConcurrentTransactionsError, ConfigError
from txnlog.process.failpoint import reach
from txnlog.protocol.shards import OFFSETS_PREFIX, STATE_PREFIX, offsets_table
from txnlog.protocol.upgrade import Copy, RootState, SealLog, Switch, busy_tables, next_step
from txnlog.settings.names import OFFSETS_SHARDS_DEFAULT
from txnlog.storage.delta.log_files import list_log
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import ClusterLog
from txnlog.storage.tables.offsets_upgrade import OldOffsets

WATCH_MS_DEFAULT = 30_000

OnStep = Callable[[str, int, int], None]
"""What is done, the number of parts done, and the number of all parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    """What an upgrade did, or with `dry_run` would do. `steps` in order; empty: nothing to do."""

    format: str
    groups: int
    pending: int
    markers: int
    steps: tuple[str, ...]


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
        self._old = OldOffsets(store)

    def find(self) -> UpgradeReport:
        """What `run` would do now; writes nothing. Raises as `run`."""
        steps: list[str] = []
        root = self._read()
        while (step := next_step(root, shards=self._shards)) is not None:
            steps.append(_describe(step))
            if isinstance(step, Switch):
                break
            copied = root.copied if isinstance(step, SealLog) else range(step.shards)
            root = RootState(root.format, step.shards, copied)
        return self._report(steps)

    def run(self) -> UpgradeReport:
        """Make the steps that are left; may be repeated at any time, and by several at once.

        Raises ConfigError if there is no cluster, UnsupportedProtocolError for an unknown format,
        ConcurrentTransactionsError (nothing was written) if clients are writing.
        """
        steps: list[str] = []
        root = self._read()
        if self._watch_ms and isinstance(next_step(root, shards=self._shards), SealLog):
            self._check_idle()
        while (step := next_step(root, shards=self._shards)) is not None:
            steps.append(_describe(step))
            self._on_step(steps[-1], 0, 1)
            self._do(step)
            root = self._read()
        return self._report(steps)

    def _do(self, step: SealLog | Copy | Switch) -> None:
        cluster_id = self._cluster.cluster_id
        match step:
            case SealLog():
                self._old.seal(cluster_id=cluster_id, shards=step.shards)
                reach("upgrade.sealed")
            case Copy():
                for done, number in enumerate(step.numbers, 1):
                    self._old.copy(number, cluster_id=cluster_id)
                    self._on_step(_describe(step), done, len(step.numbers))
                    reach("upgrade.copied")
            case Switch():
                created = [offsets_table(number) for number in range(step.shards)]
                created += self._tables(STATE_PREFIX)
                self._cluster.switch_format(offsets_shards=step.shards, created=created)
                reach("upgrade.switched")

    def _read(self) -> RootState:
        self._cluster.refresh()
        if not self._cluster.cluster_id:
            raise ConfigError(
                f"There is no txnlog cluster at {self._store.url}. Check the path.",
                root=self._store.url,
            )
        self._store.watch_folder(cluster_log.PATH, lambda: None)
        if self._cluster.format == str(cluster_log.FORMAT):
            return RootState(self._cluster.format, 0, ())
        self._old.refresh()
        copied = [
            int(table[len(OFFSETS_PREFIX) :])
            for table in self._tables(OFFSETS_PREFIX)
            if list_log(self._store, table).commits
        ]
        return RootState(self._cluster.format, self._old.sealed_for, copied)

    def _tables(self, prefix: str) -> list[str]:
        return [
            name
            for name in sorted(self._store.list_folders())
            if name.startswith(prefix) and name[len(prefix) :].isdecimal()
        ]

    def _check_idle(self) -> None:
        """Raise if a table changes: clients that are idle are stopped by the seal."""
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
        tables = [cluster_log.PATH, self._old.path, *self._tables(STATE_PREFIX)]
        newest = self._store.together([partial(self._newest, table) for table in tables])
        return dict(zip(tables, newest, strict=True))

    def _newest(self, table: str) -> int:
        files = list_log(self._store, table)
        return max([*files.commits, *files.checkpoints], default=-1)

    def _report(self, steps: list[str]) -> UpgradeReport:
        rows = self._old.view.rows
        return UpgradeReport(
            format=self._cluster.format,
            groups=len(rows) + len(rows.unreadable),
            pending=sum(len(group.pending) for group in rows.values()),
            markers=len(self._old.view.markers),
            steps=tuple(steps),
        )


def _describe(step: SealLog | Copy | Switch) -> str:
    match step:
        case SealLog():
            return "seal __consumer_offsets"
        case Copy():
            return f"copy it into {len(step.numbers)} of {step.shards} shards"
        case Switch():
            return f"set format {cluster_log.FORMAT} in {cluster_log.PATH}"
