"""The dearer readings of a root's state: heads of files, histories, listings, plans of compaction.

Each is made when it is asked for; those of a page that stays open remember some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from txnlog.admin.histories import row_changes
from txnlog.cluster import Cluster
from txnlog.errors import ObjectNotFoundError, TxnLogError
from txnlog.protocol.compaction import CompactionSettings, plan
from txnlog.protocol.diagnosis import SMALL_FILES_MIN
from txnlog.protocol.duties import told_runs
from txnlog.protocol.leases import HOUSEKEEPING
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.problems import RootState, Upkeep
from txnlog.protocol.shards import state_table
from txnlog.protocol.stories import RowChange
from txnlog.protocol.vacuum import BATCH_FILE, StoredFile, find_deletable, find_old
from txnlog.settings.topic_configs import config_value
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.tables.topic_log import TopicLog


class Looks:
    """The looks at one root, read-only."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def tail(self, logs: Sequence[TopicLog], needed: int) -> dict[str, TxnLogError | None]:
        """Tail logs, the first `needed` at least: topic -> its error, or None."""
        errors = self.cluster.tail_each(logs)
        return {log.name: error for log, error in zip(logs, errors, strict=True)}

    def heads(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Size and time of the files that are there."""
        store = self.cluster.store

        def head(path: str) -> tuple[int, int] | None:
            try:
                meta = store.head(path)
            except ObjectNotFoundError:
                return None
            return meta.size_bytes, meta.last_modified_ms

        wanted = list(dict.fromkeys(paths))
        found = store.together([partial(head, path) for path in wanted])
        return {path: one for path, one in zip(wanted, found, strict=True) if one is not None}

    def histories(self, ids: Iterable[str]) -> dict[str, list[RowChange]]:
        """The newest changes of these rows: those after the checkpoints of their shards."""
        by_shard: dict[int, set[str]] = {}
        for name in ids:
            by_shard.setdefault(self.cluster.shard_of(name), set()).add(name)
        found: dict[str, list[RowChange]] = {}
        for number, names in by_shard.items():
            for change in row_changes(self.cluster, state_table(number), names, from_version=None):
                found.setdefault(change.transactional_id, []).append(change)
        return found

    def small_files(self, log: TopicLog) -> int:
        """How many files of a topic can be merged; 0 if it has too few for that to be a problem."""
        return count_small_files(log) if len(log.view.by_path) >= SMALL_FILES_MIN else 0

    def unvacuumed(self, logs: Mapping[str, TopicLog], state: RootState) -> dict[str, int]:
        """Topics with a file that each vacuum of the last vacuum age would have deleted.

        Of each topic that is old enough, and that no vacuum has touched for that long, some files
        are listed, in one request; only where one of them may be such a file, its tombstones are
        read.
        """
        found = {}
        for name, log in logs.items():
            age_ms, since_ms = log.view.txns.vacuum_age_ms, log.view.txns.vacuumed_ms
            metadata = log.log.metadata
            created_ms = 0 if metadata is None else metadata.created_time or 0
            if metadata is not None and state.now_ms - max(since_ms, created_ms) >= 2 * age_ms:
                oldest_ms = self._oldest_ms(log, state, 2 * age_ms)
                if oldest_ms is not None:
                    found[name] = oldest_ms
        return found

    def _oldest_ms(self, log: TopicLog, state: RootState, age_ms: int) -> int | None:
        store, start = self.cluster.store, len(log.path) + 1
        listed = [
            StoredFile(item.path[start:], item.size_bytes, item.last_modified_ms)
            for item in store.list_some(log.path)
        ]
        old = find_old(listed, BATCH_FILE, now_ms=state.now_ms, age_ms=age_ms)
        if all(file.path in log.view.by_path for file in old):
            return None
        left = find_deletable(
            old,
            table=log.name,
            live=log.view.by_path,
            named={b.path for row in state.rows for b in row.pending.batches},
            removed_ms=read_tombstones(store, log.path, version=log.log.version),
            now_ms=state.now_ms,
            age_ms=age_ms,
        )
        return state.now_ms - max(item.age_ms for item in left) if left else None

    def upkeep(self) -> Upkeep:
        """Who does the housekeeping, and what of it the newest commits tell."""
        reading = self.cluster.read_lease(HOUSEKEEPING)
        lease, changed_ms = reading.lease, reading.changed_ms
        if lease is None:
            return Upkeep("", 0, changed_ms)
        since_ms, duties = told_runs(reading.told, at_ms=reading.told_ms)
        since_ms = since_ms if reading.told_ms == changed_ms and lease.by else changed_ms
        return Upkeep(lease.by, lease.lease_ms, changed_ms, since_ms, duties)


def count_small_files(log: TopicLog) -> int:
    """How many files of a topic can be merged, as of the last refresh of its log."""
    if log.view.deleted:
        return 0
    settings = CompactionSettings(segment_bytes=config_value(log.config, "segment.bytes"))
    return sum(len(group.inputs) for group in plan(log.view, log.name, settings))


AGAIN_MS = 60_000
RARELY_MS = 600_000
OPENED_AT_ONCE = 16


class RememberedLooks(Looks):
    """Those of a page that stays open, by the boot clock in ms.

    A file that was there is asked for again after `again_ms`, and the small files of a large topic
    are counted again; what vacuum left is asked for after ten minutes, the history of a row when it
    has changed. After `open_ms` no more logs are opened, but by the next look, which takes twice as
    long: a picture soon, and few until all is there. None: all at once.
    """

    def __init__(
        self, cluster: Cluster, *, again_ms: int = AGAIN_MS, open_ms: int | None = None
    ) -> None:
        super().__init__(cluster)
        self._again_ms = again_ms
        self._open_ms = open_ms
        self._opened: set[str] = set()
        self._heads: dict[str, tuple[int, tuple[int, int]]] = {}
        self._histories: dict[str, tuple[TransactionMetadata | None, list[RowChange]]] = {}
        self._small_files: dict[str, tuple[int, int, int]] = {}
        self._unvacuumed: tuple[int, dict[str, int]] | None = None

    def _now_ms(self) -> int:
        return self.cluster.store.clock.boot_ms()

    def tail(self, logs: Sequence[TopicLog], needed: int) -> dict[str, TxnLogError | None]:
        if self._open_ms is None:
            return super().tail(logs, needed)
        until_ms = self._now_ms() + self._open_ms
        self._open_ms *= 2
        now = [log for at, log in enumerate(logs) if at < needed or log.name in self._opened]
        found = super().tail(now, len(now))
        later = [log for log in logs if log.name not in found]
        for at in range(0, len(later), OPENED_AT_ONCE):
            found |= super().tail(later[at : at + OPENED_AT_ONCE], OPENED_AT_ONCE)
            if self._now_ms() >= until_ms:
                break
        self._opened.update(found)
        return found

    def heads(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        now_ms, wanted = self._now_ms(), set(paths)
        fresh = {path: one for path, one in self._heads.items() if now_ms - one[0] < self._again_ms}
        for path, found in super().heads(wanted - fresh.keys()).items():
            fresh[path] = now_ms, found
        self._heads = fresh
        return {path: fresh[path][1] for path in wanted if path in fresh}

    def histories(self, ids: Iterable[str]) -> dict[str, list[RowChange]]:
        rows = {name: self._row(name) for name in ids}
        changed = [
            name
            for name, row in rows.items()
            if name not in self._histories or self._histories[name][0] != row
        ]
        found = super().histories(changed)
        for name in changed:
            self._histories[name] = rows[name], found.get(name, [])
        return {name: self._histories[name][1] for name in rows}

    def _row(self, name: str) -> TransactionMetadata | None:
        shard = self.cluster.find_shard_for(name)
        return None if shard is None else dict.get(shard.view.rows, name)

    def small_files(self, log: TopicLog) -> int:
        """Of a topic with fewer files, too."""
        now_ms, known = self._now_ms(), self._small_files.get(log.name)
        is_large = len(log.view.by_path) >= SMALL_FILES_MIN
        if known is not None and is_large and now_ms - known[1] < self._again_ms:
            return known[2]
        if known is None or known[0] != log.log.version:
            found = log.log.version, now_ms, count_small_files(log)
            known = self._small_files[log.name] = found
        return known[2]

    def unvacuumed(self, logs: Mapping[str, TopicLog], state: RootState) -> dict[str, int]:
        now_ms = self._now_ms()
        if self._unvacuumed is None or now_ms - self._unvacuumed[0] > RARELY_MS:
            self._unvacuumed = now_ms, super().unvacuumed(logs, state)
        return self._unvacuumed[1]
