"""`txnlog repair`: look, plan, prepare, decide, bring in place; see txnlog.protocol.repair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import msgspec
from msgspec.structs import replace

from txnlog.errors import ConcurrentTransactionsError
from txnlog.protocol.batches import BatchHeader, encode_stats
from txnlog.protocol.copies import check_whole
from txnlog.protocol.group_metadata import GROUP_COLUMNS
from txnlog.protocol.metadata import ROW_COLUMNS
from txnlog.protocol.repair.facts import Row
from txnlog.protocol.repair.losses import DamagedTable, RepairReport
from txnlog.protocol.repair.plan import Planner, RepairPlan, RowsRepair
from txnlog.protocol.repair.topics import TopicRepair
from txnlog.protocol.shards import OFFSETS_PREFIX, STATE_PREFIX
from txnlog.protocol.topics import marker_app_id
from txnlog.repairing.journal import Journal, JournalPlan, TableChange
from txnlog.repairing.logs import FoundLog, read_commit
from txnlog.repairing.survey import Survey
from txnlog.storage.batches.writer import BatchFileWriter, new_batch_name
from txnlog.storage.delta.actions import (
    ENGINE,
    Action,
    Add,
    Commit,
    CommitInfo,
    Remove,
    Txn,
    decode_commit,
    encode_commit,
)
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, sort_files
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import copy_of
from txnlog.storage.tables.schemas import (
    ROW_DATA_COLUMNS,
    create_actions,
    new_row_file,
    row_add,
)
from txnlog.verifying.report import Progress, no_progress

WATCH_MS_DEFAULT = 30_000
COMMITS_AT_ONCE = 1_000
_STEPS = 20


class Repair:
    """The repair of one root, whose clients are all stopped. The constructor does no I/O.

    `watch_ms` is how long the root must be unchanged before anything is written.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        watch_ms: int = WATCH_MS_DEFAULT,
        progress: Progress = no_progress,
    ) -> None:
        self._store = store
        self._watch_ms = watch_ms
        self._progress = progress
        self._survey = Survey(store, progress)

    def find(self) -> RepairReport:
        """What `run` would do now; writes nothing. Raises as `run`."""
        interrupted = Journal.find_interrupted(self._store)
        if interrupted is not None:
            return RepairReport(interrupted=interrupted.folder)
        return self._report(self._plan())

    def run(self) -> RepairReport:
        """Repair the root, or finish a repair that was interrupted.

        Raises ConfigError if there is no cluster, or nothing of `__cluster` is whole,
        UnsupportedProtocolError for another format, ConcurrentTransactionsError if clients are
        writing (nothing has changed, or the next repair begins anew), StorageError.
        """
        interrupted = Journal.find_interrupted(self._store)
        if interrupted is not None:
            report = interrupted.finish(self._on_step)
            return replace(report, interrupted=interrupted.folder)
        begun_ms, before = self._store.clock.boot_ms(), self._versions()
        plan = self._plan()
        report = self._report(plan)
        if not report.is_needed:
            return report
        self._check_idle(before, begun_ms)
        now = datetime.fromtimestamp(self._store.clock.now_ms() / 1000, timezone.utc)
        # To the microsecond: a second repair at once must not find the first one's plan.
        journal = Journal(self._store, f"__repaired-{now:%Y%m%dT%H%M%S%fZ}")
        decided = JournalPlan(
            tables=tuple(self._prepare(plan, journal)),
            deleted=tuple(self._survey.unreadable),
            lost_files=tuple(sorted(self._survey.damaged_files)),
            report=replace(report, folder=journal.folder),
        )
        self._check_idle(before, begun_ms)
        journal.decide(decided)
        return journal.finish(self._on_step)

    def _on_step(self, table: str, done: int, count: int) -> None:
        self._progress(table, done, count, 0)

    # -- looking ---------------------------------------------------------------------------------

    def _plan(self) -> RepairPlan:
        survey = self._survey
        survey.run()
        check_whole(copy_of(survey.cluster.config), self._store.url)
        planner = Planner(
            topics=survey.topics,
            states=survey.states,
            offsets=survey.offsets,
            decisions=survey.decisions,
            broken=survey.broken,
            offsets_shards=int(survey.cluster.config[cluster_log.OFFSETS_SHARDS]),
            now_ms=self._store.clock.now_ms(),
        )
        found = survey.logs[cluster_log.PATH]
        return planner.make(
            producer_ids_end=survey.cluster.producer_ids_end,
            has_lost=found.lost > 0,
        )

    def _versions(self) -> dict[str, tuple[int, int]]:
        """By table, the newest version and the number of log files."""
        found = {}
        for table in self._store.list_folders():
            if not table.startswith("__repaired-"):
                files = sort_files(table, self._store.list(f"{table}/_delta_log"))
                newest = max([*files.commits, *files.checkpoints], default=-1)
                found[table] = newest, len(files.objects)
        return found

    def _check_idle(self, before: Mapping[str, tuple[int, int]], begun_ms: int) -> None:
        """Raise if a table has changed since `begun_ms`; an idle client writes heartbeats."""
        clock = self._store.clock
        while (left_ms := begun_ms + self._watch_ms - clock.boot_ms()) > 0:
            self._on_step("watch for clients", int(self._watch_ms - left_ms), self._watch_ms)
            clock.sleep_ms(min(left_ms, max(1, self._watch_ms // _STEPS)))
        now = self._versions()
        busy = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        if busy:
            raise ConcurrentTransactionsError(
                f"{self._store.url}: other processes are writing to {', '.join(busy)}. Nothing was "
                "repaired. Stop all producers, consumers, queries and housekeeping of this "
                "cluster, and repair again.",
                tables=busy,
            )

    def _report(self, plan: RepairPlan) -> RepairReport:
        logs = self._survey.logs
        changed = [name for name, one in plan.topics.items() if one.is_needed]
        changed += [name for name, one in plan.offsets.items() if one.is_needed]
        changed += [name for name, one in plan.states.items() if one.is_needed]
        if self._cluster_actions(plan):
            changed.append(cluster_log.PATH)
        damaged = [
            DamagedTable(
                table=name,
                kept_version=found.version,
                lost_commits=found.lost,
                new_version=found.new_version,
            )
            for name, found in sorted(logs.items())
            if found.is_damaged
        ]
        damaged += [
            DamagedTable(table=name, kept_version=-1, lost_commits=0, new_version=-1)
            for name in self._survey.unreadable
        ]
        return RepairReport(
            damaged=tuple(damaged),
            changed=tuple(sorted(changed)),
            offsets=tuple(lost for one in plan.topics.values() for lost in one.lost),
            transactions=tuple(plan.transactions),
            groups=tuple(plan.moved),
            groups_behind=tuple(plan.groups_behind),
        )

    # -- preparing -------------------------------------------------------------------------------

    def _prepare(self, plan: RepairPlan, journal: Journal) -> Iterator[TableChange]:
        """Prepare new log files of all tables that change, in the order in which they change."""
        for table, actions in self._actions(plan):
            found = self._survey.logs[table]
            if actions or found.is_damaged:
                yield self._change(found, actions, journal)

    def _actions(self, plan: RepairPlan) -> Iterator[tuple[str, list[Action]]]:
        yield cluster_log.PATH, self._cluster_actions(plan)
        for name, topic in plan.topics.items():
            yield name, self._topic_actions(name, topic)
        for name, offsets in plan.offsets.items():
            yield name, self._row_actions(name, offsets)
        for name, states in plan.states.items():
            yield name, self._row_actions(name, states)

    def _change(self, found: FoundLog, actions: Sequence[Action], journal: Journal) -> TableChange:
        table = found.table
        version = found.new_version if found.is_damaged else found.version + 1
        info = CommitInfo(
            self._store.clock.now_ms(),
            "REPAIR",
            ENGINE,
            write_id=os.urandom(16).hex(),
            previous="" if found.is_damaged else found.digest,
        )
        path = commit_path(table, version)
        data = encode_commit(info, actions)
        journal.prepare(path, data)
        if found.is_damaged:
            self._checkpoint(found, decode_commit(data, version=version, source=path), journal)
        return TableChange(table=table, version=version, is_new_log=found.is_damaged)

    def _checkpoint(self, found: FoundLog, commit: Commit, journal: Journal) -> None:
        """The checkpoint of a new log: what is whole of the former one, and the repair's commit."""
        store, path = self._store, checkpoint_path(found.table, commit.version)
        name, before = path.rpartition("/")[2], None
        if found.base >= 0:
            before = store.get(checkpoint_path(found.table, found.base))
        first: list[Commit] = []
        if found.metadata is None:
            first = [Commit(0, CommitInfo(), tuple(self._created(found.table)))]
        for at in range(0, len(found.kept), COMMITS_AT_ONCE):
            some = found.kept[at : at + COMMITS_AT_ONCE]
            commits = [*first, *(read_commit(store, found.table, version) for version in some)]
            before, _ = compute_checkpoint(before, commits, store.now_ms, name=name, note=b"")
            first = []
        parquet, hint = compute_checkpoint(
            before, [*first, commit], store.now_ms, name=name, note=commit.digest.encode()
        )
        journal.prepare(path, parquet)
        hint_json = msgspec.json.encode({**hint, "version": commit.version})
        journal.prepare(f"{found.table}/_delta_log/_last_checkpoint", hint_json)

    def _created(self, table: str) -> list[Action]:
        """A shard's first commit."""
        is_state = table.startswith(STATE_PREFIX)
        number = table[len(STATE_PREFIX if is_state else OFFSETS_PREFIX) :]
        kind = "" if is_state else "offsets-"
        return create_actions(
            table_id=f"{self._survey.cluster.cluster_id}-{kind}{number}",
            data_columns=ROW_DATA_COLUMNS,
            partition_columns=ROW_COLUMNS if is_state else GROUP_COLUMNS,
            config={},
            created_ms=self._store.clock.now_ms(),
        )

    def _cluster_actions(self, plan: RepairPlan) -> list[Action]:
        survey, now_ms = self._survey, self._store.clock.now_ms()
        actions: list[Action] = []
        if plan.producer_ids_end is not None:
            actions.append(Txn(cluster_log.PRODUCER_IDS, plan.producer_ids_end, now_ms))
        for table in (*survey.offsets, *survey.states):
            if survey.cluster.created.get(table) != cluster_log.CREATED:
                app_id = cluster_log.CREATED_PREFIX + table
                actions.append(Txn(app_id, cluster_log.CREATED, now_ms))
        return actions

    def _topic_actions(self, topic: str, plan: TopicRepair) -> list[Action]:
        now_ms = self._store.now_ms()
        markers = {marker_app_id(key): epoch for key, epoch in plan.markers.items()}
        actions: list[Action] = [
            Txn(app_id, version, now_ms) for app_id, version in {**markers, **plan.txns}.items()
        ]
        actions += [Remove(path, now_ms, data_change=True) for path in plan.removes]
        headers = [*plan.adds, *(self._without_records(topic, one) for one in plan.empties)]
        actions += [
            Add(
                header.path,
                dict(header.to_values()),
                header.size_bytes,
                now_ms,
                data_change=True,
                stats=header.stats,
            )
            for header in headers
        ]
        return actions

    def _without_records(self, topic: str, header: BatchHeader) -> BatchHeader:
        """The header with a new file that has no records; its times are those of the damaged file,
        or now.
        """
        now_us = self._store.clock.now_ms() * 1000
        low_us, high_us = now_us, now_us
        if header.path:
            _, low_us, high_us = header.statistics
        name = new_batch_name(header.partition)
        writer = BatchFileWriter(self._store, f"{topic}/{name}", compression="zstd", headers=False)
        file = writer.close(may_be_empty=True)
        stats = encode_stats(0, low_us, high_us)
        return replace(header, path=name, size_bytes=file.size_bytes, stats=stats)

    def _row_actions(self, table: str, plan: RowsRepair[Row]) -> list[Action]:
        now_ms = self._store.now_ms()
        actions: list[Action] = [
            Txn(marker_app_id(key), epoch, now_ms) for key, epoch in plan.txns.items()
        ]
        for row in plan.puts.values():
            path, size_bytes = row.path, self._survey.sizes.get(table, {}).get(row.path, 0)
            if not path:
                path, data = new_row_file(now_ms)
                size_bytes = len(data)
                self._store.put_new(f"{table}/{path}", data)
            actions.append(row_add(path, row.to_values(), size_bytes=size_bytes, now_ms=now_ms))
        actions += [Remove(path, now_ms, data_change=True) for path in plan.removes]
        return actions
