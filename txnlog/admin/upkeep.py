"""What housekeeping has done, and has to do: its lease, its duties, each table. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnlog.admin.histories import search
from txnlog.admin.looks import count_small_files
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.process.failures import caught
from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.duties import DUTIES, DutyRun, told_runs
from txnlog.protocol.moments import TableUpkeep
from txnlog.protocol.problems import UPKEEP, Problem, RootState, Upkeep
from txnlog.storage.delta.actions import Commit
from txnlog.storage.delta.log_files import commit_path, read_hint
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

Log = TopicLog | TransactionLog | OffsetsLog


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingDescription:
    """The housekeeping of a root at `now_ms`, by the store's clock; what is wrong with it."""

    now_ms: int
    upkeep: Upkeep
    overdue: Sequence[str]
    problems: Sequence[Problem]
    tables: Sequence[TableUpkeep]


def describe_housekeeping(cluster: Cluster, state: RootState) -> HousekeepingDescription:
    """Beside the state that was read of a root, the time of older news, and checkpoints."""
    upkeep = state.upkeep or Upkeep("", 0, -1)
    if not upkeep.duties:
        upkeep = upkeep._replace(duties=_earlier_runs(cluster))
    problems = [one for one in find_problems(state) if one.kind in UPKEEP]
    return HousekeepingDescription(
        now_ms=state.now_ms,
        upkeep=upkeep,
        overdue=upkeep.overdue(state.now_ms),
        problems=problems,
        tables=_tables(cluster, state),
    )


def _earlier_runs(cluster: Cluster) -> Mapping[str, DutyRun]:
    """Those that a commit below the newest checkpoint tells, if the log still has it."""

    def told(commit: Commit) -> Commit | None:
        return commit if DUTIES in commit.info.operation_parameters else None

    found = search(cluster, cluster_log.PATH, told)
    if found is None:
        return {}
    path = commit_path(cluster_log.PATH, found.version)
    at_ms = cluster.store.head(path).last_modified_ms
    return told_runs(found.info.operation_parameters, at_ms=at_ms)[1]


def _tables(cluster: Cluster, state: RootState) -> list[TableUpkeep]:
    """The topics, then the row tables; damaged ones are left out: they are problems."""
    tails = [partial(caught, tail) for _, tail in cluster.shard_tails()]
    shards = [log for log in cluster.store.together(tails) if not isinstance(log, TxnLogError)]
    logs: list[Log] = [*map(cluster.topic_log, sorted(state.topics)), *shards]
    hints = cluster.store.together([partial(read_hint, cluster.store, log.path) for log in logs])
    return [
        _table(log, -1 if hint is None else hint.version)
        for log, hint in zip(logs, hints, strict=True)
    ]


def _table(log: Log, checkpoint_version: int) -> TableUpkeep:
    if not isinstance(log, TopicLog):
        return rows_upkeep(log, checkpoint_version)
    sizes = [batch.size_bytes for batch in log.view.by_path.values()]
    return table_upkeep(log, len(sizes), sum(sizes), count_small_files(log), checkpoint_version)


def rows_upkeep(log: TransactionLog | OffsetsLog, checkpoint_version: int = -1) -> TableUpkeep:
    """That of a table of rows, which are not merged."""
    sizes = log.view.sizes.values()
    return table_upkeep(log, len(sizes), sum(sizes), 0, checkpoint_version)


def table_upkeep(
    log: Log,
    num_files: int,
    size_bytes: int,
    small_files: int,
    checkpoint_version: int = -1,
) -> TableUpkeep:
    """What housekeeping has done to a table whose files are counted, and has to do."""
    txns = log.view.txns
    return TableUpkeep(
        table=log.path,
        version=log.log.version,
        num_files=num_files,
        size_bytes=size_bytes,
        small_files=small_files,
        vacuumed_ms=txns.vacuumed_ms,
        vacuum_age_ms=txns.vacuum_age_ms,
        checkpoint_version=checkpoint_version,
    )
